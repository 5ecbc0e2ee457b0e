//! Stores on real files: made, opened again, damaged, exchanged, interrupted.

mod create;
mod damage;
mod other;
mod small;

use std::{
    fs,
    os::unix::fs::{FileExt, MetadataExt, PermissionsExt},
    panic::{AssertUnwindSafe, catch_unwind},
};

use kvo_core::{BlockHash, GroupIdx, OffloadKey};
use tempfile::TempDir;

use super::*;
use crate::{
    FileDamage, IfNoRoom, Preinit,
    format::{
        DATA_START, Damage, Record, RecordState, StoreState, encode_order, first_generation, index_bytes,
        order_start, order_sum, record_start,
    },
};

const CHUNK_BYTES: u64 = 5000;

/// The directories of a store.
pub(super) struct Dirs(Vec<TempDir>);

impl Dirs {
    pub(super) fn new(num_devices: usize) -> Self {
        Self((0..num_devices).map(|_| tempfile::tempdir().unwrap()).collect())
    }

    pub(super) fn paths(&self) -> Vec<PathBuf> {
        self.0.iter().map(|dir| dir.path().to_path_buf()).collect()
    }

    pub(super) fn index(&self) -> PathBuf {
        self.0[0].path().join(INDEX_FILE_NAME)
    }

    pub(super) fn data(&self, device: usize) -> PathBuf {
        self.0[device].path().join(FILE_NAME)
    }
}

/// A store of 7 chunks on some directories.
struct Rig {
    dirs: Dirs,
    options: NvmeOptions,
}

impl Rig {
    fn new(num_devices: usize) -> Self {
        let dirs = Dirs::new(num_devices);
        let options =
            NvmeOptions { dirs: dirs.paths(), fingerprint: [3; 32], ..NvmeOptions::new("", 7, CHUNK_BYTES) };
        Self { dirs, options }
    }

    /// A store that was made and left.
    fn made(num_devices: usize) -> Self {
        let rig = Self::new(num_devices);
        rig.open().unwrap();
        rig
    }

    fn open(&self) -> Result<OpenFiles, OpenError> {
        open(&self.options, self.geometry(), false)
    }

    fn open_on(&self, system: &dyn System) -> Result<OpenFiles, OpenError> {
        open_with(&self.options, self.geometry(), false, system)
    }

    fn geometry(&self) -> Geometry {
        self.options.geometry(None).unwrap()
    }

    fn index(&self) -> PathBuf {
        self.dirs.index()
    }

    fn data(&self, device: usize) -> PathBuf {
        self.dirs.data(device)
    }

    /// Every file in the directories, with its bytes.
    fn files(&self) -> Vec<(PathBuf, Vec<u8>)> {
        let mut files = Vec::new();
        for dir in self.dirs.paths() {
            for entry in fs::read_dir(dir).unwrap() {
                let path = entry.unwrap().path();
                files.push((path.clone(), fs::read(&path).unwrap()));
            }
        }
        files.sort();
        files
    }

    /// Checks that opening fails and touches nothing, and hands the error on.
    #[track_caller]
    fn refused(&self) -> OpenError {
        let before = self.files();
        let error = self.open().unwrap_err();
        assert!(self.files() == before, "a refused store was touched: {error}");
        error
    }

    /// Checks that opening fails for what `field` says.
    #[track_caller]
    fn refused_as_other(&self, field: &str) {
        let error = self.refused();
        assert!(matches!(&error, OpenError::Other { field: found, .. } if *found == field), "{error}");
    }

    #[track_caller]
    fn refused_as_damaged(&self, at: &Path, wanted: FileDamage) {
        let error = self.refused();
        let OpenError::Damaged { path, damage } = &error else { panic!("{error}") };
        assert_eq!((path.as_path(), *damage), (at, wanted));
    }

    /// Opens a new store in the place of what is there.
    #[track_caller]
    fn empty(&mut self) -> OpenFiles {
        self.options.if_other = IfOther::Empty;
        let files = self.open().unwrap();
        self.options.if_other = IfOther::Refuse;
        assert_eq!((files.index.superblock.epoch, files.recovered.chunks.len()), (1, 0));
        check_whole(&files);
        files
    }
}

/// Checks that every file is as long as it must be, with a block behind every byte and for its owner only.
#[track_caller]
fn check_whole(files: &OpenFiles) {
    let data = (0..).zip(&files.data).map(|(device, data)| (&data.file, files.geometry.file_bytes(device)));
    let index = (&files.index.file, index_bytes(files.geometry.capacity));
    for (file, bytes) in data.chain([index]) {
        let metadata = file.metadata().unwrap();
        assert_eq!(metadata.len(), bytes);
        assert!(metadata.blocks() * 512 >= bytes, "{} blocks", metadata.blocks());
        assert_eq!(metadata.permissions().mode() & 0o777, 0o600);
    }
}

/// Turns a bit.
pub(super) fn flip(path: &Path, at: u64) {
    let file = fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 0x20], at).unwrap();
}

pub(super) fn set_len(path: &Path, bytes: u64) {
    fs::OpenOptions::new().write(true).open(path).unwrap().set_len(bytes).unwrap();
}

/// A record of chunk `n`, as the store that is open in `files` writes it.
fn record(files: &OpenFiles, n: u64) -> RecordState {
    RecordState::Chunk(Record {
        key: OffloadKey::new(BlockHash::from_u64(n), GroupIdx(0)),
        length: u32::try_from(CHUNK_BYTES).unwrap(),
        generation: first_generation(files.index.superblock.epoch) + n,
        checksum: n,
        run: 0,
        end_token: None,
    })
}

fn write_record(files: &OpenFiles, slot: u32, record: RecordState) {
    let bytes = record.encode(files.index.superblock.id, slot);
    files.index.file.write_all_at(&bytes, record_start(slot)).unwrap();
}

/// Writes what a clean close does.
fn close(files: &OpenFiles, order: &[u32]) {
    let Index { file, superblock, block, .. } = &files.index;
    let bytes = encode_order(order);
    file.write_all_at(&bytes, order_start(superblock.num_slots)).unwrap();
    let clean = Superblock {
        order_slots: u32::try_from(order.len()).unwrap(),
        order_sum: order_sum(&bytes),
        ..superblock.next(StoreState::Clean)
    };
    file.write_all_at(&clean.encode(), block_start(1 - block)).unwrap();
}

fn slots(files: &OpenFiles) -> Vec<u32> {
    files.recovered.chunks.iter().map(|entry| entry.slot).collect()
}
