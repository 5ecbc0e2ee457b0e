//! How the host memory is registered.

use std::{rc::Rc, sync::Arc, time::Duration};

use kvo_core::{
    AttachError, ComputePoint, CopyOp, DeviceBackend, SlotId, Transfer, TransferClass, TransferFailure,
};
use kvo_cpu::HostRegion;
use kvo_cuda::{CudaDevice, CudaOptions, DriverCode, HostMode, PathUse};

use kvo_fakecuda::{Exclusive, Hold};

use crate::rig::{
    LONG, NUM_SLOTS, Panicky, REGION_BYTES, Rig, SLOT_BYTES, allocate, attach, fake, handle_on, host_memory,
    is_asleep, options, pattern, span, until, warnings,
};

/// A slot goes to the device and comes back to another.
#[track_caller]
fn check_round_trip(rig: &mut Rig) {
    let after = rig.passed();
    rig.fill_slot(1, &pattern(4, SLOT_BYTES));
    let load = rig.submit(rig.one_slot(TransferClass::Demand, 1, after));
    rig.succeeds(load);
    let store = rig.submit(rig.one_slot(TransferClass::Store, 15, after));
    rig.succeeds(store);
    assert_eq!(rig.slot(15), pattern(4, SLOT_BYTES));
    rig.is_clean();
}

/// B46: each piece once, and each given back once.
#[test]
fn memory_is_registered_in_pieces_and_given_back() {
    let mut rig = Rig::with(CudaOptions { registration_bytes: 3 * SLOT_BYTES, ..options() }, |_| ());
    assert_eq!((rig.device.stats().host, rig.device.stats().registrations), (HostMode::Registered, 6));
    assert_eq!(rig.fake.counts().registrations, 6);
    check_round_trip(&mut rig);
    assert_eq!(rig.fake.counts().pageable_copies, 0);
    let Rig { device, fake, context, .. } = rig;
    drop(device);
    assert_eq!(fake.counts().registrations, 0);
    drop(context);
    assert_eq!(fake.violations(), []);
}

/// B46: of six pieces the first, one in the middle, the last: no other call has anything of its error.
#[test]
fn a_refused_piece_takes_back_all_and_copies_still_work() {
    for nth in [1, 3, 6] {
        let mut rig = Rig::with(CudaOptions { registration_bytes: 3 * SLOT_BYTES, ..options() }, |fake| {
            fake.fail_calls("cuMemHostRegister_v2", nth, u64::MAX, 800);
        });
        let stats = rig.device.stats();
        assert_eq!((stats.host, stats.registrations), (HostMode::Pageable { code: DriverCode(800) }, 0));
        assert_eq!(stats.paths.rows_use, PathUse::Pageable);
        assert_eq!(rig.fake.counts().registrations, 0);
        check_round_trip(&mut rig);
        assert_eq!(rig.fake.counts().pageable_copies, 2);
    }
}

/// B46: below what the driver takes at once, exactly that, and several times as much and a page; of slots that fill their
/// pages, and of some that leave a gap behind each.
#[test]
fn memory_of_any_length_is_registered_in_pieces_that_the_driver_takes() {
    const PAGE: usize = 4096;
    let lengths = [(1, 1), (3, 1), (4, 1), (5, 2), (13, 4)];
    for (slot_bytes, (num_slots, pieces)) in
        [PAGE, PAGE - 1000].into_iter().flat_map(|s| lengths.map(|l| (s, l)))
    {
        let fake = fake();
        fake.refuse_registrations_from(4 * PAGE as u64 + 1);
        let context = cudarc::driver::CudaContext::new(0).unwrap();
        let options = CudaOptions { registration_bytes: 4 * PAGE, ..options() };
        let device = CudaDevice::new(options, host_memory(num_slots, slot_bytes)).unwrap();
        assert_eq!((device.stats().host, device.stats().registrations), (HostMode::Registered, pieces));
        assert_eq!(fake.counts().registrations, pieces as u64, "{num_slots} slots of {slot_bytes} bytes");
        drop(device);
        assert_eq!(fake.counts().registrations, 0);
        drop(context);
        assert_eq!(fake.violations(), []);
    }
}

/// B46: a region that one call does not take.
#[test]
fn memory_that_is_too_long_for_one_registration_goes_in_pieces() {
    let mut rig = Rig::with(CudaOptions { registration_bytes: 4 * SLOT_BYTES, ..options() }, |fake| {
        fake.refuse_registrations_from(5 * SLOT_BYTES as u64);
    });
    assert_eq!(rig.device.stats().host, HostMode::Registered);
    check_round_trip(&mut rig);
}

