//! Order of copies against compute. Each fact comes with its control: the same steps with a fence that was recorded
//! too early go wrong, so a check that passes says something.

use super::*;

const OLD: [u8; 16] = [1; 16];
const NEW: [u8; 16] = [2; 16];

/// Stores block 0 while a kernel that writes it is held up, and returns what was stored.
fn stored_bytes(fence_behind_the_write: bool) -> Vec<u8> {
    let (mut device, slots) = device();
    device.memory().write(0, &OLD).unwrap();
    let early = device.record_fence();
    let gate = Gate::on(&device);
    device.compute().launch_write(0, NEW.to_vec()).unwrap();
    let late = device.record_fence();

    let mut done = Vec::new();
    if fence_behind_the_write {
        device.submit(store(0, 3, late)).unwrap();
        device.wait(Duration::ZERO, &mut done);
        assert_eq!(done, [], "the store waits for its fence");
        gate.open();
        device.wait(LONG, &mut done);
    } else {
        device.submit(store(0, 3, early)).unwrap();
        device.wait(LONG, &mut done);
        gate.open();
    }
    assert_eq!(done, [ended(Ticket(0), Ok(BLOCK))]);
    slots.bytes(SlotId(3))
}

#[test]
fn a_store_copies_what_the_kernels_before_its_fence_wrote() {
    assert_eq!(stored_bytes(true), NEW);
}

#[test]
fn a_store_with_a_fence_that_is_too_early_copies_old_bytes() {
    assert_eq!(stored_bytes(false), OLD);
}

/// Loads into block 0 while a kernel that reads it is held up, and returns what that kernel read.
fn read_bytes(fence_behind_the_read: bool) -> [u8; 16] {
    let (mut device, slots) = device();
    device.memory().write(0, &OLD).unwrap();
    slots.fill(SlotId(3), &NEW);
    let early = device.record_fence();
    let gate = Gate::on(&device);
    let (send, read) = crossbeam_channel::bounded(1);
    let reader = move |memory: &DeviceMemory| {
        let mut bytes = [0; 16];
        memory.read(0, &mut bytes).unwrap();
        send.send(bytes).unwrap();
    };
    device.compute().launch(reader).unwrap();
    let late = device.record_fence();

    let mut done = Vec::new();
    if fence_behind_the_read {
        device.submit(load(3, 0, late)).unwrap();
        device.wait(Duration::ZERO, &mut done);
        assert_eq!(done, [], "the load waits for its fence");
        gate.open();
        device.wait(LONG, &mut done);
    } else {
        device.submit(load(3, 0, early)).unwrap();
        device.wait(LONG, &mut done);
        gate.open();
    }
    assert_eq!(done, [ended(Ticket(0), Ok(BLOCK))]);
    assert_eq!(block(&device, 0), NEW);
    read.recv_timeout(LONG).unwrap()
}

#[test]
fn a_load_leaves_a_block_alone_until_the_kernels_before_its_fence_have_read_it() {
    assert_eq!(read_bytes(true), OLD);
}

#[test]
fn a_load_with_a_fence_that_is_too_early_disturbs_a_reader() {
    assert_eq!(read_bytes(false), NEW);
}

/// Compute writes one pattern, the block is stored, and compute goes on to write another.
#[test]
fn a_block_that_is_rewritten_after_its_store_completed_was_stored_as_it_was() {
    let (mut device, slots) = device();
    for round in 0..50 {
        let pattern = vec![round; 16];
        device.compute().launch_write(2 * BLOCK, pattern.clone()).unwrap();
        let after = device.record_fence();
        device.submit(store(2, 1, after)).unwrap();
        let mut done = Vec::new();
        device.wait(LONG, &mut done);
        device.compute().launch_write(2 * BLOCK, vec![0xFF; 16]).unwrap();
        assert_eq!(slots.bytes(SlotId(1)), pattern);
    }
}

#[test]
fn a_fence_waits_only_for_what_was_launched_before_it() {
    let (mut device, _slots) = device();
    device.compute().launch_write(0, OLD.to_vec()).unwrap();
    let after = device.record_fence();
    let gate = Gate::on(&device);
    device.submit(store(0, 0, after)).unwrap();
    assert_eq!(all(&mut device).len(), 1);
    gate.open();
}

#[test]
fn a_transfer_that_waits_holds_up_its_own_lane_only() {
    let (mut device, slots) = device();
    slots.fill(SlotId(0), &NEW);
    let early = device.record_fence();
    let gate = Gate::on(&device);
    let late = device.record_fence();
    let first_store = device.submit(store(0, 2, late)).unwrap();
    let second_store = device.submit(store(1, 3, early)).unwrap();
    let first_load = device.submit(load(0, 5, early)).unwrap();
    let mut done = Vec::new();
    device.wait(LONG, &mut done);
    device.wait(Duration::ZERO, &mut done);
    assert_eq!(done, [ended(first_load, Ok(BLOCK))]);
    assert_eq!(slots.bytes(SlotId(3)), [0xEE; 16], "a lane keeps the order of submission");
    gate.open();
    let done = all(&mut device);
    assert_eq!(done, [ended(first_store, Ok(BLOCK)), ended(second_store, Ok(BLOCK))]);
}

#[test]
fn completions_come_in_the_order_in_which_transfers_ended() {
    let (mut device, _slots) = device();
    let early = device.record_fence();
    let gate = Gate::on(&device);
    let late = device.record_fence();
    let store = device.submit(store(0, 2, late)).unwrap();
    let load = device.submit(load(0, 5, early)).unwrap();
    while device.ended.is_empty() {
        std::thread::yield_now();
    }
    gate.open();
    assert_eq!(all(&mut device), [ended(load, Ok(BLOCK)), ended(store, Ok(BLOCK))]);
}
