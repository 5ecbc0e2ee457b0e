//! How slow one way of a tier is.

use std::time::Duration;

use super::Watermarks;

/// The weight of a new job is one in so many.
const SMOOTHING: f64 = 8.0;
/// No more than so many of a thousand are left out.
const LEFT_OUT_MAX: f64 = 900.0;
/// No job counts as slower than so many times the upper mark: it would not be forgotten for long.
const MARKS_MAX: f64 = 2.0;
const MIB: f64 = 1024.0 * 1024.0;

/// Smoothed seconds a MiB, between two watermarks.
#[derive(Debug)]
pub(crate) struct Gauge {
    marks: Option<Watermarks>,
    per_mib: f64,
    is_slow: bool,
    /// Thousandths of one that is yet to be left out.
    due: u32,
}

impl Gauge {
    pub(crate) fn new(marks: Option<Watermarks>) -> Self {
        Self { marks, per_mib: 0.0, is_slow: false, due: 0 }
    }

    /// Smoothed time a MiB; 0 if it is not watched.
    pub(crate) fn per_mib(&self) -> Duration {
        Duration::try_from_secs_f64(self.per_mib).unwrap_or(Duration::MAX)
    }

    /// A job of so many bytes took so long.
    pub(crate) fn took(&mut self, bytes: u64, time: Duration) {
        if let Some(marks) = self.marks {
            self.smooth(per_mib(bytes, time).min(MARKS_MAX * marks.high.as_secs_f64()));
        }
    }

    /// Forgets how slow it was.
    pub(crate) fn restart(&mut self) {
        self.per_mib = 0.0;
        self.is_slow = false;
    }

    /// A job came to nothing.
    pub(crate) fn failed(&mut self) {
        if let Some(marks) = self.marks {
            self.smooth(self.per_mib.max(marks.high.as_secs_f64()));
        }
    }

    fn smooth(&mut self, sample: f64) {
        self.per_mib += (sample - self.per_mib) / SMOOTHING;
    }

    /// Whether the next request is to be left out. `oldest` is what the oldest open job has to move, and its age: a job
    /// that does not end tells as much as one that has.
    pub(crate) fn leaves_out(&mut self, oldest: Option<(u64, Duration)>) -> bool {
        let Some(Watermarks { low, high }) = self.marks else { return false };
        let (low, high) = (low.as_secs_f64(), high.as_secs_f64());
        let level = oldest.map_or(0.0, |(bytes, age)| per_mib(bytes, age)).max(self.per_mib);
        self.is_slow = level >= high || self.is_slow && level > low;
        if !self.is_slow {
            self.due = 0;
            return false;
        }
        let part = (1000.0 * (level - low) / (high - low)).min(LEFT_OUT_MAX);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "from 0 to 900")]
        let part = part as u32;
        self.due += part;
        let is_out = self.due >= 1000;
        self.due -= if is_out { 1000 } else { 0 };
        is_out
    }
}

fn per_mib(bytes: u64, time: Duration) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "a job has far less than 2^52 bytes")]
    let mib = (bytes as f64 / MIB).max(1.0);
    time.as_secs_f64() / mib
}
