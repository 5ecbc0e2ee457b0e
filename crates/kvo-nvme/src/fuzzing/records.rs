//! The record of one slot.

use kvo_core::{BlockHash, GroupIdx, OffloadKey};

use super::input::{self, Input};
use crate::format::{Damage, RECORD_BYTES, Record, RecordState, StoreId, reseal_record};

const ID: StoreId = StoreId(*b"of the fuzzer.\0\0");

pub(super) fn record(data: &[u8]) {
    let mut input = Input::new(data);
    let (slot, device_of_id) = (input.u32(), input.u8());
    let mut id = ID;
    id.0[0] ^= device_of_id;
    let good = match input.below(4) {
        0 => RecordState::Quarantined.encode(id, slot),
        1 => [0; RECORD_BYTES],
        _ => RecordState::Chunk(any_record(&mut input)).encode(id, slot),
    };
    let mut bytes = good;
    input.patches(&mut bytes);
    let mut sealed = bytes;
    reseal_record(&mut sealed, id, slot);
    if input.flag() {
        bytes = sealed;
    }
    let is_sealed = input::is_sealed(&good, &bytes, &sealed) && bytes != [0; RECORD_BYTES];
    let decoded = RecordState::decode(&bytes, id, slot);
    check(&bytes, is_sealed, &decoded);
    if let Ok(state) = decoded {
        assert!(state.encode(id, slot) == bytes, "{state:?} is written in another way than it was read");
        let elsewhere = RecordState::decode(&bytes, id, slot ^ (1 << input.below(32)));
        assert_eq!(elsewhere, Err(Damage::Checksum), "valid in another slot");
        let mut other_id = id;
        other_id.0[input.below(16)] ^= 1;
        let elsewhere = RecordState::decode(&bytes, other_id, slot);
        assert_eq!(elsewhere, Err(Damage::Checksum), "valid in another store");
    }
}

fn any_record(input: &mut Input<'_>) -> Record {
    Record {
        key: OffloadKey::new(BlockHash::from_u64(input.u64()), GroupIdx(input.u32())),
        length: input.u32(),
        generation: input.u64(),
        checksum: input.u64(),
        run: input.u64(),
        end_token: input.flag().then(|| input.u32()),
    }
}

fn check(bytes: &[u8; RECORD_BYTES], is_sealed: bool, decoded: &Result<RecordState, Damage>) {
    match decoded {
        Ok(_) | Err(Damage::Field(_)) => assert!(is_sealed, "a wrong seal was taken for a right one"),
        Err(Damage::Empty) => assert!(*bytes == [0; RECORD_BYTES]),
        Err(Damage::Checksum) => assert!(!is_sealed, "a right seal was taken for a wrong one"),
        Err(damage) => panic!("a record is not {damage:?}"),
    }
}
