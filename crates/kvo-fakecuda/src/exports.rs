//! The driver's functions, by the names and with the arguments that its header gives them.
//!
//! Every one is unsafe to call, and its contract is the real driver's. Pointers are wrapped as they come in
//! ([`In`](crate::pointers::In), [`Out`](crate::pointers::Out)), so the bodies are safe code.

mod context;
mod copy;
mod device;
mod memory;
mod module;
mod stream;

use crate::{
    abi::Done,
    state::{Driver, Needs, driver},
};

/// What a body is given.
pub(crate) struct Call {
    pub(crate) driver: &'static Driver,
    /// The current context, if the function needs one.
    pub(crate) context: u64,
}

/// Counts the call, refuses it where that is due, or does it.
fn enter(name: &'static str, needs: Needs, body: impl FnOnce(&Call) -> Done) -> u32 {
    let driver = driver();
    let outcome = driver.admit(name, needs).and_then(|context| body(&Call { driver, context }));
    outcome.map_or_else(|code| code.0, |()| 0)
}

/// Defines exported functions: what each needs, its name, its arguments, and a body that gives a [`Done`].
macro_rules! exports {
    ($($needs:ident $name:ident($call:ident $(, $argument:ident: $type:ty)*) $body:block)*) => {
        $(
            /// As the driver's header documents it.
            ///
            /// # Safety
            /// As there: every pointer is null or good for what it is for, and every handle is one that was given.
            #[unsafe(no_mangle)]
            pub(crate) unsafe extern "C" fn $name($($argument: $type),*) -> u32 {
                $crate::exports::enter(stringify!($name), $crate::state::Needs::$needs, |$call| $body)
            }
        )*

        /// The address of each function here, by name.
        pub(super) fn address_of(name: &str) -> Option<*const ()> {
            match name {
                $(stringify!($name) => Some($name as *const ()),)*
                _ => None,
            }
        }
    };
}
use exports;

/// Where a function is.
pub(crate) fn address_of(name: &str) -> Option<*const ()> {
    let modules =
        [device::address_of, context::address_of, stream::address_of, memory::address_of, copy::address_of];
    modules.into_iter().chain([module::address_of as fn(&str) -> _]).find_map(|address_of| address_of(name))
}

/// The table of functions for tests.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn kvofake_controls() -> &'static crate::wire::Controls {
    &crate::control::CONTROLS
}

#[cfg(test)]
mod tests {
    use crate::symbols::SYMBOLS;

    #[test]
    fn every_symbol_has_an_address_of_its_own() {
        let mut addresses: Vec<usize> = SYMBOLS
            .iter()
            .map(|(name, _)| super::address_of(name).unwrap_or_else(|| panic!("{name} is missing")) as usize)
            .collect();
        addresses.sort_unstable();
        addresses.dedup();
        assert_eq!(addresses.len(), SYMBOLS.len());
    }
}
