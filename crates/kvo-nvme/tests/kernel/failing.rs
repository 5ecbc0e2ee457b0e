//! Devices that answer with errors, file systems that become read-only, directories that vanish, and other processes.

use std::{
    fs::{self, OpenOptions},
    io::{BufRead, BufReader, Read, Write},
    path::Path,
    process::Stdio,
    thread,
    time::Duration,
};

use kvo_nvme::{BreakerOptions, NvmeOptions, NvmeStore, OpenError, TierState};

use crate::{
    mounts::{Mount, skip},
    rig::{LONG, Rig, child, engines, options, told},
};

const MIB: u64 = 1 << 20;
const CAPACITY: u32 = 2048;
const NUM_CHUNKS: u64 = CAPACITY as u64;

/// A breaker that opens after so many errors.
fn after(errors: u32) -> BreakerOptions {
    BreakerOptions { errors, pause: Duration::from_millis(200), ..BreakerOptions::default() }
}

/// A full store on a device of its own, whose image is then cut in the middle.
fn on_half_a_device(change: impl Fn(&mut NvmeOptions), then: impl Fn(Rig, &Path)) {
    for engine in engines() {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("image");
        let Some(mount) = Mount::ext4(&image, 64 * MIB, true) else { return };
        let mut options = NvmeOptions { engine, ..options(mount.subdir("store"), CAPACITY) };
        change(&mut options);
        let mut rig = Rig::open(&options);
        assert_eq!(rig.put(0..NUM_CHUNKS).misses, []);
        if !rig.store.engine_info().direct_io {
            return skip("no direct I/O here: the page cache would hide the device").unwrap_or_default();
        }
        cut(&image, 20 * MIB);
        then(rig, &image);
    }
}

fn cut(image: &Path, bytes: u64) {
    OpenOptions::new().write(true).open(image).unwrap().set_len(bytes).unwrap();
}

#[test]
fn what_a_broken_device_cannot_read_is_a_miss_and_its_slot_is_used_no_more() {
    on_half_a_device(
        |options| options.breaker = after(u32::MAX),
        |mut rig, _| {
            let found = rig.get(0..NUM_CHUNKS);
            assert!(found.hits.len() > 100 && found.misses.len() > 100, "{} hits", found.hits.len());
            let stats = rig.store.stats();
            let num_missed = found.misses.len() as u64;
            assert_eq!((stats.read_errors, stats.counts.quarantined.into()), (num_missed, num_missed));
            assert!(stats.state == TierState::Up && stats.counts.add_up(), "{stats:?}");
            // What is left is a smaller store.
            assert_eq!(rig.get(found.hits.iter().copied()).misses, []);
            let put = rig.put(NUM_CHUNKS..NUM_CHUNKS + 50);
            assert_eq!(rig.get(put.hits.iter().copied()).misses, []);
            assert!(put.hits.len() > 10, "{:?}", rig.store.stats());
            let _ = rig.store.close(LONG);
        },
    );
}

#[test]
fn a_device_that_fails_too_often_is_left_alone_and_tried_later() {
    on_half_a_device(
        |options| options.breaker = after(8),
        |mut rig, image| {
            cut(image, 0);
            let found = rig.get(0..NUM_CHUNKS);
            assert_eq!(found.hits, []);
            let stats = rig.store.stats();
            assert_eq!((stats.state, stats.breaker_opened), (TierState::Open, 1), "{stats:?}");
            assert!(stats.read_errors < 8 + 8, "the rest was not tried: {stats:?}");

            // It answers again, with zeros: each is a miss by its checksum, and new chunks can be written.
            cut(image, 64 * MIB);
            let mut new = NUM_CHUNKS..;
            let started = std::time::Instant::now();
            while rig.store.state() != TierState::Up {
                assert!(started.elapsed() < LONG, "{:?}", rig.store.stats());
                rig.put(new.by_ref().take(1));
                thread::sleep(Duration::from_millis(20));
            }
            let end = new.start + 20;
            assert_eq!(rig.put(new.start..end).misses, []);
            assert_eq!(rig.get(end - 20..end).misses, []);
            assert!(rig.store.stats().counts.add_up());
            let _ = rig.store.close(LONG);
        },
    );
}

/// B47: and what cannot be written is a failure of that write alone.
#[test]
fn a_file_system_that_becomes_read_only_can_still_be_read() {
    for engine in engines() {
        let dir = tempfile::tempdir().unwrap();
        let Some(mount) = Mount::ext4(&dir.path().join("image"), 64 * MIB, false) else { return };
        let options = NvmeOptions { engine, ..options(mount.subdir("store"), CAPACITY) };
        let mut rig = Rig::open(&options);
        assert_eq!(rig.put(0..100).misses, []);
        // As after an error of its own.
        let trigger = format!("/sys/fs/ext4/{}/trigger_fs_error", mount.device_name());
        if let Err(error) = fs::write(&trigger, "1") {
            return skip(format!("{trigger}: {error}")).unwrap_or_default();
        }
        let put = rig.put(200..300);
        assert_eq!(put.hits, []);
        assert_eq!(rig.store.state(), TierState::ReadOnly, "{:?}", rig.store.stats());
        assert_eq!(rig.get(0..100).misses, []);
        let _ = rig.store.close(LONG);
        let error = NvmeStore::open_without_memory(options).unwrap_err();
        assert!(matches!(error, OpenError::NotWritable { .. }), "{error:?}");
    }
}

/// B14: files that somebody else has deleted are no endless tries.
#[test]
fn a_store_whose_directory_was_removed_works_to_its_end() {
    for engine in engines() {
        let parent = tempfile::tempdir().unwrap();
        let dir = parent.path().join("store");
        fs::create_dir(&dir).unwrap();
        let options = NvmeOptions { engine, ..options(&dir, 64) };
        let mut rig = Rig::open(&options);
        assert_eq!(rig.put(0..32).misses, []);
        fs::remove_dir_all(&dir).unwrap();
        assert_eq!(rig.put(32..100).misses, []);
        // Of the job that began with 32 the tail was evicted.
        assert_eq!(rig.get(40..100).misses, []);
        assert_eq!(rig.store.state(), TierState::Up);
        rig.close();
        let error = NvmeStore::open_without_memory(options).unwrap_err();
        assert!(matches!(error, OpenError::DirectoryMissing { .. }), "{error:?}");
    }
}

/// B62: two processes never write one store.
#[test]
fn a_store_that_another_process_has_is_in_use_until_that_is_killed() {
    const TEST: &str = "a_store_that_another_process_has_is_in_use_until_that_is_killed";
    if let Some(dir) = told() {
        let mut rig = Rig::open(&options(dir, 64));
        assert_eq!(rig.put(0..32).misses, []);
        println!("\nopen");
        std::io::stdout().flush().unwrap();
        // Until the parent is gone.
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        panic!("nobody has killed it");
    }
    let dir = tempfile::tempdir().unwrap();
    let mut command = child(module_path!(), TEST, dir.path());
    let mut other = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(other.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap() == "open"));

    for engine in engines() {
        let options = NvmeOptions { engine, ..options(dir.path(), 64) };
        let error = NvmeStore::open_without_memory(options).unwrap_err();
        assert!(matches!(error, OpenError::InUse { .. }), "{error:?}");
    }
    other.kill().unwrap();
    other.wait().unwrap();
    // At once: the kernel may need a moment to let go of a ring, and with it of the files.
    NvmeStore::open_without_memory(options(dir.path(), 64)).unwrap();
}
