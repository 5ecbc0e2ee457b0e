//! Stores on real files, looked into and mended.

use std::{
    fs::{self, OpenOptions},
    ops::Range,
    os::unix::fs::FileExt,
    sync::Mutex,
};

use kvo_core::{BlockHash, GroupIdx};

use super::*;
use crate::{
    IfOther,
    file::{ChunkFile, StableFile},
    files::{
        open,
        tests::{Dirs, flip, set_len},
    },
    format::{BLOCK_BYTES, DATA_START, EPOCH_MAX, encode_order, first_generation, order_start, record_start},
};

const CHUNK_BYTES: u64 = 5000;
const NUM_SLOTS: u32 = 40;

/// A store of [`NUM_SLOTS`] chunks.
struct Rig {
    dirs: Dirs,
    options: NvmeOptions,
}

impl Rig {
    fn new(num_devices: usize) -> Self {
        let dirs = Dirs::new(num_devices);
        let options = NvmeOptions {
            dirs: dirs.paths(),
            fingerprint: [9; 32],
            ..NvmeOptions::new("", NUM_SLOTS, CHUNK_BYTES)
        };
        create_store(&options).unwrap();
        Self { dirs, options }
    }

    /// With the chunks 0 to 9, each in the slot of its number.
    fn filled(num_devices: usize) -> Self {
        let rig = Self::new(num_devices);
        (0..10).for_each(|n| rig.put(n));
        rig
    }

    fn inspect(&self) -> Inspection {
        Inspection::open(&self.options.dirs).unwrap()
    }

    fn contents(&self) -> Contents {
        self.inspect().read_records().unwrap()
    }

    /// How the store opens.
    fn report(&self) -> RecoveryReport {
        open(&self.options, self.options.geometry(None).unwrap(), false).unwrap().recovered.report
    }

    fn index(&self) -> PathBuf {
        self.dirs.index()
    }

    fn data(&self, device: usize) -> PathBuf {
        self.dirs.data(device)
    }

    fn put(&self, n: u32) {
        let inspection = self.inspect();
        let (key, bytes) = (key(n), payload(n));
        let generation = first_generation(1) + u64::from(n);
        let record = Record {
            key,
            length: u32::try_from(CHUNK_BYTES).unwrap(),
            generation,
            checksum: checksum(&key, generation, &bytes),
            run: 0,
            end_token: Some(n),
        };
        let place = inspection.geometry.place(n);
        let data = inspection.data[place.device as usize].as_ref().unwrap();
        data.file.write_all_at(&bytes, place.offset).unwrap();
        write_record(&inspection, n, RecordState::Chunk(record));
    }
}

fn write_record(inspection: &Inspection, slot: u32, record: RecordState) {
    let bytes = record.encode(inspection.superblock.id, slot);
    inspection.index.file.write_all_at(&bytes, record_start(slot)).unwrap();
}

fn key(n: u32) -> OffloadKey {
    OffloadKey::new(BlockHash::from_u64(u64::from(n) + 1), GroupIdx(0))
}

fn payload(n: u32) -> Vec<u8> {
    (0..CHUNK_BYTES).map(|at| (at / 3 + u64::from(n)).to_le_bytes()[0]).collect()
}

#[test]
fn a_new_store_is_clean_and_empty() {
    for num_devices in [1, 3] {
        let rig = Rig::new(num_devices);
        let inspection = rig.inspect();
        let info = inspection.info();
        assert_eq!(info.state, StoreState::Clean);
        assert_eq!(
            (info.capacity_chunks, info.chunk_bytes, info.stride_bytes),
            (NUM_SLOTS, CHUNK_BYTES, 8192)
        );
        assert_eq!((info.fingerprint, info.epoch, info.written_bytes), ([9; 32], 1, 0));
        assert!(inspection.problems().is_empty());
        assert!(inspection.superblocks().iter().all(Result::is_ok));
        assert_eq!(inspection.read_records().unwrap().chunks, []);
        drop(inspection);
        let report = rig.report();
        assert!(report.clean && !report.order_damaged, "{report:?}");
    }
}

