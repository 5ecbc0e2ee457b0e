//! Stops a run cleanly on Ctrl-C.

use std::{
    fmt,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

/// Exit status of a run that was stopped.
pub const INTERRUPTED_STATUS: u8 = 130;

/// Set once the user has pressed Ctrl-C, or the process was asked to end. Clones share it.
///
/// Long work asks [`is_set`](Self::is_set) once a request or so, stops there, prints what it has and ends with
/// [`INTERRUPTED_STATUS`]. A second Ctrl-C ends the process at once, after what was given to
/// [`before_exit`](Self::before_exit).
#[derive(Clone, Default)]
pub struct Interrupt {
    set: Arc<AtomicBool>,
    before_exit: Arc<Mutex<Vec<Undo>>>,
}

type Undo = Box<dyn Fn() + Send>;

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
                seen.undo();
                std::process::exit(INTERRUPTED_STATUS.into());
            }
            seen.set();
        })?;
        Ok(interrupt)
    }

    /// Has `undo` done if the process ends at once: what it has changed of the machine. It must do no harm where that is
    /// undone already.
    pub fn before_exit(&self, undo: impl Fn() + Send + 'static) {
        self.before_exit.lock().unwrap_or_else(PoisonError::into_inner).push(Box::new(undo));
    }

    fn undo(&self) {
        self.before_exit.lock().unwrap_or_else(PoisonError::into_inner).iter().for_each(|undo| undo());
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

impl fmt::Debug for Interrupt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Interrupt").field("set", &self.is_set()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_to_be_undone_is_undone_by_any_clone() {
        let (interrupt, done) = (Interrupt::manual(), Arc::new(AtomicBool::new(false)));
        let undone = Arc::clone(&done);
        interrupt.clone().before_exit(move || undone.store(true, Ordering::Relaxed));
        assert!(!done.load(Ordering::Relaxed));
        interrupt.undo();
        assert!(done.load(Ordering::Relaxed));
    }
}
