//! Regions: what can be attached, and when it can be let go.

use super::*;

#[test]
fn a_transfer_may_name_several_regions_and_parts_of_allocations() {
    let slots = TestSlots::shared(4, 16);
    let mut device = device_over(&slots, options());
    let other = device.alloc(100).unwrap();
    let part = handles::span(other.address() + 40, 40);
    assert_eq!(device.attach(part), Ok(RegionId(1)));
    device.memory().write(at(2), &[1; 16]).unwrap();
    device.memory().write(other.address() + 64, &[2; 16]).unwrap();
    let after = fence(&mut device);
    let of_other = CopyOp { region: RegionId(1), device_offset: 24, ..op(0, 3) };
    device.submit(Transfer { ops: vec![op(2, 0), of_other], ..store(0, 0, after) }).unwrap();
    assert!(all(&mut device)[0].result.is_ok());
    assert_eq!([slots.bytes(SlotId(0)), slots.bytes(SlotId(3))], [[1; 16], [2; 16]]);
    let beyond = CopyOp { device_offset: 25, ..of_other };
    let error = device.submit(Transfer { ops: vec![beyond], ..store(0, 0, after) }).unwrap_err();
    assert_eq!(error.reason, SubmitErrorReason::OutOfBounds { index: 0 });
}

#[test]
fn only_memory_of_the_device_that_is_no_region_yet_is_attached() {
    let (mut device, _slots) = device();
    let free = device.alloc(100).unwrap();
    let (address, end) = (free.address(), free.address() + 100);
    let not_memory = |address, bytes| AttachError::NotDeviceMemory { address, bytes };
    for (span, expected) in [
        (handles::span(address, 0), AttachError::NoSpan { address, bytes: 0 }),
        (handles::span(u64::MAX, 2), AttachError::NoSpan { address: u64::MAX, bytes: 2 }),
        (handles::span(end, 1), not_memory(end, 1)),
        (handles::span(address, 101), not_memory(address, 101)),
        (handles::span(0, 1), not_memory(0, 1)),
        (handles::span(at(7), 1), AttachError::Overlap { region: RegionId(0) }),
    ] {
        assert_eq!(device.attach(span), Err(expected));
    }
    assert_eq!(device.attach(free), Ok(RegionId(1)));
    device.fail(1);
    let unhealthy = AttachError::Unhealthy(DeviceHealth::Dead { code: 1 });
    assert_eq!(device.attach(free), Err(unhealthy));
}

#[test]
fn a_region_is_let_go_when_no_transfer_names_it_and_its_id_never_comes_again() {
    let (mut device, _slots) = device();
    let gate = Gate::on(&device);
    let behind = fence(&mut device);
    for slot in 0..2 {
        device.submit(store(0, slot, behind)).unwrap();
    }
    let in_use = AttachError::InUse { region: RegionId(0), inflight: 2 };
    assert_eq!(device.detach(RegionId(0)), Err(in_use));
    gate.open();
    device.drain(LONG).unwrap();
    let blocks = handles::span(at(0), 8 * BLOCK);
    assert_eq!(device.free(blocks), Err(AttachError::Overlap { region: RegionId(0) }));
    assert_eq!(device.detach(RegionId(0)), Ok(()));
    let unknown = AttachError::UnknownRegion { region: RegionId(0) };
    assert_eq!(device.detach(RegionId(0)), Err(unknown));
    let after = fence(&mut device);
    let error = device.submit(store(0, 0, after)).unwrap_err();
    assert_eq!(error.reason, SubmitErrorReason::UnknownRegion { index: 0 });
    assert_eq!(device.attach(blocks), Ok(RegionId(1)));
    device.detach(RegionId(1)).unwrap();
    device.free(blocks).unwrap();
    let (address, bytes) = (at(0), 8 * BLOCK);
    assert_eq!(device.attach(blocks), Err(AttachError::NotDeviceMemory { address, bytes }));
    assert_eq!(device.free(blocks), Err(AttachError::NotDeviceMemory { address, bytes }));
}