#[test]
fn a_store_that_is_there_is_not_made_again_unless_asked() {
    let mut rig = Rig::filled(2);
    let id = rig.inspect().info().id;
    let error = create_store(&rig.options).unwrap_err();
    assert!(matches!(error, OpenError::Exists { .. }), "{error}");
    rig.options.fingerprint = [1; 32];
    let error = create_store(&rig.options).unwrap_err();
    assert!(matches!(error, OpenError::Other { field: "fingerprint", .. }), "{error}");
    assert_eq!(rig.contents().chunks.len(), 10, "nothing was touched");

    rig.options.if_other = IfOther::Empty;
    for fingerprint in [[1; 32], [9; 32], [9; 32]] {
        rig.options.fingerprint = fingerprint;
        create_store(&rig.options).unwrap();
        assert_eq!(rig.contents().chunks, []);
        let info = rig.inspect().info();
        assert_eq!(info.fingerprint, fingerprint);
        assert_ne!(info.id, id, "a new store has a new name");
    }
}

#[test]
fn chunks_are_listed_and_read() {
    let rig = Rig::filled(3);
    let mut inspection = rig.inspect();
    let contents = inspection.read_records().unwrap();
    assert_eq!(contents.chunks.len(), 10);
    for chunk in &contents.chunks {
        assert_eq!(chunk.key, key(chunk.slot));
        assert_eq!(chunk.end_token, Some(chunk.slot));
        assert_eq!(inspection.read_chunk(chunk).unwrap(), payload(chunk.slot));
    }
    // One run, from its tail.
    let slots: Vec<_> = contents.chunks.iter().map(|chunk| chunk.slot).collect();
    assert_eq!(slots, [9, 8, 7, 6, 5, 4, 3, 2, 1, 0]);
}

#[test]
fn nobody_else_has_the_store_meanwhile() {
    let rig = Rig::new(1);
    let inspection = rig.inspect();
    assert!(matches!(Inspection::open(&rig.options.dirs), Err(OpenError::InUse { .. })));
    assert!(matches!(create_store(&rig.options), Err(OpenError::InUse { .. })));
    drop(inspection);
    let store = open(&rig.options, rig.options.geometry(None).unwrap(), false).unwrap();
    assert!(matches!(Inspection::open(&rig.options.dirs), Err(OpenError::InUse { .. })));
    drop(store);
    rig.inspect();
}

#[test]
fn wrong_bytes_are_found_where_they_are() {
    let rig = Rig::filled(2);
    let mut inspection = rig.inspect();
    let chunks = inspection.read_records().unwrap().chunks;
    let place = inspection.geometry.place(4);
    flip(&rig.data(place.device as usize), place.offset + 4999);
    // What is behind a chunk in its slot is nobody's.
    let place = inspection.geometry.place(5);
    flip(&rig.data(place.device as usize), place.offset + 5000);
    for chunk in &chunks {
        let result = inspection.read_chunk(chunk).map(<[u8]>::to_vec);
        assert_eq!(matches!(result, Err(ChunkDamage::Checksum { .. })), chunk.slot == 4, "{result:?}");
    }
    // The end of the file is lost, and with it slot 9.
    let place = inspection.geometry.place(9);
    set_len(&rig.data(place.device as usize), place.offset + 4000);
    let result = inspection.read_chunk(&chunks[0]).map(<[u8]>::to_vec);
    assert!(matches!(result, Err(ChunkDamage::Unreadable(_))), "{result:?}");
}

#[test]
fn a_superblock_of_an_epoch_that_there_is_not_is_not_written() {
    let rig = Rig::new(1);
    let inspection = rig.inspect();
    let last = Superblock { epoch: EPOCH_MAX, ..inspection.superblock.next(StoreState::Open) };
    let block = inspection.block;
    write_superblock(&inspection.index, &last, 1 - block).unwrap();
    drop(inspection);
    flip(&rig.index(), (block * BLOCK_BYTES) as u64 + 24);
    let before = fs::read(rig.index()).unwrap();
    let mut inspection = rig.inspect();
    assert!(matches!(inspection.repair_superblock(), Err(OpenError::Other { field: "epoch", .. })));
    drop(inspection);
    assert!(fs::read(rig.index()).unwrap() == before, "the index has changed");
}

