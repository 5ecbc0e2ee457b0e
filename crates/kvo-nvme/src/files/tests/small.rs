//! Too little room: refused with the numbers, or a smaller store.

use std::{cell::Cell, process::Command};

use rustix::io::Errno;

use super::*;
use crate::files::system::Space;

/// A file system that says how much room it has; or says so, and then has less.
struct Small {
    available_bytes: u64,
    /// The longest file that gets its blocks.
    file_bytes_max: u64,
}

const TOTAL_BYTES: u64 = 100 << 20;

impl System for Small {
    fn space(&self, _: &Path) -> Result<Space, Errno> {
        Ok(Space { available_bytes: self.available_bytes, total_bytes: TOTAL_BYTES })
    }

    fn allocate(&self, file: &File, bytes: u64) -> Result<(), Errno> {
        if bytes > self.file_bytes_max { Err(Errno::DQUOT) } else { Real.allocate(file, bytes) }
    }
}

impl Small {
    fn with(available_bytes: u64) -> Self {
        Self { available_bytes, file_bytes_max: u64::MAX }
    }
}

#[test]
fn too_little_room_is_told_with_the_numbers() {
    let rig = Rig::new(2);
    let geometry = rig.geometry();
    let needed = index_bytes(7) + geometry.file_bytes(0) + geometry.file_bytes(1);
    let error = rig.open_on(&Small::with(needed - 1)).unwrap_err();
    let OpenError::NoRoom { needed_bytes, allocated_bytes, available_bytes, .. } = error else {
        panic!("{error}")
    };
    assert_eq!((needed_bytes, allocated_bytes, available_bytes), (needed, 0, needed - 1));
    assert_eq!(rig.files(), []);
    rig.open_on(&Small::with(needed)).unwrap();
}

#[test]
fn the_files_that_are_there_are_room() {
    let mut rig = Rig::made(1);
    rig.options.if_other = IfOther::Empty;
    rig.options.capacity_chunks = 8;
    rig.open_on(&Small::with(16_384)).unwrap();
    rig.options.capacity_chunks = 20;
    let before = rig.files();
    let error = rig.open_on(&Small::with(16_384)).unwrap_err();
    assert!(
        matches!(error, OpenError::NoRoom { allocated_bytes, .. } if allocated_bytes > DATA_START),
        "{error}"
    );
    assert!(rig.files() == before, "it was touched before there was room for the new one");
}

#[test]
fn a_store_that_is_made_smaller_leaves_a_hundredth_free() {
    let mut rig = Rig::new(2);
    rig.options.capacity_chunks = 1000;
    rig.options.if_no_room = IfNoRoom::Shrink;
    let available_bytes = 6 << 20;
    let files = rig.open_on(&Small::with(available_bytes)).unwrap();
    check_whole(&files);
    let geometry = files.geometry;
    let superblock = &files.index.superblock;
    assert_eq!((superblock.num_slots, superblock.asked_slots), (geometry.capacity, 1000));
    let left = |capacity| {
        let geometry = rig.geometry().with_capacity(capacity);
        available_bytes - index_bytes(capacity) - geometry.file_bytes(0) - geometry.file_bytes(1)
    };
    let (left, left_by_larger) = (left(geometry.capacity), left(geometry.capacity + 1));
    assert!(left >= TOTAL_BYTES / 100 && left_by_larger < TOTAL_BYTES / 100, "{left} {left_by_larger}");

    // It opens at its size, for who asks for the same again and takes less.
    write_record(&files, 0, record(&files, 1));
    drop(files);
    let again = rig.open_on(&Small::with(0)).unwrap();
    assert_eq!((again.geometry, slots(&again)), (geometry, vec![0]));
    drop(again);
    rig.options.capacity_chunks = 999;
    rig.refused_as_other("capacity_chunks");
    rig.options.capacity_chunks = 1000;
    rig.options.if_no_room = IfNoRoom::Refuse;
    rig.refused_as_other("capacity_chunks");
}

#[test]
fn a_store_that_fits_is_not_made_smaller() {
    let mut rig = Rig::new(1);
    rig.options.if_no_room = IfNoRoom::Shrink;
    let needed = index_bytes(7) + rig.geometry().file_bytes(0);
    let files = rig.open_on(&Small::with(needed)).unwrap();
    assert_eq!(files.geometry.capacity, 7);
}

#[test]
fn a_quota_that_nobody_told_of_makes_the_store_smaller() {
    let mut rig = Rig::new(2);
    rig.options.capacity_chunks = 500;
    let small = Small { available_bytes: 1 << 30, file_bytes_max: DATA_START + (1 << 20) };
    let error = rig.open_on(&small).unwrap_err();
    assert!(matches!(error, OpenError::NoRoom { .. }), "{error}");
    assert_eq!(rig.files(), []);
    rig.options.if_no_room = IfNoRoom::Shrink;
    let files = rig.open_on(&small).unwrap();
    check_whole(&files);
    // 128 slots a device fit, and a step is a sixteenth.
    assert!((220..=256).contains(&files.geometry.capacity), "{}", files.geometry.capacity);
    drop(files);
    rig.open().unwrap();
}

#[test]
fn a_store_that_cannot_have_a_slot_is_refused() {
    let mut rig = Rig::new(2);
    rig.options.if_no_room = IfNoRoom::Shrink;
    for small in [Small::with(4 << 20), Small { available_bytes: 1 << 30, file_bytes_max: DATA_START }] {
        let error = rig.open_on(&small).unwrap_err();
        assert!(matches!(error, OpenError::NoRoom { .. }), "{error}");
        assert_eq!(rig.files(), []);
    }
}

