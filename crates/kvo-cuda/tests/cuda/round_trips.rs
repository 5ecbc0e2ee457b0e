//! What comes back.

use std::time::Duration;

use kvo_core::{ComputePoint, DeviceBackend, Transfer, TransferClass};
use kvo_cuda::{BatchUse, CopyPath, CudaOptions};
use kvo_fakecuda::Compute;

use crate::rig::{NUM_SLOTS, REGION_BYTES, Rig, SLOT_BYTES, favour, options, pattern, raw};

#[test]
fn a_slot_goes_to_the_device_and_another_comes_back_to_the_byte() {
    let mut rig = Rig::new();
    let after = rig.passed();
    rig.fill_slot(3, &pattern(1, SLOT_BYTES));
    let load = rig.submit(rig.one_slot(TransferClass::Demand, 3, after));
    rig.succeeds(load);
    assert_eq!(rig.on_device(0, SLOT_BYTES), pattern(1, SLOT_BYTES));
    assert_eq!(rig.on_device(SLOT_BYTES, 1), [0xA5], "the byte behind it is as it was");
    let store = rig.submit(rig.one_slot(TransferClass::Store, 4, after));
    rig.succeeds(store);
    assert_eq!(rig.slot(4), pattern(1, SLOT_BYTES));
    rig.is_clean();
}

#[test]
fn a_slot_is_free_as_soon_as_its_transfer_has_completed() {
    let mut rig = Rig::new();
    let after = rig.passed();
    for round in 0..200 {
        let slot = round % NUM_SLOTS;
        let store = rig.submit(rig.one_slot(TransferClass::Store, slot, after));
        rig.succeeds(store);
        rig.fill_slot(slot, &[1]);
    }
}

#[test]
fn a_copy_longer_than_a_window_goes_in_parts_and_comes_whole() {
    let small = CudaOptions { window_bytes: 10_000, quantum_bytes: 7_001, ..options() };
    let mut rig = Rig::with(small, |_| ());
    let after = rig.passed();
    rig.fill_device(0, &pattern(2, SLOT_BYTES));
    let store = rig.submit(rig.one_slot(TransferClass::Store, 0, after));
    rig.succeeds(store);
    assert_eq!(rig.slot(0), pattern(2, SLOT_BYTES));
    assert_eq!(rig.device.stats().paths.memcpy.copies, 10);
}

/// Numbers that look random.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// What random transfers are made from: `$KVO_SEED`, or the time.
fn seed() -> u64 {
    let given = std::env::var("KVO_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = given.unwrap_or_else(|| {
        std::time::SystemTime::UNIX_EPOCH.elapsed().map_or(1, |since| since.subsec_nanos().into())
    });
    eprintln!("KVO_SEED={seed}");
    seed
}

/// Blocks of the region: the lower half is written by compute and stored, the upper half is loaded and checked by
/// compute, each behind fences only. Both at once, with copies that fall where they may.
#[test]
fn random_transfers_beside_compute_come_to_the_byte() {
    let mut random = Random(seed());
    for path in CopyPath::ALL {
        let batches = BatchUse::Trusted;
        check_random(
            CudaOptions { table: Some(favour(path)), kernel_ctas: 3, batches, ..options() },
            &mut random,
        );
    }
}

