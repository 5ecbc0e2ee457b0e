//! What the bytes of both memories are, and who uses them.

use std::ops::Range;

use kvo_core::{DeviceSpan, RegionId};

use super::super::rig::same;

/// Bytes beside a region that nothing may touch.
pub(super) const GUARD: usize = 64;

/// Uses of a byte: by nobody, by so many that read it, or by one that writes it.
const WRITTEN: u8 = 255;
const READERS_MAX: u8 = 200;

/// Bytes with their uses.
#[derive(Debug)]
pub(super) struct Memory {
    pub(super) bytes: Vec<u8>,
    uses: Vec<u8>,
}

impl Memory {
    pub(super) fn new(bytes: Vec<u8>) -> Self {
        Self { uses: vec![0; bytes.len()], bytes }
    }

    pub(super) fn can_read(&self, range: Range<usize>) -> bool {
        self.uses[range].iter().all(|uses| *uses < READERS_MAX)
    }

    pub(super) fn can_write(&self, range: Range<usize>) -> bool {
        self.uses[range].iter().all(|uses| *uses == 0)
    }

    pub(super) fn begin_read(&mut self, range: Range<usize>) {
        self.uses[range].iter_mut().for_each(|uses| *uses += 1);
    }

    pub(super) fn end_read(&mut self, range: Range<usize>) {
        self.uses[range].iter_mut().for_each(|uses| *uses -= 1);
    }

    pub(super) fn begin_write(&mut self, range: Range<usize>) {
        self.uses[range].fill(WRITTEN);
    }

    pub(super) fn end_write(&mut self, range: Range<usize>) {
        self.uses[range].fill(0);
    }

    #[track_caller]
    pub(super) fn is_unused(&self) {
        assert!(self.uses.iter().all(|uses| *uses == 0), "everything has ended, so nothing is used");
    }

    /// Compares a part of what was found to be there.
    #[track_caller]
    pub(super) fn check(&self, found: &[u8], range: Range<usize>, what: &str) {
        same(&found[range.clone()], &self.bytes[range], what);
    }
}

/// An allocation, a part of which is a region.
#[derive(Debug)]
pub(super) struct Area {
    /// All of it.
    pub(super) span: DeviceSpan,
    pub(super) region: RegionId,
    /// Whose compute uses it.
    pub(super) stream: usize,
    /// From the first byte of the allocation on; the region is all but the guards.
    pub(super) memory: Memory,
}

impl Area {
    pub(super) fn region_bytes(&self) -> usize {
        self.memory.bytes.len() - 2 * GUARD
    }

    pub(super) fn address(&self, place: usize) -> u64 {
        self.span.address() + place as u64
    }
}

/// A slot.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) memory: Memory,
    /// Transfers that read it.
    pub(super) readers: u32,
    pub(super) is_written: bool,
    /// The pattern that it begins with, if it was filled with one and not written since.
    pub(super) seed: Option<u64>,
}

impl Slot {
    pub(super) fn is_free(&self) -> bool {
        self.readers == 0 && !self.is_written
    }
}
