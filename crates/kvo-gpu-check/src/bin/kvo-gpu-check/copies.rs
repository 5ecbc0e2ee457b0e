//! Copies through a device, and how long they take.

use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use kvo_core::{
    ComputePoint, CopyOp, Direction, Fence, RegionId, SlotId, StreamHandle, Ticket, Transfer, TransferClass,
    TransferCompletion,
};
use kvo_cuda::{CopyPath, HostMode, PathCount, PathUse};
use kvo_gpu_check::{BedOptions, CudaBed, TestBed};

use crate::ground::Ground;

/// How long copies may take that end at all.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Bytes of a transfer, of which many are under way.
const TRANSFER_BYTES: u64 = 16 << 20;

/// Fragments that lie side by side, and are one copy, where they are coalesced.
const RUN: u64 = 16;

/// How fragments lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scatter {
    /// Each anywhere, on both sides.
    Scattered,
    /// Sixteen side by side, which the planner makes one copy of.
    Coalesced,
    /// At constant steps, as the pages of a block are.
    Steps,
}

impl Scatter {
    pub(crate) const ALL: [Self; 3] = [Self::Scattered, Self::Coalesced, Self::Steps];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Scattered => "scattered",
            Self::Coalesced => "coalesced",
            Self::Steps => "steps",
        }
    }
}

/// Fragments on both sides.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fragments {
    pub(crate) scatter: Scatter,
    /// Of one.
    pub(crate) bytes: u64,
    /// Of all.
    pub(crate) total: u64,
    /// Of those of one transfer, which has its slots to itself.
    pub(crate) transfer: u64,
}

impl Fragments {
    /// Copies of them all, those of a transfer side by side. The host has twice as many bytes, in slots of `slot_bytes`.
    /// All numbers are powers of two.
    fn ops(self, region: RegionId, slot_bytes: u64) -> Vec<CopyOp> {
        let bytes = match self.scatter {
            Scatter::Coalesced => (self.bytes * RUN).min(slot_bytes).min(self.transfer),
            Scatter::Scattered | Scatter::Steps => self.bytes,
        };
        let per_transfer = self.transfer / bytes;
        let places = |factor: u64| match self.scatter {
            Scatter::Steps => (0..self.total / bytes).map(|nth| nth * factor).collect::<Vec<u64>>(),
            Scatter::Scattered | Scatter::Coalesced => (0..self.total / self.transfer)
                .flat_map(|nth| {
                    let first = nth * per_transfer * factor;
                    let places = shuffled(per_transfer * factor, nth * 2 + factor).into_iter();
                    places
                        .take(usize::try_from(per_transfer).unwrap_or(usize::MAX))
                        .map(move |place| first + place)
                })
                .collect(),
        };
        let op = |(device, host): (&u64, &u64)| CopyOp {
            region,
            device_offset: device * bytes,
            slot: SlotId(u32::try_from(host * bytes / slot_bytes).expect("slots are few")),
            slot_offset: host * bytes % slot_bytes,
            bytes,
        };
        places(1).iter().zip(&places(2)).map(op).collect()
    }
}

/// The numbers below `num` in an order that follows from a seed.
fn shuffled(num: u64, mut seed: u64) -> Vec<u64> {
    let mut numbers: Vec<u64> = (0..num).collect();
    for last in (1..numbers.len()).rev() {
        // SplitMix64.
        seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = seed;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let other = (mixed ^ (mixed >> 31)) % (last as u64 + 1);
        numbers.swap(last, usize::try_from(other).expect("it is below the length"));
    }
    numbers
}

/// A device with memory attached, and a stream whose compute is over.
pub(crate) struct Rig {
    pub(crate) bed: CudaBed,
    pub(crate) address: u64,
    pub(crate) stream: StreamHandle,
    region: RegionId,
    slot_bytes: u64,
    /// Of the device's memory; the host has twice as many.
    total: u64,
    transfer: u64,
}

