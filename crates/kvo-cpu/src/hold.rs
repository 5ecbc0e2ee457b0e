//! Slots held for transfers between the primary and other tiers.

use kvo_core::{OffloadKey, OwnerId, SlotId};

/// One slot held for a tier's transfer: a pin on a ready chunk that a tier reads (a cascade), or a reserved slot that
/// a tier writes (a promotion). No access of any request.
///
/// It cannot be copied, and [`CpuManager::release`](crate::CpuManager::release) takes it by value. Its slot is not
/// used for anything else until then, even across a reset.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a hold that is never released keeps its slot for ever"]
pub struct TierHold {
    pub(crate) owner: OwnerId,
    pub(crate) generation: u64,
    pub(crate) key: OffloadKey,
    pub(crate) slot: SlotId,
    pub(crate) kind: HoldKind,
}

/// What a hold is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HoldKind {
    /// A tier reads the chunk.
    Cascade,
    /// A tier writes the chunk.
    Promotion,
}

impl TierHold {
    /// The chunk.
    pub fn key(&self) -> OffloadKey {
        self.key
    }

    /// Its slot.
    pub fn slot(&self) -> SlotId {
        self.slot
    }

    /// What the hold is for.
    pub fn kind(&self) -> HoldKind {
        self.kind
    }
}

/// What became of a hold's chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Released {
    /// It is ready and keeps its slot.
    Ready,
    /// Its promotion failed; the slot is free.
    Freed,
    /// The manager was reset since; the parked slot is free again.
    Unparked,
    /// Another manager made the hold: nothing has changed.
    Foreign,
}
