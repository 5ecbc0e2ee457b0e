//! Stops a run cleanly on Ctrl-C.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

/// Exit status of a run that was stopped.
pub const INTERRUPTED_STATUS: u8 = 130;

/// Set once the user has pressed Ctrl-C, or the process was asked to end. Clones share it.
///
/// Long work asks [`is_set`](Self::is_set) once a request or so, stops there, prints what it has and ends with
/// [`INTERRUPTED_STATUS`]. A second Ctrl-C ends the process at once.
#[derive(Clone, Debug, Default)]
pub struct Interrupt {
    set: Arc<AtomicBool>,
}

impl Interrupt {
    /// One that only [`set`](Self::set) sets.
    pub fn manual() -> Self {
        Self::default()
    }

    /// Listens for Ctrl-C from now on. A process can do so once.
    ///
    /// # Errors
    ///
    /// If the process listens already, or the system refuses.
    pub fn on_ctrl_c() -> Result<Self, ctrlc::Error> {
        let interrupt = Self::manual();
        let seen = interrupt.clone();
        ctrlc::set_handler(move || {
            if seen.is_set() {
                std::process::exit(INTERRUPTED_STATUS.into());
            }
            seen.set();
        })?;
        Ok(interrupt)
    }

    /// Asks the work to stop.
    pub fn set(&self) {
        self.set.store(true, Ordering::Relaxed);
    }

    /// Whether the work is to stop.
    pub fn is_set(&self) -> bool {
        self.set.load(Ordering::Relaxed)
    }
}