#[test]
fn a_table_that_the_index_has_no_room_for_is_not_read() {
    let rig = Rig::new(1);
    let inspection = rig.inspect();
    let large = Superblock {
        num_slots: 1 << 30,
        asked_slots: 1 << 30,
        ..inspection.superblock.next(StoreState::Open)
    };
    write_superblock(&inspection.index, &large, 1 - inspection.block).unwrap();
    drop(inspection);
    let inspection = rig.inspect();
    assert_eq!(inspection.info().capacity_chunks, 1 << 30);
    assert_eq!(inspection.read_records().unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    assert!(matches!(inspection.problems()[0], OpenError::Damaged { damage: FileDamage::Length { .. }, .. }));
}

#[test]
fn a_damaged_superblock_is_told_and_written_again() {
    for block in [0_u8, 1] {
        let rig = Rig::filled(1);
        let before = rig.inspect().info();
        flip(&rig.index(), u64::from(block) * BLOCK_BYTES as u64 + 77);
        let mut inspection = rig.inspect();
        assert_eq!(inspection.superblocks()[usize::from(block)], Err(Damage::Checksum));
        assert!(inspection.read_records().unwrap().report.superblock_damaged);
        assert!(inspection.repair_superblock().unwrap());
        assert!(!inspection.repair_superblock().unwrap(), "it is mended");
        drop(inspection);
        let inspection = rig.inspect();
        assert!(inspection.superblocks().iter().all(Result::is_ok));
        let info = inspection.info();
        assert_eq!((info.id, info.fingerprint), (before.id, before.fingerprint));
        assert!(info.epoch > before.epoch, "no generation comes twice");
        assert_eq!(info.state, StoreState::Open);
        drop(inspection);
        assert_eq!(rig.report().chunks, 10);
    }
}

#[test]
fn damaged_records_and_failed_slots_are_cleared() {
    let rig = Rig::filled(1);
    write_record(&rig.inspect(), 20, RecordState::Quarantined);
    flip(&rig.index(), record_start(3) + 60);
    flip(&rig.index(), record_start(30) + 5);
    let mut inspection = rig.inspect();
    let contents = inspection.read_records().unwrap();
    assert_eq!((&contents.damaged[..], &contents.quarantined[..]), (&[3, 30][..], &[20][..]));
    assert_eq!((contents.report.damaged_records, contents.report.quarantined), (2, 1));
    inspection.clear_records(&[3, 20, 30, NUM_SLOTS, u32::MAX]).unwrap();
    drop(inspection);
    let contents = rig.contents();
    assert_eq!((contents.damaged.len(), contents.quarantined.len(), contents.chunks.len()), (0, 0, 9));
}

#[test]
fn a_damaged_header_is_told_and_written_again() {
    let rig = Rig::filled(2);
    flip(&rig.data(1), 30);
    let mut inspection = rig.inspect();
    let damage = FileDamage::Header(Damage::Checksum);
    assert!(matches!(inspection.problems(), [OpenError::Damaged { damage: found, .. }] if *found == damage));
    assert_eq!(inspection.damaged_headers(), [rig.data(1)]);
    inspection.repair_headers().unwrap();
    assert!(inspection.problems().is_empty());
    drop(inspection);
    assert_eq!(rig.report().chunks, 10);
}

#[test]
fn files_of_others_are_told_and_left_alone() {
    let (mut one, other) = (Rig::filled(2), Rig::filled(2));
    fs::copy(other.data(1), one.data(1)).unwrap();
    let mut inspection = one.inspect();
    assert!(matches!(inspection.problems(), [OpenError::Other { field: "store", .. }]));
    inspection.repair_headers().unwrap();
    assert_eq!(fs::read(one.data(1)).unwrap(), fs::read(other.data(1)).unwrap());
    assert!(inspection.damaged_headers().is_empty());
    drop(inspection);

    one.options.dirs.swap(0, 1);
    assert!(matches!(Inspection::open(&one.options.dirs), Err(OpenError::Damaged { .. })), "no index there");
    one.options.dirs.swap(0, 1);
    one.options.dirs.pop();
    assert!(matches!(one.inspect().problems(), [OpenError::Other { field: "dirs", .. }]));
}

#[test]
fn what_is_cut_or_missing_is_told_without_a_panic() {
    let rig = Rig::filled(2);
    let length = fs::metadata(rig.data(0)).unwrap().len();
    set_len(&rig.data(0), length - 1);
    fs::remove_file(rig.data(1)).unwrap();
    let mut inspection = rig.inspect();
    assert_eq!(inspection.problems().len(), 2, "{:?}", inspection.problems());
    let chunks = inspection.read_records().unwrap().chunks;
    let readable = chunks.iter().filter(|chunk| inspection.read_chunk(chunk).is_ok()).count();
    assert_eq!(readable, 5);
    drop(inspection);

    let whole = fs::read(rig.index()).unwrap();
    // Within a block, so that its whole seal is gone: a last byte that was zero would not be missed.
    for length in [0, 1, 4000, 4096, 8100, 8192, 8192 + 130, whole.len() - 1] {
        fs::write(rig.index(), &whole[..length]).unwrap();
        match Inspection::open(&rig.options.dirs) {
            Ok(inspection) => {
                assert!(length >= BLOCK_BYTES && !inspection.problems().is_empty());
                // The records are whole if only the end of the eviction order is gone.
                assert_eq!(inspection.read_records().is_ok(), length + 1 == whole.len());
            }
            Err(error) => assert!(matches!(error, OpenError::Damaged { .. }), "{error}"),
        }
    }
}

#[test]
fn a_damaged_order_is_forgotten() {
    let rig = Rig::filled(1);
    let inspection = rig.inspect();
    let bytes = encode_order(&[3, 1, 2]);
    let clean = Superblock {
        order_slots: 3,
        order_sum: order_sum(&bytes),
        ..inspection.superblock.next(StoreState::Clean)
    };
    inspection.index.file.write_all_at(&bytes, order_start(NUM_SLOTS)).unwrap();
    write_superblock(&inspection.index, &clean, 1 - inspection.block).unwrap();
    drop(inspection);
    let slots: Vec<_> = rig.contents().chunks.iter().map(|chunk| chunk.slot).collect();
    assert_eq!(slots[7..], [3, 1, 2]);

    flip(&rig.index(), order_start(NUM_SLOTS) + 4);
    let mut inspection = rig.inspect();
    assert!(inspection.read_records().unwrap().report.order_damaged);
    inspection.forget_order().unwrap();
    assert!(!inspection.read_records().unwrap().report.order_damaged);
    drop(inspection);
    assert_eq!(rig.report().chunks, 10);
}

#[test]
fn a_filled_store_is_as_empty_as_before() {
    let rig = Rig::new(3);
    let mut bytes = 0;
    rig.inspect()
        .fill(&mut |more| {
            bytes += more;
            true
        })
        .unwrap();
    assert_eq!(bytes, u64::from(NUM_SLOTS) * 8192);
    assert_eq!(rig.contents().chunks, []);
    let mut calls = 0;
    let enough = &mut |_| {
        calls += 1;
        false
    };
    rig.inspect().fill(enough).unwrap();
    assert_eq!(calls, 1);
}

#[test]
fn files_that_may_only_be_read_are_looked_into_and_not_mended() {
    use std::os::unix::fs::PermissionsExt;

    let rig = Rig::filled(1);
    flip(&rig.index(), 77);
    for path in [rig.index(), rig.data(0)] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o400)).unwrap();
    }
    if OpenOptions::new().write(true).open(rig.index()).is_ok() {
        eprintln!("SKIPPED: whoever runs this test may write any file");
        return;
    }
    let mut inspection = rig.inspect();
    assert_eq!(inspection.read_records().unwrap().chunks.len(), 10);
    assert!(matches!(inspection.repair_superblock(), Err(OpenError::NotWritable { .. })));
    assert!(matches!(inspection.clear_records(&[0]), Err(OpenError::NotWritable { .. })));
}

