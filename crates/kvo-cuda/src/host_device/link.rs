//! How fast a link would be.

use std::time::Duration;

use super::HostDeviceError;

/// A model of the link between a GPU and the host, the same in both directions, which do not slow one another down.
/// Copies never end before it says. What is measured over it is a model, and no property of any hardware.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkModel {
    /// Bytes a nanosecond, that is GB/s; more than 0.
    pub gb_per_s: f64,
    /// What the first piece of a transfer takes besides, in microseconds; at least 0.
    pub transfer_us: f64,
    /// What each copy takes besides, in microseconds; at least 0.
    pub op_us: f64,
}

impl LinkModel {
    /// A link with this bandwidth and no latency.
    pub fn new(gb_per_s: f64) -> Self {
        Self { gb_per_s, transfer_us: 0.0, op_us: 0.0 }
    }

    pub(super) fn check(&self) -> Result<(), HostDeviceError> {
        let ok = |number: f64| number.is_finite() && number >= 0.0;
        if !ok(self.gb_per_s) || self.gb_per_s == 0.0 {
            return Err(HostDeviceError::Zero { field: "link.gb_per_s" });
        }
        let latencies = [("link.transfer_us", self.transfer_us), ("link.op_us", self.op_us)];
        let wrong = latencies.into_iter().find(|(_, us)| !ok(*us));
        wrong.map_or(Ok(()), |(field, us)| Err(HostDeviceError::Latency { field, us }))
    }

    /// How long a piece of so many bytes in so many copies is on the link.
    pub(super) fn time(&self, bytes: u64, num_ops: usize, is_first: bool) -> Duration {
        let latency = if is_first { self.transfer_us } else { 0.0 } + self.op_us * num_ops as f64;
        Duration::try_from_secs_f64(bytes as f64 / self.gb_per_s / 1e9 + latency / 1e6)
            .unwrap_or(Duration::MAX)
    }
}
