//! What a device refuses, and that nothing has changed then.

use kvo_core::{
    AttachError, ComputePoint, CopyOp, DeviceHealth, Fence, FenceError, MarkOrder, OwnerId, RegionId,
    SubmitErrorReason, Transfer, TransferClass,
};

use super::rig::{Ground, NUM_BLOCKS, NUM_SLOTS, Rig, SLOT, same};
use crate::{bed::BedOptions, handles, pattern};

/// It is refused for that, and handed back.
#[track_caller]
fn refuses(rig: &mut Rig<'_>, transfer: &Transfer, reason: &SubmitErrorReason) {
    match rig.device().submit(transfer.clone()) {
        Ok(ticket) => panic!("ticket {} was given, not {reason:?}", ticket.0),
        Err(error) => assert_eq!((&error.reason, &error.transfer), (reason, transfer)),
    }
}

pub(super) fn a_full_device_hands_the_transfer_back_until_a_completion_is_polled(ground: &Ground<'_>) {
    let mut rig = ground.rig_with(&BedOptions { inflight_max: 3, ..ground.options() });
    let patience = rig.patience();
    let hold = rig.hold();
    rig.fill_block(0, 4);
    let after = rig.fence();
    let open = [0, 1, 2].map(|slot| rig.start(TransferClass::Store, 0, slot, after));
    let fourth = rig.transfer(TransferClass::Store, 0, 3, after);
    let full = SubmitErrorReason::Full { inflight: 3, inflight_max: 3 };
    refuses(&mut rig, &fourth, &full);
    rig.nothing_ends();
    hold.open();
    assert_eq!(rig.device().drain(patience), Ok(()));
    refuses(&mut rig, &fourth, &full);
    rig.succeed(&open);
    let fourth = rig.submit(fourth);
    rig.succeed(&[fourth]);
    same(&rig.slot(3), &pattern(4, rig.slot(3).len()), "the one that was handed back");
}

/// B43: each copy is looked at for itself, and none leaves its slot or its region.
pub(super) fn a_refused_transfer_is_handed_back_and_changes_nothing(ground: &Ground<'_>) {
    let (mut rig, mut other) = (ground.rig(), ground.rig());
    let (after, foreign) = (rig.fence(), other.fence());
    let unknown = Fence::new(after.device(), after.sequence() + 1);
    let (gone, there) = (RegionId(rig.region.0 + 1), rig.op(0, 0, 0, SLOT));
    let region_bytes = NUM_BLOCKS * SLOT;
    let store = |ops: Vec<CopyOp>| Transfer::new(TransferClass::Store, ops, after);
    let load = |ops: Vec<CopyOp>| Transfer::new(TransferClass::Prefetch, ops, after);
    let good = rig.op(SLOT, 1, 0, SLOT);
    let bounds = SubmitErrorReason::OutOfBounds { index: 1 };
    let beyond = [
        CopyOp { device_offset: region_bytes - 1, bytes: 2, ..there },
        CopyOp { device_offset: u64::MAX, bytes: 1, ..there },
        CopyOp { slot_offset: SLOT - 1, bytes: 2, ..there },
        CopyOp { slot_offset: u64::MAX, bytes: 1, ..there },
        CopyOp { slot: kvo_core::SlotId(NUM_SLOTS), ..there },
        CopyOp { bytes: 0, ..there },
        CopyOp { bytes: u64::MAX, ..there },
    ];
    let mut refused = vec![
        (Transfer { after: foreign, ..store(vec![good]) }, SubmitErrorReason::ForeignFence),
        (
            Transfer { after: Fence::new(OwnerId::unique(), 0), ..load(vec![good]) },
            SubmitErrorReason::ForeignFence,
        ),
        (Transfer { after: unknown, ..store(vec![good]) }, SubmitErrorReason::UnknownFence),
        (store(vec![]), SubmitErrorReason::Empty),
        (Transfer { marks: vec![2], ..load(vec![good]) }, SubmitErrorReason::Marks { index: 0 }),
        (Transfer { marks: vec![1, 0], ..load(vec![good, there]) }, SubmitErrorReason::Marks { index: 1 }),
        (load(vec![good, CopyOp { region: gone, ..there }]), SubmitErrorReason::UnknownRegion { index: 1 }),
        // Two that write the same byte: of a slot, of a block.
        (store(vec![good, rig.op(0, 1, SLOT - 1, 1)]), SubmitErrorReason::Overlap { index: 1 }),
        (load(vec![good, rig.op(2 * SLOT - 1, 0, 0, 1)]), SubmitErrorReason::Overlap { index: 1 }),
    ];
    for op in beyond {
        refused
            .extend([store(vec![good, op]), load(vec![good, op])].map(|transfer| (transfer, bounds.clone())));
    }
    for (transfer, reason) in &refused {
        refuses(&mut rig, transfer, reason);
        assert_eq!(rig.device().health(), DeviceHealth::Healthy);
        rig.nothing_is_left();
    }
    same(&rig.region_bytes(), &Rig::poisoned(region_bytes), "the device's memory");
    for slot in rig.slots() {
        same(&slot, &Rig::poisoned(SLOT), "a slot");
    }
    // Sources may be named twice, and refusals have cost no place in flight.
    let twice = store(vec![rig.op(0, 0, 0, SLOT), rig.op(0, 1, 0, SLOT)]);
    let tickets =
        [rig.submit(twice), rig.submit(load(vec![rig.op(5 * SLOT, 2, 0, 9), rig.op(6 * SLOT, 2, 0, 9)]))];
    rig.succeed(&tickets);
}