/// Whether there is anything in a slot, or in a record but for that of slot 20.
fn has_anything(rig: &Rig) -> bool {
    let has = |path: PathBuf, from: u64, but: Range<u64>| {
        let bytes = fs::read(path).unwrap();
        let mut rest = (from..).zip(&bytes[usize::try_from(from).unwrap()..]);
        rest.any(|(at, byte)| *byte != 0 && !but.contains(&at))
    };
    let in_records = has(rig.index(), record_start(0), record_start(20)..record_start(21));
    in_records || (0..rig.options.dirs.len()).any(|device| has(rig.data(device), DATA_START, 0..0))
}

#[test]
fn after_a_wipe_no_byte_of_a_chunk_is_in_the_files() {
    for num_devices in [1, 3] {
        let rig = Rig::filled(num_devices);
        write_record(&rig.inspect(), 20, RecordState::Quarantined);
        assert!(has_anything(&rig), "the test can see them");
        let mut written = 0;
        let mut progress = |bytes| {
            written += bytes;
            true
        };
        assert!(rig.inspect().wipe(&mut progress).unwrap());
        assert_eq!(written, u64::from(NUM_SLOTS) * 8192);
        assert!(!has_anything(&rig));
        let contents = rig.contents();
        assert_eq!(
            (contents.chunks.len(), contents.quarantined),
            (0, vec![20]),
            "a slot that failed has failed"
        );
        let report = rig.report();
        assert!(report.clean && !report.order_damaged && report.damaged_records == 0, "{report:?}");
        let metadata = fs::metadata(rig.data(0)).unwrap();
        assert!(std::os::unix::fs::MetadataExt::blocks(&metadata) * 512 >= metadata.len(), "of real blocks");
    }
}

