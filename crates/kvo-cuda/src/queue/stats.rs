//! Counts of a device.

use std::time::Duration;

use kvo_core::{Direction, EdgeStats};

use super::entry::Entry;

/// What a device has moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceStats {
    /// GPU to CPU. A chunk is a slot that a transfer touched; failed transfers add neither chunks nor bytes.
    pub stores: EdgeStats,
    /// CPU to GPU, counted alike.
    pub loads: EdgeStats,
    /// Transfers that were submitted and not yet polled.
    pub inflight: usize,
    /// Failed transfers whose slots and blocks the device may still touch.
    pub held: usize,
    /// Whether times are those of a model, and say nothing of any hardware.
    pub is_model: bool,
}

impl DeviceStats {
    /// The counts of one direction.
    fn edge(&mut self, direction: Direction) -> &mut EdgeStats {
        match direction {
            Direction::Store => &mut self.stores,
            Direction::Load => &mut self.loads,
        }
    }

    /// A transfer has ended.
    pub(super) fn count(&mut self, entry: &Entry, now: Duration) {
        let edge = self.edge(entry.class.direction());
        edge.time += now.saturating_sub(entry.submitted);
        if entry.failure.is_some() {
            edge.jobs_failed += 1;
        } else {
            edge.jobs_done += 1;
            edge.chunks += entry.size.num_chunks;
            edge.bytes += entry.size.bytes;
        }
    }
}