#[track_caller]
fn check_random(options: CudaOptions, random: &mut Random) {
    let mut rig = Rig::with(options, |_| ());
    let engine = rig.stream();
    for round in 0..100_u64 {
        let bytes = 64 + random.below(SLOT_BYTES as u64 - 64);
        let at = random.below(REGION_BYTES as u64 / 2 - bytes);
        let delay = Duration::from_micros(random.below(300));
        // Compute writes what is stored; the store says nothing of time but the fence.
        let write = Compute::Write { address: rig.address + at, bytes, seed: round };
        rig.fake.enqueue(raw(&engine), write, delay).unwrap();
        let after = rig.fence_on(&engine);
        let slots = [random.below(8), 8 + random.below(8)].map(|slot| u32::try_from(slot).unwrap());
        let store = Transfer::new(TransferClass::Store, cut(&rig, random, at, slots[0], bytes), after);
        rig.fill_slot(slots[1], &pattern(!round, SLOT_BYTES));
        let to = REGION_BYTES as u64 / 2 + random.below(REGION_BYTES as u64 / 2 - bytes);
        let class = [TransferClass::Demand, TransferClass::Expedited, TransferClass::Prefetch];
        let class = class[usize::try_from(random.below(3)).unwrap()];
        let load = Transfer::new(class, cut(&rig, random, to, slots[1], bytes), after);
        rig.submit(store);
        rig.submit(load);
        rig.device.drain(crate::rig::LONG).unwrap();
        let mut done = Vec::new();
        rig.device.poll(&mut done);
        assert!(
            done.len() == 2 && done.iter().all(|done| done.result == Ok(bytes)),
            "round {round}: {done:?}"
        );
        let length = usize::try_from(bytes).unwrap();
        assert_eq!(rig.slot(slots[0])[..length], pattern(round, length), "round {round}");
        let check = Compute::Check { address: rig.address + to, bytes, seed: !round };
        rig.fake.enqueue(raw(&engine), check, Duration::ZERO).unwrap();
    }
    engine.synchronize().unwrap();
    rig.is_clean();
}

/// The bytes as up to 41 copies of random lengths, in no order.
fn cut(rig: &Rig, random: &mut Random, at: u64, slot: u32, bytes: u64) -> Vec<kvo_core::CopyOp> {
    let mut borders: Vec<u64> = (0..random.below(40)).map(|_| random.below(bytes)).collect();
    borders.extend([0, bytes]);
    borders.sort_unstable();
    borders.dedup();
    let mut ops: Vec<_> =
        borders.windows(2).map(|pair| rig.op(at + pair[0], slot, pair[0], pair[1] - pair[0])).collect();
    for last in (1..ops.len()).rev() {
        ops.swap(last, usize::try_from(random.below(last as u64 + 1)).unwrap());
    }
    ops
}

#[test]
fn a_mark_can_be_waited_for_by_a_stream_before_the_copies_are_over() {
    let mut rig = Rig::new();
    let (before, engine) = (rig.stream(), rig.stream());
    for slot in 0..3 {
        rig.fill_slot(slot, &pattern(u64::from(slot), SLOT_BYTES));
    }
    // The engine's compute before the load is not over; so nothing can be copied yet.
    rig.fake.hold(kvo_fakecuda::Hold::Stream(raw(&before)));
    rig.fake.enqueue(raw(&before), Compute::Nothing, Duration::ZERO).unwrap();
    let after = rig.fence_on(&before);
    let ops = (0..3).map(|slot| rig.op(u64::from(slot) << 16, slot, 0, SLOT_BYTES as u64)).collect();
    let load = Transfer { marks: vec![1, 3], ..Transfer::new(TransferClass::Demand, ops, after) };
    let ticket = rig.submit(load);
    for (mark, slots) in [(0, 0..1), (1, 1..3)] {
        let handle = rig.handle(&engine);
        crate::rig::until(|| {
            rig.device.order_after(ticket, mark, handle).unwrap() == kvo_core::MarkOrder::Ordered
        });
        for slot in slots {
            let address = rig.address + (slot << 16);
            let check = Compute::Check { address, bytes: SLOT_BYTES as u64, seed: slot };
            rig.fake.enqueue(raw(&engine), check, Duration::ZERO).unwrap();
        }
    }
    rig.nothing_ends();
    rig.fake.release(kvo_fakecuda::Hold::All);
    rig.succeeds(ticket);
    engine.synchronize().unwrap();
    rig.is_clean();
    let handle = rig.handle(&engine);
    assert_eq!(rig.device.order_after(ticket, 1, handle), Ok(kvo_core::MarkOrder::Ended));
    assert!(matches!(
        rig.device.record_fence(ComputePoint::Stream(rig.no_handle())),
        Err(kvo_core::FenceError::UnknownHandle { raw: 0xDEAD_0000 })
    ));
}