#[test]
fn a_wipe_that_is_killed_anywhere_among_the_slots_leaves_an_empty_store_that_is_wiped_by_the_next() {
    let rig = Rig::filled(3);
    // A piece a device.
    for pieces in 1..=3 {
        (0..10).for_each(|n| rig.put(n));
        let mut left = pieces;
        let killed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            rig.inspect().wipe(&mut |_| {
                left -= 1;
                assert_ne!(left, 0, "killed here");
                true
            })
        }));
        assert!(killed.is_err());
        assert_eq!(rig.contents().chunks, [], "no chunk is found");
        let report = rig.report();
        assert_eq!((report.chunks, report.damaged_records), (0, 0), "the store opens: {report:?}");
        // Nor once that opening has been closed.
        assert_eq!(rig.report().chunks, 0);
        assert!(rig.inspect().wipe(&mut |_| true).unwrap());
        assert!(!has_anything(&rig));
    }
}

/// An index whose machine loses power after so many bytes.
struct Dying<'a> {
    file: &'a fs::File,
    bytes_left: Mutex<usize>,
    /// What was written since the last sync.
    unsynced: Mutex<Vec<(u64, Vec<u8>)>>,
    /// Whether of these only the last reaches the device, and not all.
    loses: bool,
}

impl ChunkFile for Dying<'_> {
    fn read_at(&self, _: &mut [u8], _: u64) -> io::Result<usize> {
        unreachable!("nothing is read")
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        let (mut left, mut unsynced) = (self.bytes_left.lock().unwrap(), self.unsynced.lock().unwrap());
        let taken = bytes.len().min(*left);
        *left -= taken;
        unsynced.push((offset, bytes[..taken].to_vec()));
        if *left > 0 {
            return Ok(taken);
        }
        let first = if self.loses { unsynced.len() - 1 } else { 0 };
        for (offset, bytes) in &unsynced[first..] {
            self.file.write_all_at(bytes, *offset)?;
        }
        Err(Errno::NODEV.into())
    }
}

