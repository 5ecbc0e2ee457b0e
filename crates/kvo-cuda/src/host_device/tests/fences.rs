//! Streams of this device, and what its lanes do while transfers wait.

use super::*;

pub(super) const OLD: [u8; 16] = [1; 16];
pub(super) const NEW: [u8; 16] = [2; 16];

#[test]
fn a_transfer_that_waits_holds_up_its_own_class_only() {
    let (mut device, slots) = device();
    slots.fill(SlotId(0), &NEW);
    let early = fence(&mut device);
    let gate = Gate::on(&device);
    let late = fence(&mut device);
    let first_store = device.submit(store(0, 2, late)).unwrap();
    let second_store = device.submit(store(1, 3, early)).unwrap();
    let waiting_load = device.submit(load(1, 6, late)).unwrap();
    let prefetch = Transfer { class: TransferClass::Prefetch, ..load(0, 5, early) };
    let first_load = device.submit(prefetch).unwrap();
    let mut done = Vec::new();
    device.wait(LONG, &mut done);
    device.wait(Duration::ZERO, &mut done);
    assert_eq!(done, [ended(first_load, Ok(BLOCK))]);
    assert_eq!(slots.bytes(SlotId(3)), [0xEE; 16], "a class keeps the order of submission");
    gate.open();
    let mut done = all(&mut device);
    done.sort_unstable_by_key(|completion| completion.ticket);
    assert_eq!(done, [first_store, second_store, waiting_load].map(|ticket| ended(ticket, Ok(BLOCK))));
}

#[test]
fn completions_come_in_the_order_in_which_transfers_ended() {
    let (mut device, _slots) = device();
    let early = fence(&mut device);
    let gate = Gate::on(&device);
    let late = fence(&mut device);
    let store = device.submit(store(0, 2, late)).unwrap();
    let load = device.submit(load(0, 5, early)).unwrap();
    while !device.shared.lock().queue.has_done() {
        std::thread::yield_now();
    }
    gate.open();
    assert_eq!(all(&mut device), [ended(load, Ok(BLOCK)), ended(store, Ok(BLOCK))]);
}

#[test]
fn streams_are_ordered_by_events_only() {
    let (mut device, slots) = device();
    let second = device.create_stream().unwrap();
    let event = device.create_event();
    second.wait_for(event).unwrap(); // never recorded: waits for nothing
    let gate = Gate::on(&device);
    second.launch_write(at(0), OLD.to_vec()).unwrap();
    second.synchronize(LONG).unwrap();
    device.compute().launch_write(at(1), OLD.to_vec()).unwrap();
    device.compute().record(event).unwrap();
    second.wait_for(event).unwrap();
    second.launch_write(at(1), NEW.to_vec()).unwrap();
    let after = device.record_fence(second.point()).unwrap();
    device.submit(store(1, 3, after)).unwrap();
    assert!(matches!(second.synchronize(Duration::ZERO), Err(ComputeError::TimedOut { .. })));
    gate.open();
    assert_eq!(all(&mut device), [ended(Ticket(0), Ok(BLOCK))]);
    assert_eq!(slots.bytes(SlotId(3)), NEW);
}

#[test]
fn a_stream_neither_records_nor_waits_for_an_event_of_another_device() {
    let (mut device, slots) = device();
    let mut other = device_over(&slots, options());
    let event = other.create_event();
    assert_eq!(device.compute().record(event), Err(ComputeError::ForeignEvent));
    assert_eq!(device.compute().wait_for(event), Err(ComputeError::ForeignEvent));
    for number in [1, 7] {
        let none = handles::stream(device.info().id, number);
        let unknown = Err(FenceError::UnknownHandle { raw: u64::from(number) + 1 });
        assert_eq!(device.record_fence(ComputePoint::Stream(none)), unknown);
    }
    assert!(other.create_stream().is_ok());
}

#[test]
fn fences_are_bounded_by_those_that_compute_has_not_passed() {
    let slots = TestSlots::shared(4, 16);
    let mut device = device_over(&slots, HostDeviceOptions { pending_fences_max: 2, ..options() });
    for _ in 0..10 {
        fence(&mut device);
    }
    let gate = Gate::on(&device);
    let early = fence(&mut device);
    fence(&mut device);
    let point = device.compute().point();
    let full = FenceError::Full { pending: 2, pending_max: 2 };
    assert_eq!(device.record_fence(point), Err(full));
    gate.open();
    device.compute().synchronize(LONG).unwrap();
    fence(&mut device);
    device.submit(store(0, 0, early)).unwrap();
    assert_eq!(all(&mut device).len(), 1, "a fence can be waited for after compute has passed it");
}

/// Loads two blocks, the second of which stops until it is let go, with a mark between them. Says what a kernel that was
/// ordered behind the first mark, and one behind the second, find in their blocks.
#[test]
fn a_kernel_behind_a_mark_finds_what_is_before_it() {
    let (arrive, arrived) = crossbeam_channel::bounded(1);
    let (go, wait) = crossbeam_channel::bounded::<()>(1);
    let hook = move |slot| {
        if slot == SlotId(1) {
            arrive.send(()).unwrap();
            wait.recv().unwrap();
        }
    };
    let slots = Arc::new(TestSlots::new(4, 16).with_hook(hook));
    let mut device = device_over(&slots, options());
    let handle = device.compute().handle();
    let (send, found) = crossbeam_channel::unbounded();
    let after = fence(&mut device);
    let ops = vec![op(0, 0), op(1, 1)];
    let ticket = device.submit(Transfer { ops, marks: vec![1, 2], ..load(0, 0, after) }).unwrap();
    arrived.recv_timeout(LONG).unwrap();
    for mark in 0..2 {
        assert_eq!(device.order_after(ticket, mark, handle), Ok(MarkOrder::Ordered));
        let send = send.clone();
        let then = move |bytes: &[u8]| send.send((mark, bytes.to_vec())).unwrap();
        device.compute().launch_read(at(u64::from(mark)), 16, then).unwrap();
    }
    assert_eq!(
        found.recv_timeout(LONG),
        Ok((0, vec![0xEE; 16])),
        "the first layer did not wait for the second"
    );
    assert!(found.recv_timeout(Duration::from_millis(20)).is_err());
    go.send(()).unwrap();
    assert_eq!(found.recv_timeout(LONG), Ok((1, vec![0xEE; 16])));
    assert_eq!(all(&mut device), [ended(ticket, Ok(2 * BLOCK))]);
    assert_eq!(device.order_after(ticket, 0, handle), Ok(MarkOrder::Ended));
    let unknown = FenceError::UnknownMark { ticket: Ticket(9), mark: 0 };
    assert_eq!(device.order_after(Ticket(9), 0, handle), Err(unknown));
}
