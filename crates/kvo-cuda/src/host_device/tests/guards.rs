//! What each guard of a device is for: five defects of other systems, each shown to be there once its guard is off.

use super::{
    super::core::Guard,
    fences::{NEW, OLD},
    *,
};

/// A device of which a guard may be switched off.
fn guarded(off: Option<Guard>) -> (HostDevice, Arc<TestSlots>) {
    let (device, slots) = device();
    device.shared.lock().switched_off = off;
    (device, slots)
}

/// What is stored of a block that a kernel is about to write.
fn stored(off: Option<Guard>) -> Vec<u8> {
    let (mut device, slots) = guarded(off);
    device.memory().write(at(0), &OLD).unwrap();
    let gate = Gate::on(&device);
    device.compute().launch_write(at(0), NEW.to_vec()).unwrap();
    let after = fence(&mut device);
    device.submit(store(0, 3, after)).unwrap();
    let mut done = Vec::new();
    device.wait(Duration::from_millis(50), &mut done);
    gate.open();
    done.append(&mut all(&mut device));
    assert_eq!(done, [ended(Ticket(0), Ok(BLOCK))]);
    slots.bytes(SlotId(3))
}

/// B35: and without its fence it does.
#[test]
fn a_store_does_not_copy_before_compute_has_ended() {
    assert_eq!(stored(None), NEW);
    assert_eq!(stored(Some(Guard::StoreFences)), OLD);
}

/// What a kernel reads of a block that is about to be loaded.
fn read(off: Option<Guard>) -> Vec<u8> {
    let (mut device, slots) = guarded(off);
    device.memory().write(at(0), &OLD).unwrap();
    slots.fill(SlotId(3), &NEW);
    let gate = Gate::on(&device);
    let (send, read) = crossbeam_channel::bounded(1);
    device.compute().launch_read(at(0), 16, move |bytes| send.send(bytes.to_vec()).unwrap()).unwrap();
    let after = fence(&mut device);
    device.submit(load(3, 0, after)).unwrap();
    let mut done = Vec::new();
    device.wait(Duration::from_millis(50), &mut done);
    gate.open();
    done.append(&mut all(&mut device));
    assert_eq!(done, [ended(Ticket(0), Ok(BLOCK))]);
    read.recv_timeout(LONG).unwrap()
}

#[test]
fn a_load_does_not_overwrite_a_block_that_is_still_read() {
    assert_eq!(read(None), OLD);
    assert_eq!(read(Some(Guard::LoadFences)), NEW);
}

/// Whether a store that waits for an event ends although the event was recorded again, behind what does not end.
fn ends_although_recorded_again(off: Option<Guard>) -> bool {
    let (mut device, _slots) = guarded(off);
    let event = device.create_event();
    device.compute().launch_write(at(0), NEW.to_vec()).unwrap();
    device.compute().record(event).unwrap();
    let after = device.record_fence(ComputePoint::Event(event)).unwrap();
    let gate = Gate::on(&device);
    device.compute().record(event).unwrap();
    device.submit(store(0, 3, after)).unwrap();
    let mut done = Vec::new();
    device.wait(Duration::from_millis(if off.is_none() { 60_000 } else { 50 }), &mut done);
    gate.open();
    !done.is_empty()
}

#[test]
fn an_event_that_is_recorded_again_holds_up_nobody_who_waited_for_it_before() {
    assert!(ends_although_recorded_again(None));
    assert!(!ends_although_recorded_again(Some(Guard::EventSnapshots)));
}

/// How many of 40 transfers complete if nobody polls meanwhile.
fn completed(off: Option<Guard>) -> usize {
    let (mut device, _slots) = guarded(off);
    let after = fence(&mut device);
    for _ in 0..40 {
        device.submit(store(0, 0, after)).unwrap();
    }
    let mut done = all(&mut device);
    done.append(&mut all(&mut device));
    done.len()
}

#[test]
fn no_completion_is_lost_however_late_it_is_polled() {
    assert_eq!(completed(None), 40);
    assert!(completed(Some(Guard::Completions)) < 40);
}

/// Whether a transfer ends after the device has failed.
fn ends_after_an_error(off: Option<Guard>) -> bool {
    let (mut device, _slots) = guarded(off);
    let gate = Gate::on(&device);
    let after = fence(&mut device);
    device.submit(store(0, 0, after)).unwrap();
    device.fail(700);
    let ends = device.drain(Duration::from_millis(50)).is_ok();
    gate.open();
    ends
}

#[test]
fn nobody_polls_for_ever_after_an_error() {
    assert!(ends_after_an_error(None));
    assert!(!ends_after_an_error(Some(Guard::Errors)));
}