impl Rig {
    /// With `total` bytes on the device and twice as many in slots of `slot_bytes`, whatever else `options` are; in
    /// transfers of 16 MiB.
    pub(crate) fn new(
        ground: &Ground,
        total: u64,
        slot_bytes: u64,
        options: BedOptions,
    ) -> anyhow::Result<Self> {
        let options = BedOptions {
            num_slots: u32::try_from(2 * total / slot_bytes)?,
            slot_bytes: usize::try_from(slot_bytes)?,
            is_poisoned: false,
            ..options
        };
        let mut bed = ground.beds().make_cuda(&options);
        let span = bed.allocate(total);
        let region = bed.device().attach(span)?;
        let stream = bed.create_stream();
        let transfer = TRANSFER_BYTES.min(total);
        Ok(Self { bed, address: span.address(), stream, region, slot_bytes, total, transfer })
    }

    /// In transfers of that length.
    pub(crate) fn with_transfers(self, transfer: u64) -> Self {
        assert!(2 * transfer >= self.slot_bytes, "a transfer has its slots to itself");
        Self { transfer, ..self }
    }

    /// Why a way is not used, if it is not.
    pub(crate) fn why_not(&self, path: CopyPath) -> Option<String> {
        let stats = self.bed.cuda().stats();
        if let HostMode::Pageable { code } = stats.host {
            return Some(format!("the host memory is not registered: {code}"));
        }
        let path_use = match path {
            CopyPath::Memcpy => PathUse::On,
            CopyPath::Rows => stats.paths.rows_use,
            CopyPath::Batch => stats.paths.batch_use,
            CopyPath::Kernel => stats.paths.kernel_use,
        };
        (path_use != PathUse::On).then(|| format!("the device does not use it: {path_use:?}"))
    }

    /// What went one way so far.
    pub(crate) fn count(&self, path: CopyPath) -> PathCount {
        let paths = self.bed.cuda().stats().paths;
        match path {
            CopyPath::Memcpy => paths.memcpy,
            CopyPath::Rows => paths.rows,
            CopyPath::Batch => paths.batch,
            CopyPath::Kernel => paths.kernel,
        }
    }

    pub(crate) fn ops(&self, scatter: Scatter, bytes: u64) -> Vec<CopyOp> {
        Fragments { scatter, bytes, total: self.total, transfer: self.transfer }
            .ops(self.region, self.slot_bytes)
    }

    pub(crate) fn fence(&mut self) -> anyhow::Result<Fence> {
        let point = ComputePoint::Stream(self.stream);
        Ok(self.bed.device().record_fence(point)?)
    }

    pub(crate) fn submit(&mut self, class: TransferClass, ops: Vec<CopyOp>) -> anyhow::Result<Ticket> {
        let after = self.fence()?;
        self.submit_after(class, ops, after)
    }

    pub(crate) fn submit_after(
        &mut self,
        class: TransferClass,
        ops: Vec<CopyOp>,
        after: Fence,
    ) -> anyhow::Result<Ticket> {
        let transfer = Transfer::new(class, ops, after);
        Ok(self.bed.device().submit(transfer).map_err(|error| error.reason)?)
    }

    /// Copies of [`ops`](Self::ops) by transfer. No two store to the same slot.
    pub(crate) fn transfers(&self, ops: &[CopyOp]) -> anyhow::Result<Vec<Vec<CopyOp>>> {
        let per_transfer = usize::try_from(self.transfer / ops.first().context("no copies")?.bytes)?.max(1);
        Ok(ops.chunks(per_transfer).map(<[CopyOp]>::to_vec).collect())
    }

    /// Makes copies, and says how long they took from the first call to the last completion.
    pub(crate) fn copy(&mut self, direction: Direction, ops: &[CopyOp]) -> anyhow::Result<Duration> {
        let class = class_of(direction);
        let transfers = self.transfers(ops)?;
        let (start, after) = (Instant::now(), self.fence()?);
        for ops in transfers {
            self.submit_after(class, ops, after)?;
        }
        self.bed.device().drain(PATIENCE)?;
        let took = start.elapsed();
        self.take_all()?;
        Ok(took)
    }

