//! Counts of a device.

use kvo_core::{Direction, EdgeStats};

/// What a device has moved, as far as its owner has seen it end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceStats {
    /// GPU to CPU. A chunk is a slot that a transfer touched; failed transfers add neither chunks nor bytes.
    pub stores: EdgeStats,
    /// CPU to GPU, counted alike.
    pub loads: EdgeStats,
    /// Transfers that were submitted and not yet polled.
    pub inflight: usize,
}

impl DeviceStats {
    /// The counts of one direction.
    pub(crate) fn edge(&mut self, direction: Direction) -> &mut EdgeStats {
        match direction {
            Direction::Store => &mut self.stores,
            Direction::Load => &mut self.loads,
        }
    }
}
