//! Files with wrong bytes, of wrong lengths, or missing.

use super::*;
use crate::{
    RecoveryReport,
    format::{EPOCH_MAX, RECORD_BYTES},
    testing::Rng,
};

/// A store of one device with a chunk in each slot, opened so often that both superblocks are of the opening `epoch`
/// or the one before, and closed if `clean`.
fn with_chunks(clean: bool) -> (Rig, usize) {
    let rig = Rig::made(1);
    let files = rig.open().unwrap();
    for slot in 0..7 {
        write_record(&files, slot, record(&files, slot.into()));
    }
    let block = files.index.block;
    if clean {
        close(&files, &[6, 4, 2, 0, 1, 3, 5]);
        return (rig, 1 - block);
    }
    (rig, block)
}

fn damage_superblock(rig: &Rig, block: usize) {
    flip(&rig.index(), block_start(block) + 40);
}

#[test]
fn one_damaged_superblock_is_no_loss() {
    for (clean, newest) in [(false, false), (false, true), (true, false), (true, true)] {
        let (rig, block) = with_chunks(clean);
        damage_superblock(&rig, if newest { block } else { 1 - block });
        let files = rig.open().unwrap();
        assert!(files.recovered.report.superblock_damaged, "{clean} {newest}");
        // Whichever it was: all records count, and no epoch comes again. Whether the store was closed is not known.
        assert_eq!(files.recovered.chunks.len(), 7, "{clean} {newest}");
        assert!(files.index.superblock.epoch > 2, "{clean} {newest}");
        assert!(!files.recovered.report.clean, "{clean} {newest}");
        drop(files);
        let files = rig.open().unwrap();
        assert!(!files.recovered.report.superblock_damaged, "it was written anew");
        assert_eq!(files.recovered.chunks.len(), 7);
    }
}

#[test]
fn a_new_store_survives_the_loss_of_either_superblock() {
    for block in [0, 1] {
        let rig = Rig::new(1);
        let files = rig.open().unwrap();
        write_record(&files, 2, record(&files, 1));
        drop(files);
        damage_superblock(&rig, block);
        assert_eq!(slots(&rig.open().unwrap()), [2]);
    }
}

#[test]
fn two_damaged_superblocks_are_refused() {
    let (mut rig, _) = with_chunks(false);
    damage_superblock(&rig, 0);
    flip(&rig.index(), block_start(1));
    rig.refused_as_damaged(&rig.index(), FileDamage::Superblocks(Damage::Checksum, Damage::Magic));
    rig.empty();
}

#[test]
fn zeroed_superblocks_are_refused() {
    let (rig, _) = with_chunks(false);
    let file = fs::OpenOptions::new().write(true).open(rig.index()).unwrap();
    file.write_all_at(&[0; 8192], 0).unwrap();
    rig.refused_as_damaged(&rig.index(), FileDamage::Superblocks(Damage::Empty, Damage::Empty));
}

#[test]
fn a_truncated_index_is_refused() {
    let made_bytes = index_bytes(7);
    for found_bytes in [made_bytes - 1, 8192, 4096] {
        let (rig, _) = with_chunks(false);
        // The second superblock is cut off in the last case: keep it from being the only one.
        set_len(&rig.index(), found_bytes);
        rig.refused_as_damaged(&rig.index(), FileDamage::Length { found_bytes, made_bytes });
    }
    let (mut rig, _) = with_chunks(false);
    set_len(&rig.index(), 0);
    rig.refused_as_damaged(&rig.index(), FileDamage::Superblocks(Damage::Empty, Damage::Empty));
    rig.empty();
}

#[test]
fn a_truncated_data_file_is_refused() {
    let made_bytes = Rig::new(2).geometry().file_bytes(1);
    for found_bytes in [0, 4095, 4096, DATA_START, made_bytes - 1, made_bytes + 1] {
        let mut rig = Rig::made(2);
        set_len(&rig.data(1), found_bytes);
        rig.refused_as_damaged(&rig.data(1), FileDamage::Length { found_bytes, made_bytes });
        rig.empty();
    }
}

#[test]
fn a_missing_data_file_is_refused() {
    let mut rig = Rig::made(2);
    fs::remove_file(rig.data(1)).unwrap();
    rig.refused_as_damaged(&rig.data(1), FileDamage::Missing);
    rig.empty();
}

#[test]
fn a_damaged_header_is_refused() {
    let mut rig = Rig::made(2);
    flip(&rig.data(1), 20);
    rig.refused_as_damaged(&rig.data(1), FileDamage::Header(Damage::Checksum));
    rig.empty();
}

#[test]
fn so_many_flipped_records_are_so_many_misses() {
    let (rig, _) = with_chunks(true);
    for slot in [0, 3, 6] {
        flip(&rig.index(), record_start(slot) + 10 + u64::from(slot));
    }
    let files = rig.open().unwrap();
    assert_eq!(slots(&files), [4, 2, 1, 5]);
    assert_eq!((files.recovered.report.damaged_records, files.recovered.report.chunks), (3, 4));
}

