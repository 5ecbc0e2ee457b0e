//! What the driver reports.

use crate::{tally_kinds as kinds, wire::Item};

/// What has been done since the reset, and what there is now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Copied from the host.
    pub bytes_to_device: u64,
    /// Copied to the host.
    pub bytes_to_host: u64,
    /// Copied within a device, or within the host.
    pub bytes_on_device: u64,
    /// Contiguous copies that were made: a row, a member of a batch, or one alone.
    pub copies: u64,
    /// Copies from or to host memory that no one had registered.
    pub pageable_copies: u64,
    /// Batches that were looked at.
    pub batches: u64,
    /// Their members, as far as they were queued.
    pub batch_members: u64,
    /// Kernels that ran.
    pub launches: u64,
    /// Streams that are not destroyed.
    pub streams: u64,
    /// Events that are not destroyed.
    pub events: u64,
    /// Allocations of all devices.
    pub allocations: u64,
    /// Stretches of the host's memory that are registered, or allocated by the driver.
    pub registrations: u64,
    /// Modules that are loaded.
    pub modules: u64,
    /// Claims to primary contexts.
    pub retains: u64,
}

/// What no program may do, and a real driver would not tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Violation {
    /// Somebody wrote outside of an allocation.
    RedZone {
        /// The allocation.
        allocation: u64,
        /// The first byte that is wrong.
        address: u64,
    },
    /// A kernel read or wrote outside of an allocation, near enough not to fault.
    KernelInRedZone {
        /// The allocation.
        allocation: u64,
        /// The access.
        address: u64,
        /// Its length.
        bytes: u64,
    },
    /// Host memory was unregistered while work that touches it was not over.
    UnregisteredInFlight {
        /// The registration.
        start: u64,
        /// Its length.
        bytes: u64,
    },
    /// Two members of a batch touch the same bytes, and one writes them.
    BatchOverlap {
        /// A member.
        member: u64,
        /// Another, or the same.
        other: u64,
        /// Where the written bytes start.
        address: u64,
    },
    /// A host function called the driver.
    HostFunctionCalls,
}

impl Violation {
    pub(super) fn from_item(item: Item) -> Self {
        let [first, second, third, ..] = item.numbers;
        match item.kind {
            kinds::RED_ZONE => Self::RedZone { allocation: first, address: second },
            kinds::KERNEL_RED_ZONE => {
                Self::KernelInRedZone { allocation: first, address: second, bytes: third }
            }
            kinds::UNREGISTERED_IN_FLIGHT => Self::UnregisteredInFlight { start: first, bytes: second },
            kinds::BATCH_OVERLAP => Self::BatchOverlap { member: first, other: second, address: third },
            _ => Self::HostFunctionCalls,
        }
    }
}

/// A byte that was not as [`Compute::Check`](crate::Compute::Check) wanted it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// Where the check started.
    pub address: u64,
    /// The pattern.
    pub seed: u64,
    /// Which byte is the first that differs.
    pub index: u64,
    /// What it should be.
    pub expected: u8,
    /// What it is.
    pub found: u8,
}

impl Mismatch {
    pub(super) fn from_item(item: Item) -> Self {
        let [address, seed, index, expected, found] = item.numbers;
        let byte = |number: u64| u8::try_from(number).unwrap_or(0);
        Self { address, seed, index, expected: byte(expected), found: byte(found) }
    }
}

/// What was left in a context, with its handle or address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Leak {
    /// A stream.
    Stream(u64),
    /// An event.
    Event(u64),
    /// Memory of the device.
    Allocation(u64),
    /// Memory of the host.
    Registration(u64),
    /// A module.
    Module(u64),
}

impl Leak {
    pub(super) fn from_item(item: Item) -> Self {
        let handle = item.numbers[0];
        match item.kind {
            kinds::LEAKED_STREAM => Self::Stream(handle),
            kinds::LEAKED_EVENT => Self::Event(handle),
            kinds::LEAKED_ALLOCATION => Self::Allocation(handle),
            kinds::LEAKED_REGISTRATION => Self::Registration(handle),
            _ => Self::Module(handle),
        }
    }
}

/// What kind of work ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RanKind {
    /// A copy to the device.
    ToDevice,
    /// A copy to the host.
    ToHost,
    /// Another copy.
    Copy,
    /// A fill.
    Fill,
    /// A model of a compute kernel.
    Compute,
    /// A kernel.
    Launch,
}

/// A piece of work that a stream has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ran {
    /// Of which kind it was.
    pub kind: RanKind,
    /// The stream's handle.
    pub stream: u64,
    /// Where it wrote, or what it ran.
    pub to: u64,
    /// What a copy read.
    pub from: u64,
    /// How much.
    pub bytes: u64,
}

impl Ran {
    pub(super) fn from_item(item: Item) -> Self {
        let [stream, to, from, bytes, _] = item.numbers;
        let kind = match item.kind {
            kinds::RAN_TO_DEVICE => RanKind::ToDevice,
            kinds::RAN_TO_HOST => RanKind::ToHost,
            kinds::RAN_COPY => RanKind::Copy,
            kinds::RAN_FILL => RanKind::Fill,
            kinds::RAN_COMPUTE => RanKind::Compute,
            _ => RanKind::Launch,
        };
        Self { kind, stream, to, from, bytes }
    }
}