    /// Takes what has ended; all of it well.
    pub(crate) fn take_all(&mut self) -> anyhow::Result<Vec<TransferCompletion>> {
        let mut done = Vec::new();
        self.bed.device().poll(&mut done);
        good(done)
    }

    /// Waits until a transfer has ended, and says how many others did meanwhile.
    pub(crate) fn wait_for(&mut self, ticket: Ticket) -> anyhow::Result<usize> {
        let (start, mut num_others) = (Instant::now(), 0);
        while start.elapsed() < PATIENCE {
            let mut done = Vec::new();
            self.bed.device().wait(Duration::from_secs(1), &mut done);
            let done = good(done)?;
            if done.iter().any(|completion| completion.ticket == ticket) {
                return Ok(num_others + done.len() - 1);
            }
            num_others += done.len();
        }
        bail!("a transfer did not end in {PATIENCE:?}")
    }
}

fn good(done: Vec<TransferCompletion>) -> anyhow::Result<Vec<TransferCompletion>> {
    for completion in &done {
        ensure!(completion.result.is_ok() && !completion.held, "a transfer failed: {completion:?}");
    }
    Ok(done)
}

pub(crate) fn class_of(direction: Direction) -> TransferClass {
    match direction {
        Direction::Store => TransferClass::Store,
        Direction::Load => TransferClass::Demand,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[track_caller]
    fn check(scatter: Scatter, bytes: u64, expected_bytes: u64) {
        let (total, transfer, slot_bytes) = (1 << 20, 256 << 10, 128 << 10);
        let ops = Fragments { scatter, bytes, total, transfer }.ops(RegionId(0), slot_bytes);
        assert_eq!(ops.iter().map(|op| op.bytes).sum::<u64>(), total);
        assert!(ops.iter().all(|op| op.bytes == expected_bytes && op.slot_offset + op.bytes <= slot_bytes));
        let on_device: BTreeSet<u64> = ops.iter().map(|op| op.device_offset).collect();
        let on_host: BTreeSet<(u32, u64)> = ops.iter().map(|op| (op.slot.0, op.slot_offset)).collect();
        assert_eq!((on_device.len(), on_host.len()), (ops.len(), ops.len()), "no two on the same bytes");
        assert!(on_device.last().unwrap() + expected_bytes <= total);
        assert!(on_host.last().unwrap().0 < 16);
        let mut owners = std::collections::BTreeMap::new();
        for (nth, op) in ops.iter().enumerate() {
            let transfer = nth as u64 * op.bytes / transfer;
            assert_eq!(*owners.entry(op.slot).or_insert(transfer), transfer, "a slot is of one transfer");
        }
    }

    #[test]
    fn fragments_fill_the_device_and_no_two_share_bytes() {
        for bytes in [4096, 65_536] {
            check(Scatter::Scattered, bytes, bytes);
            check(Scatter::Steps, bytes, bytes);
        }
        check(Scatter::Coalesced, 4096, 65_536);
        // A copy ends with its slot.
        check(Scatter::Coalesced, 65_536, 131_072);
    }

    #[test]
    fn steps_are_constant_on_both_sides() {
        let ops = Fragments { scatter: Scatter::Steps, bytes: 4096, total: 1 << 20, transfer: 256 << 10 };
        let ops = ops.ops(RegionId(0), 256 << 10);
        let place = |op: &CopyOp| (op.device_offset, u64::from(op.slot.0) * (256 << 10) + op.slot_offset);
        for pair in ops.windows(2) {
            let (one, next) = (place(&pair[0]), place(&pair[1]));
            assert_eq!((next.0 - one.0, next.1 - one.1), (4096, 8192));
        }
    }
}
