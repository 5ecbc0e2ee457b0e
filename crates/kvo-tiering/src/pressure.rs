//! What keeps slow tiers and waiting requests out of the way of requests that run.
//!
//! ```text
//!   a tier's way (writes, reads)          Gauge: smoothed seconds a MiB between two watermarks
//!     fast enough ── all jobs go ──▶        ├─ above the upper one some requests are left out, the more the slower
//!                                           └─ until it is below the lower one again
//!     fails, or does not answer ──────▶   Gate: shut for a pause, then one job tries
//!
//!   promotions                            Turns: so many slots for chunks that nobody has loaded yet, oldest request first
//! ```

mod gate;
mod gauge;
mod turns;

#[cfg(test)]
mod tests;

use std::time::Duration;

pub(crate) use self::{
    gate::Gate,
    gauge::Gauge,
    turns::{Grant, Turns},
};
use crate::TieringConfigError;

/// Bounds on what tiers and waiting requests may take from running ones, part of
/// [`TieringOptions`](crate::TieringOptions). Each can be left out by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PressureOptions {
    /// Percent of the primary's slots for chunks that were promoted, or are being, until a load of them is over. Of several
    /// requests, the oldest that waits may have that share, others only as long as half of it is left; one that is alone may
    /// have all slots. Each tier may have its part of the share on the way, and what it never brings, or does not let go,
    /// counts for that. Beyond it a lookup answers [`Retry`](kvo_core::LookupResult::Retry); where nothing comes back by
    /// itself, [`Miss`](kvo_core::LookupResult::Miss): a prefix is loaded as far as there is room. A request that loads or
    /// stores anything waits no more, and what was promoted for it beside that does not count.
    pub promotion_share: Option<u8>,
    /// How long a promoted chunk counts for that share if its request neither loads nor asks for what is not here; how long a
    /// chunk that was evicted before anyone had loaded it is not promoted again; and after how long a lookup is no longer the
    /// same as the one before, for its deadline.
    pub unread_max: Duration,
    /// Percent of the primary's slots that cascades may pin, in equal parts for the tiers, while there is more than one
    /// request. One job may always go.
    pub cascade_share: Option<u8>,
    /// How slow a tier may write before cascades to it are left out.
    pub writes: Option<Watermarks>,
    /// How slow a tier may read before its promotions are left out: what it has is then a miss for some requests.
    pub reads: Option<Watermarks>,
    /// How long a job may go unreported. Then its tier is fenced off, and the chunks that it was to bring are given up:
    /// their slots stay parked until the tier reports the job. It is longer than any deadline that the tier has itself.
    pub job_deadline: Option<Duration>,
    /// So many jobs that fail as a whole, or are not taken, one after the other fence a tier off, for writes or for reads.
    pub failures_max: Option<u32>,
    /// How long a tier is fenced off. Then one job tries it; a tier that fails again is fenced off twice as long,
    pub pause: Duration,
    /// and at most this long.
    pub pause_max: Duration,
    /// How long lookups of a chunk may answer [`Retry`](kvo_core::LookupResult::Retry) to a request that asks all the time.
    /// After that it is a miss for that request.
    pub lookup_deadline: Option<Duration>,
}

/// How slow one way of a tier may be: smoothed time from a job's submission to its report, for each MiB that it moves. A
/// job of less counts as one MiB, one that fails as if it had been as slow as the upper mark; jobs that are still open
/// count by their age.
///
/// Above the upper mark cascades are left out, and with each what the request stores behind it; or reads of requests: of as
/// many as the time lies between the marks, and at most nine of ten, so that it is known when the tier is fast again. That
/// lasts until the time is below the lower mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watermarks {
    /// Below this a tier is fast again.
    pub low: Duration,
    /// Above this it is slow.
    pub high: Duration,
}

impl PressureOptions {
    /// No bound at all, as in the recordings of the reference.
    pub const NONE: Self = Self {
        promotion_share: None,
        unread_max: Duration::from_secs(2),
        cascade_share: None,
        writes: None,
        reads: None,
        job_deadline: None,
        failures_max: None,
        pause: Duration::from_secs(1),
        pause_max: Duration::from_mins(1),
        lookup_deadline: None,
    };

    /// Whether a manager would take these options.
    ///
    /// # Errors
    /// [`TieringConfigError`] names the one that cannot be.
    pub fn check(&self) -> Result<(), TieringConfigError> {
        for (field, share) in
            [("promotion_share", self.promotion_share), ("cascade_share", self.cascade_share)]
        {
            if let Some(percent) = share.filter(|percent| !(1..=100).contains(percent)) {
                return Err(TieringConfigError::Share { field, percent });
            }
        }
        for (field, marks) in [("writes", self.writes), ("reads", self.reads)] {
            if let Some(Watermarks { low, high }) = marks.filter(|marks| marks.low >= marks.high) {
                return Err(TieringConfigError::Watermarks { field, low, high });
            }
        }
        let zeros = [
            ("unread_max", self.unread_max.is_zero()),
            ("job_deadline", self.job_deadline.is_some_and(|deadline| deadline.is_zero())),
            ("failures_max", self.failures_max == Some(0)),
            ("pause", self.pause.is_zero()),
            ("lookup_deadline", self.lookup_deadline.is_some_and(|deadline| deadline.is_zero())),
        ];
        if let Some((field, _)) = zeros.into_iter().find(|(_, is_zero)| *is_zero) {
            return Err(TieringConfigError::Zero { field });
        }
        if self.pause_max < self.pause {
            return Err(TieringConfigError::Pause { pause: self.pause, pause_max: self.pause_max });
        }
        Ok(())
    }
}

impl Default for PressureOptions {
    /// Half of the primary for promotions that are not loaded yet, and half for cascades; writes above 200 ms a MiB, reads
    /// above 400, until below a quarter of it; jobs have a minute, three failures fence a tier off, for a second at first;
    /// lookups have ten seconds.
    fn default() -> Self {
        let marks = |low_ms, high_ms| {
            Some(Watermarks { low: Duration::from_millis(low_ms), high: Duration::from_millis(high_ms) })
        };
        Self {
            promotion_share: Some(50),
            cascade_share: Some(50),
            writes: marks(50, 200),
            reads: marks(100, 400),
            job_deadline: Some(Duration::from_mins(1)),
            failures_max: Some(3),
            lookup_deadline: Some(Duration::from_secs(10)),
            ..Self::NONE
        }
    }
}
