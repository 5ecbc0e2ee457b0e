//! Any text is a module or an error, and any module that is read runs to an end: what the fuzzer `ptx` runs.

#[cfg(test)]
#[path = "../../../fuzz/replay.rs"]
mod replay;

use std::cell::RefCell;

use kvo_ptx::{BadAddress, Memory, Module};

/// Memory from address 0 on.
struct Bytes(RefCell<Vec<u8>>);

impl Memory for Bytes {
    fn read(&self, address: u64, out: &mut [u8]) -> Result<(), BadAddress> {
        let start = usize::try_from(address).map_err(|_| BadAddress)?;
        let end = start.checked_add(out.len()).ok_or(BadAddress)?;
        out.copy_from_slice(self.0.borrow().get(start..end).ok_or(BadAddress)?);
        Ok(())
    }

    fn write(&self, address: u64, from: &[u8]) -> Result<(), BadAddress> {
        let start = usize::try_from(address).map_err(|_| BadAddress)?;
        let end = start.checked_add(from.len()).ok_or(BadAddress)?;
        self.0.borrow_mut().get_mut(start..end).ok_or(BadAddress)?.copy_from_slice(from);
        Ok(())
    }
}

/// Reads the text, and runs its kernels for a few instructions on a little memory: they end, well or with a fault, and
/// in the same way again.
pub fn fuzzed(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let module = match Module::parse(text) {
        Ok(module) => module,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            return;
        }
    };
    for kernel in module.kernels() {
        assert!(module.kernel(kernel.name()).is_some(), "a kernel goes by its name");
        let params = vec![16; kernel.param_bytes()];
        let run = || {
            let memory = Bytes(RefCell::new(vec![7; 256]));
            let ended = kernel.launch_limited([2, 1, 1], [2, 1, 1], &params, &memory, 200);
            (ended.map_err(|fault| fault.to_string()), memory.0.into_inner())
        };
        let first = run();
        assert_eq!(run(), first, "a kernel does the same every time");
    }
}

#[test]
fn the_corpus_of_the_fuzzer_is_read_and_run() {
    replay::replay("ptx", fuzzed);
}
