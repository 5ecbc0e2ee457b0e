//! What errors mean, and when they close the store for a while.
//!
//! ```text
//!   breaker                                        writes
//!
//!           errors in window, or device gone               no room
//!   Passing ───────────────────────▶ Shut          Passing ─────────▶ Shut
//!      ▲                            ▲  │              ▲              ▲  │
//!      │ it works     it fails      │  │ pause        │ it works     │  │ pause
//!      └────────────── Trying ──────┘  │              └──── Trying ──┘  │
//!                        ▲             │                      ▲         │
//!                        └─────────────┘                      └─────────┘
//! ```
//!
//! The breaker stands before reads and writes, the second gate before writes only. A gate that has been shut for the
//! pause lets one chunk through, and what becomes of it decides. Nothing else does meanwhile: what was under way
//! before tells how the device was, not how it is. So a store that is full or broken costs one try a pause, and comes
//! back by itself.
//!
//! Nothing here reads a clock or does I/O. Times are handed in, and only the distance from one call to the next
//! counts: a clock that jumps back is one that stood still.

mod verdict;

#[cfg(test)]
mod tests;

use std::{collections::VecDeque, time::Duration};

use crate::{BreakerOptions, TierState};

pub(crate) use self::verdict::{SlotVerdict, StoreVerdict, Task, Verdict, classify, classify_io};

/// Which way a chunk is to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Read,
    Write,
}

/// Leave to move one chunk, to be handed back with how it went: by exactly one of [`Health::on_success`],
/// [`Health::on_error`] and [`Health::on_cancelled`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) struct Pass {
    /// What becomes of the chunk decides whether the breaker closes;
    tries_breaker: bool,
    /// whether anything is written again.
    tries_writes: bool,
}

impl Pass {
    /// Of a chunk that decides nothing, and of records and syncs, for which no leave is asked.
    pub(crate) const USUAL: Self = Self { tries_breaker: false, tries_writes: false };

    /// Whether the chunk is the one that tries.
    pub(crate) fn is_probe(self) -> bool {
        self != Self::USUAL
    }
}

/// Why a chunk is not to be moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refusal {
    #[error("the device failed too often")]
    Open,
    #[error("nothing can be written")]
    ReadOnly,
    #[error("nothing can be made durable")]
    NotDurable,
}

/// What happened so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct HealthCounts {
    /// Errors of the device.
    pub(crate) errors: u64,
    /// Times that the breaker opened, after a probe that failed included.
    pub(crate) opened: u64,
    /// Times that the store became read-only, after a probe that failed included.
    pub(crate) read_only: u64,
    /// Chunks that tried.
    pub(crate) probes: u64,
}

/// Which chunks may be moved, after what has become of earlier ones.
#[derive(Debug)]
pub(crate) struct Health {
    options: BreakerOptions,
    /// Whether a write must be durable to be one.
    durable: bool,
    durability_lost: bool,
    time: Time,
    breaker: Gate,
    writes: Gate,
    /// When the latest errors came, the oldest first: less than `options.errors`, none older than the window when the
    /// last one came.
    recent: VecDeque<Duration>,
    counts: HealthCounts,
}

impl Health {
    pub(crate) fn new(options: BreakerOptions, durable: bool) -> Self {
        Self {
            options,
            durable,
            durability_lost: false,
            time: Time::default(),
            breaker: Gate::Passing,
            writes: Gate::Passing,
            recent: VecDeque::new(),
            counts: HealthCounts::default(),
        }
    }

    /// Asks leave for a chunk. In a gate that has been shut for long enough, the first to ask is the one that tries;
    /// until its pass is handed back, all others are refused.
    pub(crate) fn allow(&mut self, direction: Direction, now: Duration) -> Result<Pass, Refusal> {
        let now = self.time.advance(now);
        self.refusal(direction, now).map_or(Ok(()), Err)?;
        let pass = Pass {
            tries_breaker: self.breaker.enter(),
            tries_writes: direction == Direction::Write && self.writes.enter(),
        };
        self.counts.probes += u64::from(pass.is_probe());
        Ok(pass)
    }

    /// Whether [`allow`](Self::allow) would give leave now; changes nothing. A lookup asks it: what may not be read is
    /// no hit.
    pub(crate) fn may(&self, direction: Direction, now: Duration) -> bool {
        self.refusal(direction, self.time.at(now)).is_none()
    }

    /// Whether every chunk has leave, whatever the time is.
    pub(crate) fn is_up(&self) -> bool {
        self.breaker == Gate::Passing && self.writes == Gate::Passing && !self.refuses_writes()
    }

    fn refuses_writes(&self) -> bool {
        self.durable && self.durability_lost
    }