#[test]
fn two_devices_share_one_registration_and_the_last_gives_it_back() {
    let mut first = Rig::new();
    let context = cudarc::driver::CudaContext::new(1).unwrap();
    let mut second = CudaDevice::new(CudaOptions { ordinal: 1, ..options() }, first.host.clone()).unwrap();
    assert_eq!(first.fake.counts().registrations, 1);
    let (_, address) = attach(&mut second, &context, REGION_BYTES);
    check_round_trip(&mut first);
    assert_ne!(address, first.address);

    let Rig { device, fake, context: first_context, .. } = first;
    drop(device);
    assert_eq!(fake.counts().registrations, 1);
    drop(second);
    assert_eq!(fake.counts().registrations, 0);
    drop((first_context, context));
    assert_eq!(fake.violations(), []);
}

#[test]
fn only_memory_of_the_device_without_a_gap_can_be_attached() {
    let mut rig = Rig::new();
    let other = cudarc::driver::CudaContext::new(1).unwrap();
    let elsewhere = allocate(&other, 4096);
    let here = allocate(&rig.context, 8192);
    let not_device = |address, bytes: u64| Err(AttachError::NotDeviceMemory { address, bytes });
    assert_eq!(rig.device.attach(span(elsewhere, 4096, 0)), not_device(elsewhere, 4096));
    assert_eq!(rig.device.attach(span(here, 8193, 0)), not_device(here, 8193));
    assert_eq!(rig.device.attach(span(4096, 1, 0)), not_device(4096, 1));
    // A gap, and the end of neighbours.
    let two = [here, allocate(&rig.context, 8192)];
    let (first, bytes) = (two[0].min(two[1]), usize::try_from(two[0].abs_diff(two[1])).unwrap() + 8192);
    assert_eq!(rig.device.attach(span(first, bytes, 0)), not_device(first, bytes as u64));
    let neighbours = rig.fake.allocate_side_by_side(0, 4096, 3).unwrap();
    assert_eq!(rig.device.attach(span(neighbours + 1, 3 * 4096, 0)), not_device(neighbours + 1, 3 * 4096));
    rig.device.attach(span(neighbours, 3 * 4096, 0)).unwrap();
    let other = AttachError::OtherDevice { given: 1, ordinal: 0 };
    assert_eq!(rig.device.attach(span(here, 1, 1)), Err(other));
    let none = AttachError::NoSpan { address: here, bytes: 0 };
    assert_eq!(rig.device.attach(span(here, 0, 0)), Err(none));
    let region = rig.device.attach(span(here + 100, 1000, 0)).unwrap();
    let overlap = AttachError::Overlap { region };
    assert_eq!(rig.device.attach(span(here + 1099, 1, 0)), Err(overlap));
    rig.device.detach(region).unwrap();
    let again = rig.device.attach(span(here + 1099, 1, 0)).unwrap();
    assert_ne!(again, region, "an id is never used again");
    assert_eq!(rig.device.detach(region), Err(AttachError::UnknownRegion { region }));
}

#[test]
fn a_second_device_over_other_memory_registers_that() {
    let rig = Rig::new();
    let second = CudaDevice::new(options(), host_memory(2, 4096)).unwrap();
    assert_eq!(rig.fake.counts().registrations, 2);
    drop(second);
    assert_eq!(rig.fake.counts().registrations, 1);
}

fn null_stream(device: &CudaDevice, context: &Arc<cudarc::driver::CudaContext>) -> ComputePoint {
    ComputePoint::Stream(handle_on(device, &context.default_stream()))
}

/// Two that lie in the same place keep others out each in its own way, and may be cut in other slots.
#[test]
fn a_device_claims_slots_of_the_memory_that_it_was_given() {
    let mut first = Rig::new();
    let context = cudarc::driver::CudaContext::new(1).unwrap();
    let refusing = Arc::new(Panicky { memory: first.host.clone(), bad: SlotId(9), parts: 1 });
    let mut second = CudaDevice::new(CudaOptions { ordinal: 1, ..options() }, refusing).unwrap();
    assert_eq!((second.stats().host, first.fake.counts().registrations), (HostMode::Registered, 1));
    attach(&mut second, &context, REGION_BYTES);
    let after = second.record_fence(null_stream(&second, &context)).unwrap();
    let mut done = Vec::new();
    second.submit(first.one_slot(TransferClass::Store, 9, after)).unwrap();
    second.wait(LONG, &mut done);
    assert_eq!(done[0].result, Err(TransferFailure::Device { code: 999 }), "its own memory panics");
    check_round_trip(&mut first);
}