impl StableFile for Dying<'_> {
    fn sync(&self) -> io::Result<()> {
        for (offset, bytes) in self.unsynced.lock().unwrap().drain(..) {
            self.file.write_all_at(&bytes, offset)?;
        }
        Ok(())
    }
}

/// Has a wipe end when the index has taken so many bytes; whether it did.
fn wipe_until(inspection: &Inspection, bytes: usize, loses: bool) -> bool {
    let Inspection { superblock, block, index, .. } = inspection;
    let before = wipe::Before { newest: superblock, block: *block, epoch: superblock.epoch };
    let bytes_left = Mutex::new(bytes);
    let file = Dying { file: &index.file, bytes_left, unsynced: Mutex::default(), loses };
    wipe::drop_chunks(&file, &before, &[20]).is_err()
}

#[test]
fn a_wipe_that_is_killed_anywhere_among_the_records_leaves_an_empty_store_that_is_wiped_by_the_next() {
    let sector = 512;
    // Two superblocks, and what lies behind them.
    let num_bytes = usize::try_from(index_bytes(NUM_SLOTS)).unwrap();
    for loses in [false, true] {
        for bytes in (sector..=num_bytes).step_by(sector) {
            let rig = Rig::filled(1);
            let inspection = rig.inspect();
            write_record(&inspection, 20, RecordState::Quarantined);
            assert!(wipe_until(&inspection, bytes, loses), "killed after {bytes} bytes");
            drop(inspection);
            let has_begun = bytes >= BLOCK_BYTES;
            let num_chunks = if has_begun { 0 } else { 10 };
            let contents = rig.contents();
            assert_eq!(
                (contents.chunks.len(), contents.quarantined),
                (num_chunks, vec![20]),
                "after {bytes} bytes"
            );
            // Every third is wiped without having been opened.
            if bytes % (3 * sector) != 0 {
                let report = rig.report();
                assert_eq!((report.chunks, report.damaged_records), (u32::try_from(num_chunks).unwrap(), 0));
                // Nor once that opening has been closed, and in later epochs.
                assert_eq!(rig.report().chunks, report.chunks);
            } else if has_begun {
                // The next one is killed too, in its first sector.
                assert!(wipe_until(&rig.inspect(), sector, loses));
                let contents = rig.contents();
                assert_eq!((contents.chunks.len(), contents.quarantined), (0, vec![20]));
                assert_eq!(rig.report().chunks, 0);
            }
            assert!(rig.inspect().wipe(&mut |_| true).unwrap());
            assert!(!has_anything(&rig) && rig.report().clean);
        }
    }
    assert!(!wipe_until(&Rig::filled(1).inspect(), num_bytes + 1, false), "there was no more to write");
}

#[test]
fn a_wipe_leaves_the_epoch_and_a_wipe_of_what_a_killed_one_left_too() {
    let rig = Rig::filled(1);
    rig.report();
    let epoch = rig.inspect().info().epoch;
    assert!(rig.inspect().wipe(&mut |_| true).unwrap());
    assert_eq!(rig.inspect().info().epoch, epoch, "no generation comes twice");
    assert!(wipe_until(&rig.inspect(), 2 * BLOCK_BYTES, false));
    assert_eq!(rig.inspect().info().epoch, 0);
    assert!(rig.inspect().wipe(&mut |_| true).unwrap());
    assert_eq!(rig.inspect().info().epoch, epoch);
}

#[test]
fn a_wipe_that_is_stopped_says_so() {
    let rig = Rig::filled(3);
    assert!(!rig.inspect().wipe(&mut |_| false).unwrap());
    assert_eq!(rig.contents().chunks, []);
}

