//! Memory that is a region, or was.

use super::*;

#[test]
fn memory_is_freed_once_and_not_while_it_is_a_region() {
    let (mut device, _slots) = device();
    let blocks = handles::span(at(0), 8 * BLOCK);
    assert_eq!(device.free(blocks), Err(AttachError::Overlap { region: RegionId(0) }));
    assert_eq!(device.detach(RegionId(0)), Ok(()));
    device.free(blocks).unwrap();
    let (address, bytes) = (at(0), 8 * BLOCK);
    assert_eq!(device.attach(blocks), Err(AttachError::NotDeviceMemory { address, bytes }));
    assert_eq!(device.free(blocks), Err(AttachError::NotDeviceMemory { address, bytes }));
}