/// Were it left there, it would count once its epoch has come, and be newer than what was written before.
#[test]
fn a_record_of_an_epoch_that_has_not_been_never_counts() {
    let (rig, _) = with_chunks(true);
    let files = rig.open().unwrap();
    let (id, epoch) = (files.index.superblock.id, files.index.superblock.epoch);
    let read = |slot| {
        let mut bytes = [0; RECORD_BYTES];
        files.index.file.read_exact_at(&mut bytes, record_start(slot)).unwrap();
        RecordState::decode(&bytes, id, slot).unwrap()
    };
    let RecordState::Chunk(record) = read(1) else { panic!("there is a chunk") };
    let coming = Record { generation: first_generation(epoch + 1) + 9, ..record };
    let bytes = RecordState::Chunk(coming).encode(id, 6);
    files.index.file.write_all_at(&bytes, record_start(6)).unwrap();
    drop(files);
    for (opening, foreign_records) in [1, 0, 0].into_iter().enumerate() {
        let files = rig.open().unwrap();
        assert_eq!(files.recovered.report.foreign_records, foreign_records, "opening {opening}");
        let found = slots(&files);
        assert!(found.contains(&1) && !found.contains(&6), "opening {opening}: {found:?}");
    }
}

#[test]
fn a_damaged_order_costs_the_order_only() {
    let (rig, _) = with_chunks(true);
    flip(&rig.index(), order_start(7) + 5);
    let files = rig.open().unwrap();
    assert!(files.recovered.report.order_damaged);
    assert_eq!(slots(&files), [6, 5, 4, 3, 2, 1, 0]);
}

#[test]
fn an_epoch_that_is_the_last_one_is_refused() {
    let (mut rig, block) = with_chunks(false);
    let files = rig.open().unwrap();
    let superblock = Superblock { epoch: EPOCH_MAX, ..files.index.superblock.next(StoreState::Open) };
    files.index.file.write_all_at(&superblock.encode(), block_start(block)).unwrap();
    drop(files);
    rig.refused_as_other("epoch");
    rig.empty();
}

/// Beside a damaged superblock an epoch may have been lost, and two are begun.
#[test]
fn epochs_that_do_not_last_for_both_superblocks_are_refused() {
    let forge = |epoch| {
        let (rig, block) = with_chunks(false);
        let files = rig.open().unwrap();
        let superblock = Superblock { epoch, ..files.index.superblock.next(StoreState::Open) };
        files.index.file.write_all_at(&superblock.encode(), block_start(block)).unwrap();
        drop(files);
        damage_superblock(&rig, 1 - block);
        rig
    };
    let mut rig = forge(EPOCH_MAX - 2);
    rig.refused_as_other("epoch");
    rig.empty();
    assert_eq!(forge(EPOCH_MAX - 3).open().unwrap().index.superblock.epoch, EPOCH_MAX);
}

#[test]
fn whatever_stands_in_the_files_opens_or_is_refused() {
    let mut rng = Rng::for_test();
    let (mut opened, mut refused) = (0, 0);
    let (rig, _) = with_chunks(true);
    let good = rig.files();
    for round in 0..300 {
        for (path, bytes) in &good {
            fs::write(path, bytes).unwrap();
        }
        let path = if rng.one_in(5) { rig.data(0) } else { rig.index() };
        for _ in 0..=rng.below(3) {
            spoil(&path, &mut rng);
        }
        match rig.open() {
            Ok(files) => {
                opened += 1;
                let RecoveryReport { chunks, damaged_records, .. } = files.recovered.report;
                assert!(chunks <= 7 && damaged_records <= 7, "round {round}");
                assert!(files.index.superblock.epoch > 2, "round {round}");
            }
            Err(error) => {
                refused += 1;
                assert!(error.is_of_contents(), "round {round}: {error}");
            }
        }
    }
    eprintln!("{opened} opened, {refused} refused");
    assert!(opened > 30 && refused > 30, "{opened} opened, {refused} refused");
}

/// Changes some bytes of a file, or its length, or nothing.
fn spoil(path: &Path, rng: &mut Rng) {
    let file = fs::OpenOptions::new().write(true).open(path).unwrap();
    // An earlier change may have cut it.
    let len = file.metadata().unwrap().len();
    // More often where superblocks and headers have their fields.
    let at = if rng.one_in(2) { rng.below(len.max(1)) } else { rng.below(2) * 4096 + rng.below(160) };
    match rng.below(4) {
        0 if at < len => flip(path, at),
        1 => file.write_all_at(&vec![0; rng.index(9000)], at).unwrap(),
        2 => file.write_all_at(&[rng.next().to_le_bytes()[0]; 8], at).unwrap(),
        3 if rng.one_in(4) => set_len(path, rng.below(2 * len + 1)),
        _ => {}
    }
}