#[test]
fn a_wipe_writes_nothing_where_a_file_is_missing_or_cut() {
    let rig = Rig::filled(2);
    set_len(&rig.data(1), 3 << 20);
    let error = rig.inspect().wipe(&mut |_| unreachable!("no slot is written")).unwrap_err();
    assert!(matches!(error, OpenError::Damaged { damage: FileDamage::Length { .. }, .. }), "{error}");
    fs::remove_file(rig.data(1)).unwrap();
    let error = rig.inspect().wipe(&mut |_| unreachable!("no slot is written")).unwrap_err();
    assert!(matches!(error, OpenError::Damaged { damage: FileDamage::Missing, .. }), "{error}");
    assert_eq!(rig.contents().chunks.len(), 10);
}

#[test]
fn a_wipe_touches_no_file_of_another_store_and_no_store_that_is_being_made() {
    let (rig, other) = (Rig::filled(2), Rig::filled(2));
    fs::copy(other.data(1), rig.data(1)).unwrap();
    let error = rig.inspect().wipe(&mut |_| unreachable!("no slot is written")).unwrap_err();
    assert!(matches!(error, OpenError::Other { field: "store", .. }), "{error}");
    let mut inspection = other.inspect();
    inspection.superblock.state = StoreState::Creating;
    let error = inspection.wipe(&mut |_| unreachable!("no slot is written")).unwrap_err();
    assert!(matches!(error, OpenError::Other { field: "state", .. }), "{error}");
}

#[test]
fn a_wipe_needs_one_good_superblock() {
    let rig = Rig::filled(1);
    flip(&rig.index(), 100);
    assert!(rig.inspect().wipe(&mut |_| true).unwrap());
    assert!(!has_anything(&rig) && !rig.report().superblock_damaged);
}

#[test]
fn a_file_with_another_name_is_looked_into_and_neither_mended_nor_wiped() {
    for num in 0..3 {
        let rig = Rig::filled(2);
        flip(&rig.index(), 77);
        let path = [rig.index(), rig.data(0), rig.data(1)][num].clone();
        fs::hard_link(&path, rig.dirs.paths()[0].join("precious")).unwrap();
        let before = bytes_of(&[&rig]);
        let mut inspection = rig.inspect();
        assert_eq!(inspection.read_records().unwrap().chunks.len(), 10);
        for refused in [
            inspection.repair_superblock().map(drop),
            inspection.repair_headers(),
            inspection.clear_records(&[0]),
            inspection.forget_order(),
            inspection.fill(&mut |_| unreachable!("no slot is written")),
            inspection.wipe(&mut |_| unreachable!("no slot is written")).map(drop),
        ] {
            let error = refused.unwrap_err();
            assert!(matches!(&error, OpenError::Linked { path: of, num_names: 2 } if *of == path), "{error}");
        }
        assert!(bytes_of(&[&rig]) == before);
    }
}

/// Every file of the stores, with its bytes.
fn bytes_of(rigs: &[&Rig]) -> Vec<Vec<u8>> {
    let paths = rigs.iter().flat_map(|rig| {
        let data = (0..rig.dirs.paths().len()).map(|device| rig.data(device));
        data.chain([rig.index()])
    });
    paths.map(|path| fs::read(path).unwrap()).collect()
}

#[test]
fn of_other_directories_than_the_stores_no_slot_is_written() {
    let (rig, other) = (Rig::filled(2), Rig::filled(1));
    let before = bytes_of(&[&rig, &other]);
    let (dirs, others) = (rig.dirs.paths(), other.dirs.paths());
    for given in [dirs[..1].to_vec(), [&dirs[..], &others].concat()] {
        let untouched = |error: OpenError| {
            assert!(matches!(error, OpenError::Other { field: "dirs", .. }), "{error}");
            assert!(bytes_of(&[&rig, &other]) == before, "{given:?}");
        };
        let inspect = || Inspection::open(&given).unwrap();
        untouched(inspect().wipe(&mut |_| true).unwrap_err());
        untouched(inspect().fill(&mut |_| true).unwrap_err());
    }
}

