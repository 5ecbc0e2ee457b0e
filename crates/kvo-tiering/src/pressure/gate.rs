//! Whether a tier is given anything at all.
//!
//! ```text
//!            so many failures in a row, or a job overdue
//!   Passing ─────────────────────────────────────────────▶ Shut until .. ◀──────┐
//!      ▲                                                      │ one job        │ fails, is overdue:
//!      └───────────────── it goes well ─────────────── Trying ◀┘ ───────────────┘ twice the pause
//! ```
//!
//! Jobs that were under way before the gate shut say how the tier was, not how it is: they decide nothing.

use std::time::Duration;

use kvo_core::JobId;

use super::PressureOptions;

/// One way of a tier: to it, or from it.
#[derive(Debug)]
pub(crate) struct Gate {
    failures_max: Option<u32>,
    pause: Duration,
    pause_max: Duration,
    state: State,
    times_shut: u64,
    /// Jobs before this one, which has opened it, say how the tier was.
    first: JobId,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Passing {
        /// In a row.
        failures: u32,
    },
    Shut {
        until: Duration,
        pause: Duration,
    },
    Trying {
        job: JobId,
        pause: Duration,
    },
}

impl Gate {
    pub(crate) fn new(options: &PressureOptions) -> Self {
        Self {
            failures_max: options.failures_max,
            pause: options.pause,
            pause_max: options.pause_max,
            state: State::Passing { failures: 0 },
            times_shut: 0,
            first: JobId(0),
        }
    }

    /// How often it shut, after a try that failed included.
    pub(crate) fn times_shut(&self) -> u64 {
        self.times_shut
    }

    /// Whether the tier is fenced off, but perhaps for one job.
    pub(crate) fn is_fenced(&self) -> bool {
        !matches!(self.state, State::Passing { .. })
    }

    /// Whether a job may go.
    pub(crate) fn lets_through(&self, now: Duration) -> bool {
        match self.state {
            State::Passing { .. } => true,
            State::Shut { until, .. } => until <= now,
            State::Trying { .. } => false,
        }
    }

    /// The tier took a job that was let through.
    pub(crate) fn on_taken(&mut self, job: JobId) {
        if let State::Shut { pause, .. } = self.state {
            self.state = State::Trying { job, pause };
        }
    }

    /// Says whether that was the job that tried, so that the tier is as good as new.
    pub(crate) fn on_done(&mut self, job: JobId) -> bool {
        match &mut self.state {
            State::Passing { failures } => *failures = 0,
            State::Trying { job: trying, .. } if *trying == job => {
                self.state = State::Passing { failures: 0 };
                self.first = job;
                return true;
            }
            State::Trying { .. } | State::Shut { .. } => {}
        }
        false
    }

    pub(crate) fn on_failed(&mut self, job: JobId, now: Duration) {
        match self.state {
            State::Passing { .. } if job >= self.first => self.count_failure(now),
            State::Trying { job: trying, pause } if trying == job => self.shut(pause.saturating_mul(2), now),
            State::Passing { .. } | State::Trying { .. } | State::Shut { .. } => {}
        }
    }

    /// The tier did not take a job that was let through.
    pub(crate) fn on_rejected(&mut self, now: Duration) {
        match self.state {
            State::Passing { .. } => self.count_failure(now),
            State::Shut { pause, .. } => self.shut(pause.saturating_mul(2), now),
            State::Trying { .. } => {}
        }
    }

    /// A job has gone unreported for too long.
    pub(crate) fn on_overdue(&mut self, job: JobId, now: Duration) {
        match self.state {
            State::Passing { .. } if job >= self.first => self.shut(self.pause, now),
            State::Trying { job: trying, pause } if trying == job => self.shut(pause.saturating_mul(2), now),
            State::Passing { .. } | State::Trying { .. } | State::Shut { .. } => {}
        }
    }

    fn count_failure(&mut self, now: Duration) {
        let (State::Passing { failures }, Some(max)) = (&mut self.state, self.failures_max) else { return };
        *failures += 1;
        if *failures >= max {
            self.shut(self.pause, now);
        }
    }

    fn shut(&mut self, pause: Duration, now: Duration) {
        let pause = pause.min(self.pause_max);
        self.state = State::Shut { until: now.saturating_add(pause), pause };
        self.times_shut += 1;
    }
}