#[test]
fn memory_that_is_cut_in_other_slots_is_registered_once_and_keeps_its_slots() {
    let first = Rig::new();
    let context = cudarc::driver::CudaContext::new(1).unwrap();
    let halves = Arc::new(Panicky { memory: first.host.clone(), bad: SlotId(u32::MAX), parts: 2 });
    let mut second = CudaDevice::new(CudaOptions { ordinal: 1, ..options() }, halves).unwrap();
    assert_eq!(second.info().num_slots, 2 * NUM_SLOTS);
    let refused = HostMode::Pageable { code: DriverCode(712) };
    assert_eq!((second.stats().host, first.fake.counts().registrations), (refused, 1));
    let (region, address) = attach(&mut second, &context, REGION_BYTES);
    assert!(first.fake.write_device(address, &pattern(6, SLOT_BYTES / 2)));
    let after = second.record_fence(null_stream(&second, &context)).unwrap();
    let op = CopyOp { region, ..first.op(0, 3, 0, SLOT_BYTES as u64 / 2) };
    second.submit(Transfer::new(TransferClass::Store, vec![op], after)).unwrap();
    second.drain(LONG).unwrap();
    assert_eq!(first.slot(1)[SLOT_BYTES / 2..], pattern(6, SLOT_BYTES / 2));
    first.is_clean();
    drop(second);
    assert_eq!(first.fake.counts().registrations, 1);
}

/// B65, in the middle of being made.
#[test]
fn what_cannot_be_made_is_an_error_and_leaves_nothing() {
    let fake = fake();
    let _context = cudarc::driver::CudaContext::new(0).unwrap();
    let host = host_memory(2, 4096);
    let zero = CudaDevice::new(CudaOptions { window_bytes: 0, ..options() }, host.clone()).unwrap_err();
    assert_eq!(zero.to_string(), "window_bytes must be at least 1");
    let many = CudaDevice::new(CudaOptions { kernel_ctas: 65_537, ..options() }, host.clone()).unwrap_err();
    assert_eq!(many.to_string(), "kernel_ctas is 65537, which is more than 65536");
    let none = CudaDevice::new(CudaOptions { ordinal: 7, ..options() }, host.clone()).unwrap_err();
    assert_eq!(none.to_string(), "there is no device 7, there are 2");
    let before = fake.counts();
    for call in ["cuDevicePrimaryCtxRetain", "cuCtxGetCurrent", "cuStreamCreateWithPriority"] {
        fake.fail_calls(call, 1, 1, 2);
        let error = CudaDevice::new(options(), host.clone()).unwrap_err();
        assert!(
            error.to_string().ends_with("failed with 2 OUT_OF_MEMORY: there is too little memory"),
            "{error}"
        );
        let after = fake.counts();
        assert_eq!((before.retains, before.streams), (after.retains, after.streams), "{call}");
    }
}

/// A device over small pieces, dropped while the driver does not end the first registration.
fn dropped_while_unregistering() -> (Rc<Exclusive>, Arc<HostRegion>) {
    let drop_timeout = Duration::from_millis(30);
    let pieces = CudaOptions { registration_bytes: 3 * SLOT_BYTES, drop_timeout, ..options() };
    let mut rig = Rig::with(pieces, |_| ());
    check_round_trip(&mut rig);
    rig.fake.hold(Hold::Calls("cuMemHostUnregister"));
    let Rig { device, fake, host, .. } = rig;
    assert_eq!(warnings(|| drop(device)), 0, "the copies had ended");
    assert_eq!(fake.counts().registrations, 6);
    (fake, host)
}

#[test]
fn a_drop_warns_of_copies_and_not_of_memory_that_is_still_being_unregistered() {
    let (fake, host) = dropped_while_unregistering();
    fake.release(Hold::All);
    until(|| fake.counts().registrations == 0 && Arc::strong_count(&host) == 1);
}

#[test]
fn a_drop_warns_of_copies_only_if_there_are_some() {
    let mut rig = Rig::with(CudaOptions { drop_timeout: Duration::from_millis(10), ..options() }, |_| ());
    check_round_trip(&mut rig);
    // The thread gives an event back and does not get to say that it has ended.
    rig.fake.hold(Hold::Calls("cuEventDestroy_v2"));
    let Rig { device, fake, .. } = rig;
    assert_eq!(warnings(|| drop(device)), 0);
    assert!(fake.wait_for_blocked(1));
    fake.release(Hold::All);
    until(|| fake.counts().registrations == 0);
}

#[test]
fn a_device_over_memory_that_is_being_unregistered_waits_and_registers_it_anew() {
    let (fake, host) = dropped_while_unregistering();
    let again = host.clone();
    let _context = cudarc::driver::CudaContext::new(0).unwrap();
    let maker = "kvo-maker";
    let made = std::thread::Builder::new().name(maker.to_owned()).spawn(move || {
        CudaDevice::new(CudaOptions { registration_bytes: 4 * SLOT_BYTES, ..options() }, again).unwrap()
    });
    let made = made.unwrap();
    until(|| made.is_finished() || is_asleep(maker));
    assert!(!made.is_finished(), "it does not wait");
    fake.release(Hold::All);
    let device = made.join().unwrap();
    assert_eq!((device.stats().host, device.stats().registrations), (HostMode::Registered, 4));
    assert_eq!(fake.counts().registrations, 4);
    drop(device);
    assert_eq!((fake.counts().registrations, fake.violations()), (0, vec![]));
}