/// Headers lie in memory where direct I/O does not take them.
#[test]
fn a_header_is_written_again_after_a_chunk_was_read() {
    use rustix::fs::{OFlags, fcntl_getfl};
    let rig = Rig::filled(1);
    flip(&rig.data(0), 40);
    let mut inspection = rig.inspect();
    let chunk = inspection.read_records().unwrap().chunks[0];
    inspection.read_chunk(&chunk).unwrap();
    let flags = fcntl_getfl(&inspection.data[0].as_ref().unwrap().file).unwrap();
    assert!(!flags.contains(OFlags::DIRECT), "{flags:?}");
    inspection.repair_headers().unwrap();
    assert!(inspection.problems().is_empty(), "{:?}", inspection.problems());
}

/// A device that does not let some of its bytes be written.
struct Broken {
    bytes: Range<u64>,
    error: Errno,
    fails_syncs: bool,
    written: Mutex<u64>,
}

impl ChunkFile for Broken {
    fn read_at(&self, _: &mut [u8], _: u64) -> io::Result<usize> {
        unreachable!("nothing is read")
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        if offset < self.bytes.end && self.bytes.start < offset + bytes.len() as u64 {
            return Err(self.error.into());
        }
        *self.written.lock().unwrap() += bytes.len() as u64;
        Ok(bytes.len())
    }
}

impl StableFile for Broken {
    fn sync(&self) -> io::Result<()> {
        if self.fails_syncs { Err(Errno::IO.into()) } else { Ok(()) }
    }
}

/// Overwrites 300 slots of two blocks each, of which some bytes cannot be written: so many slots are left, and so many
/// blocks are not written.
#[track_caller]
fn check_left(bytes: Range<u64>, error: Errno, fails_syncs: bool, slots: u32, blocks: u64) {
    let geometry = Geometry::new(300, 1, CHUNK_BYTES).unwrap();
    let bytes = DATA_START + bytes.start..DATA_START + bytes.end;
    let file = Broken { bytes, error, fails_syncs, written: Mutex::new(0) };
    let left = wipe::overwrite(&file, &geometry, 0, &mut |_| true).unwrap();
    let written = *file.written.lock().unwrap();
    assert_eq!((left.num_slots, 600 - written / 4096), (slots, blocks));
    assert_eq!(left.error.is_some(), slots > 0);
}

#[test]
fn what_cannot_be_overwritten_keeps_no_other_slot_from_it() {
    check_left(0..0, Errno::IO, false, 0, 0);
    check_left(8192 + 5000..8192 + 5001, Errno::IO, false, 1, 1);
    check_left(8192..3 * 8192, Errno::IO, false, 2, 4);
    // Across two pieces.
    check_left((1 << 20) - 1..(1 << 20) + 1, Errno::NODATA, false, 2, 2);
    // A device that is gone, or full, is not asked for every slot.
    check_left(5000..5001, Errno::NODEV, false, 300, 600);
    check_left((1 << 20) + 5000..(1 << 20) + 5001, Errno::NOSPC, false, 300 - 128, 600 - 256);
    // Of a sync that fails nobody knows whose bytes are lost.
    check_left(5000..5001, Errno::IO, true, 300, 1);
}

#[test]
fn a_wipe_goes_on_behind_a_device_that_takes_nothing_and_says_what_is_left() {
    let rig = Rig::filled(2);
    let mut inspection = rig.inspect();
    let path = rig.data(0);
    // It may only be read.
    inspection.data[0] = Some(LockedFile { file: fs::File::open(&path).unwrap(), path: path.clone() });
    let error = inspection.wipe(&mut |_| true).unwrap_err();
    let OpenError::NotWiped { path: of, num_slots: 20, .. } = &error else { panic!("{error}") };
    assert_eq!(*of, path);
    drop(inspection);
    let bytes = fs::read(rig.data(1)).unwrap();
    assert!(bytes[usize::try_from(DATA_START).unwrap()..].iter().all(|byte| *byte == 0));
    assert_eq!((rig.contents().chunks.len(), rig.report().chunks), (0, 0));
    assert!(has_anything(&rig));
    assert!(rig.inspect().wipe(&mut |_| true).unwrap());
    assert!(!has_anything(&rig));
}
