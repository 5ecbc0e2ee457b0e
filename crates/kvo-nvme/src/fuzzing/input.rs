//! The bytes of the fuzzer, read as numbers; zeros behind their end.

use crate::format::SEAL_BYTES;

/// Whether `bytes`, which were `good` and would be `sealed` with the right seal, have it. One that was not touched is
/// wrong for all other bytes, whatever the function says that computes it; but the fuzzer sees what is compared, and
/// patches a right one in.
pub(super) fn is_sealed(good: &[u8], bytes: &[u8], sealed: &[u8]) -> bool {
    let seal = bytes.len() - SEAL_BYTES;
    if bytes[seal..] == good[seal..] { bytes == good } else { bytes == sealed }
}

pub(super) struct Input<'a> {
    bytes: &'a [u8],
}

impl<'a> Input<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }

    pub(super) fn is_at_end(&self) -> bool {
        self.bytes.is_empty()
    }

    fn take<const N: usize>(&mut self) -> [u8; N] {
        let (taken, rest) = self.bytes.split_at(N.min(self.bytes.len()));
        self.bytes = rest;
        let mut bytes = [0; N];
        bytes[..taken.len()].copy_from_slice(taken);
        bytes
    }

    pub(super) fn u8(&mut self) -> u8 {
        self.take::<1>()[0]
    }

    pub(super) fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.take())
    }

    pub(super) fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take())
    }

    pub(super) fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take())
    }

    /// A number below `bound`, which is not 0 and at most 256.
    pub(super) fn below(&mut self, bound: usize) -> usize {
        usize::from(self.u8()) % bound
    }

    pub(super) fn flag(&mut self) -> bool {
        self.u8() & 1 == 1
    }

    /// Writes a number of 1, 2, 4 or 8 bytes somewhere into `bytes`, or turns some bits there. Where fields begin and the
    /// numbers near to the largest are more likely than others.
    pub(super) fn patch(&mut self, bytes: &mut [u8]) {
        let how = self.u8();
        let width = 1 << (how & 3);
        let (turns, is_aligned, is_large) = (how & 4 != 0, how & 8 != 0, how & 16 != 0);
        let at = usize::from(self.u16()) % bytes.len();
        let at = if is_aligned { at / width * width } else { at };
        let value = match width {
            _ if is_large => u64::MAX - u64::from(self.u8()),
            1 => self.u8().into(),
            2 => self.u16().into(),
            4 => self.u32().into(),
            _ => self.u64(),
        };
        for (byte, new) in bytes[at..].iter_mut().zip(value.to_le_bytes()).take(width) {
            *byte = if turns { *byte ^ new } else { new };
        }
    }

    /// Some patches, as far as the input has them.
    pub(super) fn patches(&mut self, bytes: &mut [u8]) {
        for _ in 0..self.below(8) {
            self.patch(bytes);
        }
    }
}
