//! What is left of a device that has failed. These cases break the device for good.

use std::time::{Duration, Instant};

use kvo_core::{
    AttachError, ComputePoint, DeviceHealth, FenceError, HostMemory, MarkOrder, SlotId, SubmitErrorReason,
    Ticket, TransferClass, TransferFailure,
};

use super::rig::{Ground, NUM_SLOTS, Rig, SLOT, same};
use crate::{
    bed::{BedMaker, BedOptions},
    host::HostBeds,
    pattern,
};

/// Has a kernel fault before a fence, with a transfer of each class behind it.
fn die(rig: &mut Rig<'_>) -> Vec<Ticket> {
    let stream = rig.stream;
    let hold = rig.hold();
    rig.bed.fault(stream);
    let behind = rig.fence();
    let classes = TransferClass::ALL.into_iter().cycle().zip(0..12_u32);
    let open = classes.map(|(class, nth)| rig.start(class, u64::from(nth), nth, behind)).collect();
    rig.nothing_ends();
    hold.open();
    open
}

pub(super) fn a_fault_of_a_kernel_fails_each_open_ticket_once(ground: &Ground<'_>) {
    let mut rig = ground.rig();
    let free = rig.bed.allocate(SLOT);
    rig.fill_block(20, 2);
    let passed = rig.fence();
    let before = rig.start(TransferClass::Store, 20, 15, passed);
    rig.succeed(&[before]);
    let mut open = die(&mut rig);
    let done = rig.ends(&open);
    let health = rig.device().health();
    let DeviceHealth::Dead { code } = health else { panic!("the device is {health:?}, not dead") };
    for done in &done {
        assert_eq!(done.result, Err(TransferFailure::Device { code }), "{done:?}");
    }
    let mut ended: Vec<_> = done.iter().map(|done| done.ticket).collect();
    ended.sort_unstable();
    open.sort_unstable();
    assert_eq!(ended, open, "each ends once");

    // What is called from now on does nothing, and says so at once.
    let start = Instant::now();
    let long = Duration::from_secs(30);
    assert_eq!(rig.wait(long), []);
    assert_eq!(rig.device().drain(long), Ok(()));
    assert!(start.elapsed() < Duration::from_secs(2), "nobody waits for a dead device");
    let transfer = rig.transfer(TransferClass::Store, 20, 14, passed);
    let error = rig.device().submit(transfer.clone()).expect_err("a dead device takes none");
    assert_eq!((error.reason, error.transfer), (SubmitErrorReason::Unhealthy(health), transfer));
    let (stream, region) = (rig.stream, rig.region);
    let fence = rig.device().record_fence(ComputePoint::Stream(stream));
    assert_eq!(fence, Err(FenceError::Unhealthy(health)));
    assert_eq!(rig.device().attach(free), Err(AttachError::Unhealthy(health)));
    let order = rig.device().order_after(before, 0, stream);
    assert!(order == Err(FenceError::Unhealthy(health)) || order == Ok(MarkOrder::Ended), "{order:?}");
    let detached = rig.device().detach(region);
    assert!(matches!(detached, Ok(()) | Err(AttachError::InUse { .. })), "{detached:?}");
    assert_eq!(rig.wait(Duration::ZERO), []);
}

pub(super) fn memory_and_other_devices_outlive_a_dead_one(ground: &Ground<'_>) {
    let mut beside = HostBeds.make(&BedOptions::default());
    let (span, stream) = (beside.allocate(SLOT), beside.create_stream());
    let region = beside.device().attach(span).expect("memory of the bed");

    let mut rig = ground.rig();
    let host = rig.bed.host();
    rig.fill_block(20, 3);
    let passed = rig.fence();
    let before = rig.start(TransferClass::Store, 20, 15, passed);
    rig.succeed(&[before]);
    let open = die(&mut rig);
    let done = rig.ends(&open);
    let mut released = Vec::new();
    rig.device().take_released(&mut released);
    // The tiers live on: what was stored is there, and all slots can be used that the device may not still touch.
    same(&rig.slot(15), &pattern(3, rig.slot(15).len()), "what was stored before");
    let is_kept = |slot: u32| done.iter().any(|done| done.held && done.ticket == open[slot as usize]);
    for slot in (0..NUM_SLOTS).filter(|slot| *slot >= 12 || !is_kept(*slot)) {
        assert_eq!(host.with_write(SlotId(slot), &mut |_| ()), Ok(()), "slot {slot}");
    }

    beside.fill(stream, span.address(), SLOT, 4);
    let after = beside.device().record_fence(ComputePoint::Stream(stream)).expect("another device");
    let op = kvo_core::CopyOp { region, slot: SlotId(0), ..rig.op(0, 0, 0, SLOT) };
    let store = kvo_core::Transfer::new(TransferClass::Store, vec![op], after);
    let ticket = beside.device().submit(store).expect("another device");
    let mut done = Vec::new();
    beside.device().wait(rig.patience(), &mut done);
    assert_eq!(done.first().map(|done| (done.ticket, done.result.clone())), Some((ticket, Ok(SLOT))));
}
