//! Time, handed in.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

/// Monotonic time since some fixed moment. State machines are handed one, and have none of their own.
///
/// Any closure will do, and a test hands in a [`ManualClock`]:
///
/// ```
/// let start = std::time::Instant::now();
/// let clock: Box<dyn kvo_core::Clock> = Box::new(move || start.elapsed());
/// assert!(clock.now() <= clock.now());
/// ```
pub trait Clock: Send {
    /// The time now; never less than at an earlier call.
    fn now(&self) -> Duration;
}

impl<F: Fn() -> Duration + Send> Clock for F {
    fn now(&self) -> Duration {
        self()
    }
}

/// A clock that stands still until it is told to move. Clones share the time.
#[derive(Clone, Debug, Default)]
pub struct ManualClock {
    now_ns: Arc<AtomicU64>,
}

impl ManualClock {
    /// Moves the time forward.
    pub fn advance(&self, by: Duration) {
        let by_ns = u64::try_from(by.as_nanos()).unwrap_or(u64::MAX);
        let later = |now_ns: u64| Some(now_ns.saturating_add(by_ns));
        let _ = self.now_ns.fetch_update(Ordering::Relaxed, Ordering::Relaxed, later);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Duration {
        Duration::from_nanos(self.now_ns.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manual_clock_never_goes_back() {
        let clock = ManualClock::default();
        clock.advance(Duration::MAX);
        let last = clock.now();
        clock.advance(Duration::from_secs(1));
        assert_eq!(clock.now(), last);
    }
}