pub(super) fn only_memory_of_the_device_that_is_no_region_yet_is_attached(ground: &Ground<'_>) {
    let mut rig = ground.rig();
    // A driver that lays allocations side by side lets them be one region, so this one ends at no border of its.
    let bytes = 3 * SLOT + 10;
    let free = rig.bed.allocate(bytes);
    // It may also say that one is a little longer than it was asked for.
    let too_long = if ground.maker.is_model() { bytes + 1 } else { bytes + (1 << 36) };
    let (address, ordinal, region) = (free.address(), free.ordinal(), rig.region);
    let not_memory = |address, bytes| AttachError::NotDeviceMemory { address, bytes };
    let last = rig.span.address() + rig.span.bytes() - 1;
    let refused = [
        (handles::span(address, 0, ordinal), AttachError::NoSpan { address, bytes: 0 }),
        (handles::span(u64::MAX, 2, ordinal), AttachError::NoSpan { address: u64::MAX, bytes: 2 }),
        (handles::span(address, 8, ordinal + 1), AttachError::OtherDevice { given: ordinal + 1, ordinal }),
        (handles::span(address, too_long, ordinal), not_memory(address, too_long)),
        (handles::span(4096, 1, ordinal), not_memory(4096, 1)),
        (handles::span(last, 1, ordinal), AttachError::Overlap { region }),
        (rig.span, AttachError::Overlap { region }),
    ];
    for (span, reason) in refused {
        assert_eq!(rig.device().attach(span), Err(reason), "{span:?}");
    }
    // A part of an allocation, and then the rest beside it.
    let next = |region: RegionId, by| Ok(RegionId(region.0 + by));
    assert_eq!(rig.device().attach(handles::span(address + 100, SLOT, ordinal)), next(region, 1));
    assert_eq!(rig.device().attach(handles::span(address + 100 + SLOT, 7, ordinal)), next(region, 2));
}

pub(super) fn a_region_is_let_go_when_no_transfer_names_it_and_its_id_never_comes_again(ground: &Ground<'_>) {
    let mut rig = ground.rig();
    let (region, span, patience) = (rig.region, rig.span, rig.patience());
    let hold = rig.hold();
    let behind = rig.fence();
    let open = [0, 1].map(|slot| rig.start(TransferClass::Store, 0, slot, behind));
    let in_use = AttachError::InUse { region, inflight: 2 };
    assert_eq!(rig.device().detach(region), Err(in_use));
    hold.open();
    assert_eq!(rig.device().drain(patience), Ok(()));
    rig.succeed(&open);
    assert_eq!(rig.device().detach(region), Ok(()));
    for unknown in [region, RegionId(region.0 + 1)] {
        assert_eq!(rig.device().detach(unknown), Err(AttachError::UnknownRegion { region: unknown }));
    }
    let stale = rig.transfer(TransferClass::Store, 0, 0, behind);
    refuses(&mut rig, &stale, &SubmitErrorReason::UnknownRegion { index: 0 });
    let again = rig.device().attach(span).expect("it is no region any more");
    assert_ne!(again, region, "an id is never used again");
    refuses(&mut rig, &stale, &SubmitErrorReason::UnknownRegion { index: 0 });
}

pub(super) fn handles_of_another_device_are_refused(ground: &Ground<'_>) {
    let (mut rig, mut other) = (ground.rig(), ground.rig());
    let (stream, event) = (other.stream, other.bed.create_event());
    let after = rig.fence();
    for point in [ComputePoint::Stream(stream), ComputePoint::Event(event)] {
        assert_eq!(rig.device().record_fence(point), Err(FenceError::ForeignHandle));
    }
    let ticket = rig.start(TransferClass::Demand, 0, 0, after);
    let order = rig.device().order_after(ticket, 0, stream);
    assert_eq!(order, Err(FenceError::ForeignHandle));
    rig.succeed(&[ticket]);
    // Both work on.
    let after = other.fence();
    let ticket = other.start(TransferClass::Demand, 0, 0, after);
    other.succeed(&[ticket]);
}

/// A real driver may crash over a handle that it never gave out, so nobody asks it.
pub(super) fn handles_of_nothing_are_refused(ground: &Ground<'_>) {
    const NOTHING: u64 = 0xdead_0000;
    if !ground.maker.is_model() {
        eprintln!("SKIPPED: a driver of a GPU is given no handle that is none");
        return;
    }
    let mut rig = ground.rig();
    let id = rig.device().info().id;
    let unknown = FenceError::UnknownHandle { raw: NOTHING };
    let (stream, event) = (handles::stream(id, NOTHING), handles::event(id, NOTHING));
    assert_eq!(rig.device().record_fence(ComputePoint::Stream(stream)), Err(unknown.clone()));
    assert_eq!(rig.device().record_fence(ComputePoint::Event(event)), Err(unknown.clone()));
    let hold = rig.hold();
    let behind = rig.fence();
    let load = Transfer { marks: vec![1], ..rig.transfer(TransferClass::Demand, 0, 0, behind) };
    let ticket = rig.submit(load);
    let order = rig.device().order_after(ticket, 0, stream);
    // Whether the mark or the stream is looked at first is the device's business.
    assert!(order == Err(unknown) || order == Ok(MarkOrder::NotYet), "{order:?}");
    assert_eq!(rig.device().health(), DeviceHealth::Healthy);
    hold.open();
    rig.succeed(&[ticket]);
    rig.nothing_is_left();
}
