//! A budget of bytes that fills up evenly.

use std::time::Duration;

const HOUR: Duration = Duration::from_hours(1);
const DAY: Duration = Duration::from_hours(24);

/// What may be written: it fills up evenly with so many bytes a day, and holds an hour's worth, but at least a chunk.
/// It begins empty, so that a store that is opened again and again gets no more than one that stays open.
///
/// Its unit is a byte times the nanoseconds of a day, in which every nanosecond adds a whole number: nothing is rounded.
#[derive(Debug)]
pub(super) struct Budget {
    bytes_per_day: u64,
    /// What a chunk costs.
    chunk: u128,
    held_max: u128,
    held: u128,
    /// When it was last filled up, if it ever was.
    filled: Option<Duration>,
}

impl Budget {
    pub(super) fn new(bytes_per_day: u64, chunk_bytes: u64) -> Self {
        let chunk = u128::from(chunk_bytes) * DAY.as_nanos();
        let hour = u128::from(bytes_per_day) * HOUR.as_nanos();
        Self { bytes_per_day, chunk, held_max: hour.max(chunk), held: 0, filled: None }
    }

    /// Takes the bytes of up to `count` chunks out; returns how many chunks they are enough for.
    pub(super) fn take(&mut self, count: usize, now: Duration) -> usize {
        self.fill(now);
        // Chunks of no bytes cost nothing.
        let enough_for = self.held.checked_div(self.chunk).unwrap_or(u128::MAX);
        let count = count.min(usize::try_from(enough_for).unwrap_or(usize::MAX));
        self.held -= self.cost(count);
        count
    }

    /// Puts the bytes of chunks that were not written back. What is too much is cut off when it is filled next.
    pub(super) fn give_back(&mut self, count: usize) {
        self.held = self.held.saturating_add(self.cost(count));
    }

    /// Fills it up for the time since the last call. It begins with the first call. A clock that goes back adds nothing,
    /// and the filling goes on from there.
    fn fill(&mut self, now: Duration) {
        let since = self.filled.replace(now).map_or(Duration::ZERO, |filled| now.saturating_sub(filled));
        let added = since.as_nanos().saturating_mul(u128::from(self.bytes_per_day));
        self.held = self.held.saturating_add(added).min(self.held_max);
    }

    fn cost(&self, count: usize) -> u128 {
        self.chunk.saturating_mul(count as u128)
    }
}