#[test]
fn room_that_ends_midway_leaves_an_emptied_store_unfinished() {
    let mut rig = Rig::made(2);
    let lengths = |rig: &Rig| [0, 1].map(|device| fs::metadata(rig.data(device)).unwrap().len());
    let before = lengths(&rig);
    rig.options.capacity_chunks = 60;
    rig.options.if_other = IfOther::Empty;
    let small = Small { available_bytes: 1 << 30, file_bytes_max: DATA_START + 100_000 };
    let error = rig.open_on(&small).unwrap_err();
    assert!(matches!(error, OpenError::NoRoom { .. }), "{error}");
    assert!(lengths(&rig).iter().zip(&before).all(|(now, before)| now <= before));
    rig.options.if_other = IfOther::Refuse;
    check_whole(&rig.open().unwrap());
}

/// A file system on which somebody else has files, too.
struct Shared {
    left: Cell<u64>,
}

impl System for Shared {
    fn space(&self, _: &Path) -> Result<Space, Errno> {
        Ok(Space { available_bytes: self.left.get(), total_bytes: TOTAL_BYTES })
    }

    fn allocate(&self, file: &File, bytes: u64) -> Result<(), Errno> {
        let has = file.metadata().map_or(0, |metadata| metadata.blocks() * 512);
        let left = self.left.get().checked_sub(bytes.saturating_sub(has)).ok_or(Errno::NOSPC)?;
        Real.allocate(file, bytes)?;
        self.left.set(left);
        Ok(())
    }
}

/// B49: two stores of eight tenths of a file system. What the first was given is its own, and the second knows it.
#[test]
fn of_two_stores_that_do_not_fit_the_second_is_refused_or_made_smaller() {
    let [first, mut second] = [(); 2].map(|()| {
        let mut rig = Rig::new(1);
        rig.options.capacity_chunks = 4000;
        rig
    });
    let needed = index_bytes(4000) + first.geometry().file_bytes(0);
    let disk = Shared { left: Cell::new(needed / 8 * 10) };
    let files = first.open_on(&disk).unwrap();
    check_whole(&files);
    let left = disk.left.get();
    let error = second.open_on(&disk).unwrap_err();
    let OpenError::NoRoom { needed_bytes, available_bytes, .. } = error else { panic!("{error}") };
    assert_eq!((needed_bytes, available_bytes), (needed, left));
    assert_eq!((second.files(), disk.left.get()), (vec![], left));
    second.options.if_no_room = IfNoRoom::Shrink;
    let smaller = second.open_on(&disk).unwrap();
    check_whole(&smaller);
    assert!((500..1000).contains(&smaller.geometry.capacity), "{}", smaller.geometry.capacity);
    assert!(disk.left.get() >= TOTAL_BYTES / 100, "{}", disk.left.get());
    check_whole(&files);
}

/// A small file system in a file, mounted as long as it lives.
struct Image {
    mount: TempDir,
    _file: tempfile::NamedTempFile,
}

impl Image {
    /// An ext4 of 64 MiB; none if this is no machine to mount it on.
    fn mount() -> Option<Self> {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(64 << 20).unwrap();
        let mount = tempfile::tempdir().unwrap();
        let run = |program: &str, args: &[&str], path: &[&Path]| {
            let output = Command::new(program).args(args).args(path).output();
            let done = output.as_ref().is_ok_and(|output| output.status.success());
            if !done {
                eprintln!("SKIPPED: {program} on a small image: {output:?}");
            }
            done
        };
        let done = run("mkfs.ext4", &["-q", "-F", "-m", "0"], &[file.path()])
            && run("mount", &["-o", "loop"], &[file.path(), mount.path()]);
        done.then_some(Self { mount, _file: file })
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        let status = Command::new("umount").arg("-l").arg(self.mount.path()).status();
        if !status.is_ok_and(|status| status.success()) {
            eprintln!("cannot unmount {:?}", self.mount.path());
        }
    }
}

#[test]
fn a_full_file_system_refuses_or_holds_a_smaller_store() {
    let Some(image) = Image::mount() else { return };
    let mut options = NvmeOptions::new(image.mount.path(), 100, 1 << 20);
    let geometry = options.geometry(None).unwrap();
    let error = open(&options, geometry, true).unwrap_err();
    let OpenError::NoRoom { needed_bytes, available_bytes, .. } = error else { panic!("{error}") };
    assert_eq!(needed_bytes, index_bytes(100) + geometry.file_bytes(0));
    assert!((40 << 20..64 << 20).contains(&available_bytes), "{available_bytes}");
    assert!(!image.mount.path().join(INDEX_FILE_NAME).exists());

    options.if_no_room = IfNoRoom::Shrink;
    let files = open(&options, geometry, true).unwrap();
    check_whole(&files);
    assert!(files.direct, "this file system does direct I/O");
    assert!((40..60).contains(&files.geometry.capacity), "{}", files.geometry.capacity);
    // All of it can be written, although the rest of the file system is taken.
    let hog = File::create(image.mount.path().join("hog")).unwrap();
    while hog.write_all_at(&[1; 8192], hog.metadata().unwrap().len()).is_ok() {}
    let block = aligned::AlignedBytes::zeroed(1 << 20);
    for slot in 0..files.geometry.capacity {
        write_all_at(&files.data[0].file, block.bytes(), files.geometry.place(slot).offset).unwrap();
    }
    files.data[0].file.sync_all().unwrap();
}
