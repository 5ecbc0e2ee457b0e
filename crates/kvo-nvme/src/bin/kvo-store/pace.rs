//! Work that is to be stopped by Ctrl-C, and not to go faster than asked.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

/// Whether the user wants to stop.
#[derive(Clone, Debug, Default)]
pub(crate) struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// One that Ctrl-C sets from now on.
    pub(crate) fn on_ctrl_c() -> Result<Self, ctrlc::Error> {
        let interrupt = Self::default();
        let flag = Arc::clone(&interrupt.0);
        ctrlc::set_handler(move || flag.store(true, Ordering::Relaxed))?;
        Ok(interrupt)
    }

    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Holds work down to a number of bytes a second.
#[derive(Debug)]
pub(crate) struct Pace {
    bytes_per_s: Option<u64>,
    started: Instant,
    bytes: u64,
}

/// How long a pause may be until Ctrl-C is looked for again.
const NAP: Duration = Duration::from_millis(100);

impl Pace {
    pub(crate) fn new(bytes_per_s: Option<u64>) -> Self {
        Self { bytes_per_s, started: Instant::now(), bytes: 0 }
    }

    /// Waits until so many more bytes may be moved.
    pub(crate) fn wait_for(&mut self, bytes: u64, interrupt: &Interrupt) {
        let due = self.due();
        self.bytes += bytes;
        loop {
            let left = due.saturating_sub(self.started.elapsed());
            if left.is_zero() || interrupt.is_set() {
                return;
            }
            thread::sleep(left.min(NAP));
        }
    }

    /// When what was moved so far may have been moved, from the start.
    fn due(&self) -> Duration {
        let seconds = self.bytes_per_s.map_or(0.0, |rate| self.bytes as f64 / rate as f64);
        // What is beyond a duration's range is never due.
        Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_due_at_the_rate() {
        let mut pace = Pace::new(Some(1000));
        assert_eq!(pace.due(), Duration::ZERO);
        pace.wait_for(1500, &Interrupt::default());
        assert_eq!(pace.due(), Duration::from_millis(1500));
        pace.bytes_per_s = None;
        assert_eq!(pace.due(), Duration::ZERO);
    }

    #[test]
    fn an_interrupt_ends_the_wait() {
        let interrupt = Interrupt::default();
        interrupt.0.store(true, Ordering::Relaxed);
        let mut pace = Pace::new(Some(1));
        pace.wait_for(1 << 40, &interrupt);
        pace.wait_for(1, &interrupt);
    }
}
