//! File systems that are too small, full, and full behind the back of their own books.

use std::{
    fs::{self, File},
    io::Write,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use kvo_nvme::{BreakerOptions, IfNoRoom, NvmeOptions, NvmeStore, OpenError, Preinit, TierState};

use crate::{
    mounts::Mount,
    rig::{CHUNK_BYTES, LONG, Rig, engines, options},
};

const MIB: u64 = 1 << 20;
const CHUNKS_PER_MIB: u32 = 64;

fn small_ext4(mib: u64) -> Option<(tempfile::TempDir, Mount)> {
    let dir = tempfile::tempdir().unwrap();
    let mount = Mount::ext4(&dir.path().join("image"), mib * MIB, false)?;
    Some((dir, mount))
}

/// Writes zeros until there is no room at all.
fn fill(path: &Path) {
    let mut file = File::create(path).unwrap();
    let zeros = vec![0; CHUNK_BYTES];
    for piece in [CHUNK_BYTES, 4096, 1] {
        while file.write_all(&zeros[..piece]).is_ok() {}
    }
    let _ = file.sync_all();
}

/// B49: the room is taken when a store is made, or it is not made.
#[test]
fn too_little_room_is_told_with_numbers_and_leaves_nothing_behind() {
    let Some((_dir, mount)) = small_ext4(64) else { return };
    let dir = mount.subdir("store");
    for preinit in [Preinit::None, Preinit::Full] {
        let options = NvmeOptions { preinit, ..options(&dir, 100 * CHUNKS_PER_MIB) };
        let error = NvmeStore::open_without_memory(options).unwrap_err();
        let OpenError::NoRoom { needed_bytes, allocated_bytes, available_bytes, .. } = error else {
            panic!("{error:?}")
        };
        assert!(needed_bytes >= 100 * MIB && allocated_bytes == 0, "{error:?}");
        assert!((32 * MIB..64 * MIB).contains(&available_bytes), "{error:?}");
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 0, "files were left behind");
    }
}

#[test]
fn a_store_that_may_be_smaller_takes_what_there_is_and_works() {
    let Some((_dir, mount)) = small_ext4(48) else { return };
    let dir = mount.subdir("store");
    let asked = 100 * CHUNKS_PER_MIB;
    let options = NvmeOptions { if_no_room: IfNoRoom::Shrink, ..options(&dir, asked) };
    let mut rig = Rig::open(&options);
    let capacity = rig.store.capacity_chunks();
    assert!((20 * CHUNKS_PER_MIB..48 * CHUNKS_PER_MIB).contains(&capacity), "{capacity}");
    let end = u64::from(capacity) + 100;
    assert_eq!(rig.put(0..end).misses, []);
    assert_eq!(rig.get(end - 500..end).misses, []);
    rig.close();
    // With the same options it is the same store.
    let mut rig = Rig::open(&options);
    assert_eq!(rig.store.capacity_chunks(), capacity);
    assert_eq!(rig.get(end - 500..end).misses, []);
}

/// B49: what others take has been taken from nobody.
#[test]
fn a_store_has_its_room_when_the_rest_of_the_file_system_is_full() {
    for engine in engines() {
        let Some((_dir, mount)) = small_ext4(32) else { return };
        let capacity = 8 * CHUNKS_PER_MIB;
        let options = NvmeOptions { engine, ..options(mount.subdir("store"), capacity) };
        let mut rig = Rig::open(&options);
        fill(&mount.path().join("rest"));
        // Every slot is written for the first time, and then overwritten.
        let end = u64::from(capacity);
        assert_eq!(rig.put(0..2 * end).misses, []);
        assert_eq!(rig.get(end..2 * end).misses, []);
        assert_eq!((rig.store.state(), rig.store.stats().write_errors), (TierState::Up, 0));
        rig.close();
        let mut rig = Rig::open(&options);
        assert_eq!(rig.get(end..2 * end).misses, []);
    }
}

/// B49: of two stores that ask for more than there is the second is refused, or takes what is left; and then both write
/// for ever, as the room of each is its own.
#[test]
fn two_stores_on_one_file_system_have_their_room_each() {
    for engine in engines() {
        let Some((_dir, mount)) = small_ext4(48) else { return };
        let capacity = 28 * CHUNKS_PER_MIB;
        let of = |name| NvmeOptions { engine, ..options(mount.subdir(name), capacity) };
        let mut first = Rig::open(&of("first"));
        let second = of("second");
        let error = NvmeStore::open_without_memory(second.clone()).unwrap_err();
        let OpenError::NoRoom { needed_bytes, available_bytes, .. } = error else { panic!("{error:?}") };
        assert!(needed_bytes > available_bytes && available_bytes < 20 * MIB, "{error:?}");
        let mut second = Rig::open(&NvmeOptions { if_no_room: IfNoRoom::Shrink, ..second });
        let smaller = second.store.capacity_chunks();
        assert!((4 * CHUNKS_PER_MIB..capacity).contains(&smaller), "{smaller}");
        // More than either has room for.
        let end = u64::from(capacity + 256);
        for start in (0..end).step_by(256) {
            for rig in [&mut first, &mut second] {
                assert_eq!(rig.put(start..start + 256).misses, []);
            }
        }
        for rig in [&mut first, &mut second] {
            assert_eq!(rig.get(end - 200..end).misses, []);
            let stats = rig.store.stats();
            assert_eq!((stats.state, stats.write_errors), (TierState::Up, 0));
            assert!(stats.chunks_evicted > 0, "{stats:?}");
        }
    }
}

/// B49, where blocks were promised that there are not: an image on a file system that has less room than the image
/// says.
#[test]
fn a_thin_device_that_is_full_makes_the_tier_read_only_until_there_is_room() {
    for engine in engines() {
        let Some(below) = Mount::tmpfs(24 * MIB) else { return };
        let Some(mount) = Mount::ext4(&below.path().join("image"), 96 * MIB, false) else { return };
        let breaker = BreakerOptions { pause: Duration::from_millis(100), ..BreakerOptions::default() };
        let capacity = 48 * CHUNKS_PER_MIB;
        let options = NvmeOptions { engine, breaker, ..options(mount.subdir("store"), capacity) };
        let mut rig = Rig::open(&options);
        let end = u64::from(capacity);
        let put = rig.put(0..end);
        assert!(put.hits.len() > 100 && put.misses.len() > 100, "{} were written", put.hits.len());
        assert_eq!(rig.store.state(), TierState::ReadOnly, "{:?}", rig.store.stats());
        // Reads go on. The loop device calls a write done of which only a part had room: those chunks are misses by
        // their checksums.
        let torn = rig.get(put.hits.iter().copied()).misses.len();
        assert!(torn <= 32, "{torn} of {} are lost", put.hits.len());
        let stats = rig.store.stats();
        assert_eq!(
            (stats.state, stats.checksum_failures, stats.read_errors),
            (TierState::ReadOnly, torn as u64, 0)
        );

        below.remount(&format!("size={}", 200 * MIB)).unwrap();
        let started = Instant::now();
        while rig.store.state() != TierState::Up {
            assert!(started.elapsed() < LONG, "{:?}", rig.store.stats());
            thread::sleep(Duration::from_millis(20));
            rig.put([end]);
        }
        assert_eq!(rig.put(end..end + 1000).misses, []);
        assert_eq!(rig.get(end..end + 1000).misses, []);
    }
}
