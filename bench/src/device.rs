//! What a device costs beside its copies: plans, and copies through a device in host memory beside plain ones.
//!
//! No figure here is of a link or a GPU: they are of the processor, and called a model where they look like a device's.

mod copies;
mod plans;

use serde::Serialize;

pub use self::{
    copies::{CopiesResult, compare_copies, cpu_per_copy},
    plans::{PlanResult, Scatter, plan},
};
use crate::nvme::{Bound, Point};

/// How much is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct DevicePlan {
    /// Interleaved rounds, of which the median counts.
    pub rounds: u16,
    /// Bytes that a round copies.
    pub round_bytes: u64,
    /// Blocks a layer and plane that are planned.
    pub num_blocks: u32,
}

/// All figures of a run.
#[derive(Clone, Debug, Serialize)]
pub struct DeviceResults {
    /// How much was done.
    pub plan: DevicePlan,
    /// Of the planner.
    pub plans: Vec<PlanResult>,
    /// Of the device in host memory; a model.
    pub copies: Vec<CopiesResult>,
    /// CPU time of a copy of 64 bytes through that device, over all threads, in nanoseconds.
    pub cpu_per_copy_ns: f64,
}

impl DeviceResults {
    /// The figures that have a bound.
    pub fn points(&self) -> Vec<Point> {
        let plans = self.plans.iter().map(|plan| {
            let what = format!(
                "ns a copy that is planned, {} blocks, {} a chunk",
                plan.scatter, plan.blocks_per_chunk
            );
            Point::new(what, plan.ns_per_op, Bound::AtMost(10.0))
        });
        let counted = self.copies.iter().filter(|copies| copies.chunk_bytes >= 256 << 10);
        let copies = counted.map(|copies| {
            let what =
                format!("{} over plain copies, {} KiB (model)", copies.class, copies.chunk_bytes >> 10);
            Point::new(what, copies.ratio, Bound::AtLeast(0.9))
        });
        let cpu =
            Point::new("CPU ns a copy of 64 bytes (model)", self.cpu_per_copy_ns, Bound::AtMost(1000.0));
        plans.chain(copies).chain([cpu]).collect()
    }
}