    fn refusal(&self, direction: Direction, now: Duration) -> Option<Refusal> {
        if direction == Direction::Write {
            if self.refuses_writes() {
                return Some(Refusal::NotDurable);
            }
            if !self.writes.lets_through(now) {
                return Some(Refusal::ReadOnly);
            }
        }
        (!self.breaker.lets_through(now)).then_some(Refusal::Open)
    }

    /// A chunk has been moved, by the leave `pass`.
    pub(crate) fn on_success(&mut self, pass: Pass) {
        if pass.tries_breaker {
            self.breaker = Gate::Passing;
        }
        if pass.tries_writes {
            self.writes = Gate::Passing;
        }
    }

    /// A chunk that had the leave `pass` was never tried, or what became of it tells nothing: the next to ask tries.
    pub(crate) fn on_cancelled(&mut self, pass: Pass) {
        let again = Gate::Shut { until: Duration::ZERO };
        if pass.tries_breaker {
            self.breaker = again;
        }
        if pass.tries_writes {
            self.writes = again;
        }
    }

    /// An error came: of a chunk with its pass, or of a record or a sync with [`Pass::USUAL`].
    pub(crate) fn on_error(&mut self, verdict: Verdict, pass: Pass, now: Duration) {
        let now = self.time.advance(now);
        self.durability_lost |= verdict.durability_lost;
        if verdict.is_of_the_host() {
            return self.on_cancelled(pass);
        }
        if verdict.store == StoreVerdict::Count || verdict.store == StoreVerdict::Open {
            self.counts.errors += 1;
        }
        if pass.tries_breaker {
            // A device that says that it is full answers, and so does one that is read.
            if verdict.store == StoreVerdict::ReadOnly {
                self.breaker = Gate::Passing;
            } else {
                self.open(now);
            }
        }
        if pass.tries_writes || self.writes == Gate::Passing && verdict.store == StoreVerdict::ReadOnly {
            self.writes = self.shut(now);
            self.counts.read_only += 1;
        }
        if self.breaker == Gate::Passing {
            match verdict.store {
                StoreVerdict::Count if self.is_one_too_many(now) => self.open(now),
                StoreVerdict::Open => self.open(now),
                _ => {}
            }
        }
    }

    /// Notes an error, and says whether there were so many within the window.
    fn is_one_too_many(&mut self, now: Duration) -> bool {
        let window = self.options.window;
        while self.recent.front().is_some_and(|&first| now.saturating_sub(first) > window) {
            self.recent.pop_front();
        }
        self.recent.push_back(now);
        self.recent.len() >= self.options.errors as usize
    }

    fn open(&mut self, now: Duration) {
        self.recent.clear();
        self.breaker = self.shut(now);
        self.counts.opened += 1;
    }

    fn shut(&self, now: Duration) -> Gate {
        Gate::Shut { until: now.saturating_add(self.options.pause) }
    }

    /// Whether a sync has failed since the store was opened. Nothing that was written in this opening can be called
    /// durable then, and the index not clean.
    pub(crate) fn durability_lost(&self) -> bool {
        self.durability_lost
    }

    pub(crate) fn state(&self) -> TierState {
        match (self.breaker, self.writes) {
            (Gate::Shut { .. }, _) => TierState::Open,
            (Gate::Trying, _) => TierState::HalfOpen,
            (Gate::Passing, Gate::Passing) if !self.refuses_writes() => TierState::Up,
            (Gate::Passing, _) => TierState::ReadOnly,
        }
    }

    pub(crate) fn counts(&self) -> HealthCounts {
        self.counts
    }
}

/// What stands before the chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Gate {
    Passing,
    /// The first that asks from `until` on tries.
    Shut {
        until: Duration,
    },
    /// One chunk tries.
    Trying,
}

impl Gate {
    fn lets_through(self, now: Duration) -> bool {
        match self {
            Self::Passing => true,
            Self::Shut { until } => until <= now,
            Self::Trying => false,
        }
    }

    /// Goes through a gate that lets one through; says whether that is a try.
    fn enter(&mut self) -> bool {
        let is_try = *self != Self::Passing;
        if is_try {
            *self = Self::Trying;
        }
        is_try
    }
}

/// The time that has gone by, by a clock that may jump back.
#[derive(Debug, Default)]
struct Time {
    /// What the clock last said.
    seen: Duration,
    /// How far it has gone forwards, all in all.
    gone: Duration,
}

impl Time {
    /// The time now.
    fn at(&self, now: Duration) -> Duration {
        self.gone.saturating_add(now.saturating_sub(self.seen))
    }

    fn advance(&mut self, now: Duration) -> Duration {
        self.gone = self.at(now);
        self.seen = now;
        self.gone
    }
}
