//! Superblocks, headers and the eviction order.

use super::{
    image,
    input::{self, Input},
};
use crate::format::{
    BLOCK_BYTES, DATA_START, Damage, DataHeader, StoreState, Superblock, decode_order, encode_order,
    index_bytes, newest, order_sum, reseal_block,
};

/// A block that is as `good` but for what the input changes of it; whether it is sealed.
fn changed(input: &mut Input<'_>, good: &[u8; BLOCK_BYTES]) -> ([u8; BLOCK_BYTES], bool) {
    let mut bytes = *good;
    input.patches(&mut bytes);
    let mut sealed = bytes;
    reseal_block(&mut sealed);
    if input.flag() {
        bytes = sealed;
    }
    (bytes, input::is_sealed(good, &bytes, &sealed))
}

/// Checks what became of a block: a seal that is wrong lets nothing through.
fn check_seal<T>(bytes: &[u8; BLOCK_BYTES], is_sealed: bool, decoded: &Result<T, Damage>) {
    match decoded {
        Ok(_) | Err(Damage::Version(_) | Damage::Field(_)) => {
            assert!(is_sealed, "a wrong seal was taken for a right one");
        }
        Err(Damage::Empty) => assert!(bytes.iter().all(|byte| *byte == 0)),
        Err(Damage::Checksum) => assert!(!is_sealed, "a right seal was taken for a wrong one"),
        Err(Damage::Magic) => {}
        Err(Damage::Unreadable) => panic!("bytes in memory can be read"),
    }
}

pub(super) fn superblock(data: &[u8]) {
    let mut input = Input::new(data);
    let states = [StoreState::Clean, StoreState::Open, StoreState::Creating];
    let good = Superblock { state: states[input.below(3)], ..image::superblock() };
    let blocks = [1, 0].map(|older| {
        let good = Superblock { sequence: good.sequence - older, ..good.clone() };
        let (bytes, is_sealed) = changed(&mut input, &good.encode());
        let decoded = Superblock::decode(&bytes);
        check_seal(&bytes, is_sealed, &decoded);
        if let Ok(superblock) = &decoded {
            check_superblock(superblock, &bytes);
        }
        decoded
    });
    let sequences: Vec<u64> = blocks.iter().flatten().map(|block| block.sequence).collect();
    match newest(blocks.clone()) {
        Ok((superblock, block)) => {
            assert_eq!(blocks[block].as_ref(), Ok(&superblock));
            assert_eq!(sequences.iter().max(), Some(&superblock.sequence));
        }
        Err(_) => assert!(sequences.is_empty()),
    }
}

/// Checks that a superblock which was read is what is written, and that it can be worked with.
fn check_superblock(superblock: &Superblock, bytes: &[u8; BLOCK_BYTES]) {
    assert!(superblock.encode() == *bytes, "{superblock:?} is written in another way than it was read");
    let geometry = superblock.geometry().expect("a superblock has places for its slots");
    let length = index_bytes(superblock.num_slots);
    assert!(length.is_multiple_of(BLOCK_BYTES as u64));
    let slots: u64 =
        (0..geometry.num_devices.min(64)).map(|device| u64::from(geometry.slots_of(device))).sum();
    assert!(geometry.num_devices > 64 || slots == u64::from(superblock.num_slots));
    for slot in [0, superblock.num_slots / 2, superblock.num_slots - 1] {
        let place = geometry.place(slot);
        assert!(place.device < geometry.num_devices);
        assert!(place.offset >= DATA_START);
        let end = place.offset + geometry.stride_bytes;
        assert!(end <= geometry.file_bytes(place.device) && i64::try_from(end).is_ok());
    }
}

pub(super) fn header(data: &[u8]) {
    let mut input = Input::new(data);
    let device = u32::from(input.u8() & 1);
    let (bytes, is_sealed) = changed(&mut input, &image::header(device).encode());
    let decoded = DataHeader::decode(&bytes);
    check_seal(&bytes, is_sealed, &decoded);
    if let Ok(header) = decoded {
        assert!(header.encode() == bytes, "{header:?} is written in another way than it was read");
        assert!(header.device < header.num_devices);
    }
}

pub(super) fn order(data: &[u8]) {
    let mut input = Input::new(data);
    let num_slots = 1 + u32::from(input.u8() % 64);
    let slots: Vec<u32> = (0..input.below(65)).map(|_| u32::from(input.u8() % 72)).collect();
    let good = encode_order(&slots);
    let mut bytes = good.clone();
    if !bytes.is_empty() {
        input.patches(&mut bytes);
    }
    bytes.truncate(bytes.len() - input.below(6).min(bytes.len()));
    let order_slots = u32::try_from(slots.len()).unwrap_or(u32::MAX).saturating_add(input.u8().into());
    let order_sum = if input.flag() { order_sum(&bytes) } else { order_sum(&good) };
    let superblock = Superblock { num_slots, order_slots, order_sum, ..image::superblock() };
    let is_whole = bytes.len() == order_slots as usize * 4 && order_sum == crate::format::order_sum(&bytes);
    let decoded = decode_order(&bytes, &superblock);
    if let Some(decoded) = &decoded {
        assert!(encode_order(decoded) == bytes);
        assert!(decoded.iter().all(|slot| *slot < num_slots));
    }
    let named = bytes.as_chunks::<4>().0;
    let is_in_range = named.iter().all(|slot| u32::from_le_bytes(*slot) < num_slots);
    assert_eq!(decoded.is_some(), is_whole && is_in_range);
}
