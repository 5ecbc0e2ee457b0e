//! Stores for the program to be run on: made by it, and filled by hand as `docs/FORMAT.md` says, so that what the
//! tests put there is written by other code than what reads it.

use std::{
    fs::{self, File, OpenOptions},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use kvo_core::{BlockHash, GroupIdx, OffloadKey};
use serde_json::Value;
use tempfile::TempDir;
use twox_hash::XxHash3_64;

/// Bytes of a chunk, and from one slot to the next.
pub(crate) const CHUNK_BYTES: u64 = 8192;
pub(crate) const NUM_SLOTS: u32 = 40;

/// As the format has them.
const BLOCK_BYTES: u64 = 4096;
const RECORDS_START: u64 = 8192;
const RECORD_BYTES: usize = 128;
const DATA_START: u64 = 2 << 20;

/// What the program said, and how it ended.
pub(crate) struct Ran {
    pub(crate) status: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

/// Runs the program.
pub(crate) fn run<I: AsRef<std::ffi::OsStr>>(args: impl IntoIterator<Item = I>) -> Ran {
    let output = Command::new(env!("CARGO_BIN_EXE_kvo-store")).args(args).output().unwrap();
    let Output { status, stdout, stderr } = output;
    let text = |bytes| String::from_utf8(bytes).unwrap();
    let ran = Ran { status: status.code().expect("no signal"), out: text(stdout), err: text(stderr) };
    assert!(!ran.err.contains("panicked"), "{}", ran.err);
    ran
}

/// The files of a store.
pub(crate) struct Store {
    pub(crate) dirs: Vec<TempDir>,
    id: [u8; 16],
}

impl Store {
    /// An empty store on so many directories.
    pub(crate) fn new(num_dirs: usize) -> Self {
        let dirs: Vec<_> = (0..num_dirs).map(|_| tempfile::tempdir().unwrap()).collect();
        let mut store = Self { dirs, id: [0; 16] };
        let ran = store.run("create", &["--chunk-bytes=8KiB", &format!("--capacity-chunks={NUM_SLOTS}")]);
        assert_eq!(ran.status, 0, "{}", ran.err);
        store.id = store.superblock(0)[16..32].try_into().unwrap();
        store
    }

    /// A store with the chunks 0 to `num_chunks`, each in the slot of its number.
    pub(crate) fn with_chunks(num_dirs: usize, num_chunks: u32) -> Self {
        let store = Self::new(num_dirs);
        (0..num_chunks).for_each(|n| store.put(n, n));
        store
    }

    /// Runs a command on it.
    pub(crate) fn run(&self, command: &str, options: &[&str]) -> Ran {
        let mut args = vec![command.to_owned()];
        args.extend(options.iter().map(|option| (*option).to_owned()));
        args.extend(self.paths());
        run(args)
    }

    pub(crate) fn paths(&self) -> Vec<String> {
        self.dirs.iter().map(|dir| dir.path().to_str().unwrap().to_owned()).collect()
    }

    /// Runs a command on it that ends with `status`, and gives what it printed as JSON.
    #[track_caller]
    pub(crate) fn json(&self, command: &str, options: &[&str], status: i32) -> Value {
        let ran = self.run(command, &[&["--json"], options].concat());
        assert_eq!(ran.status, status, "{}{}", ran.out, ran.err);
        serde_json::from_str(&ran.out).unwrap_or_else(|error| panic!("{error}: {}", ran.out))
    }

    /// Runs a command on it that ends with `status`, and gives what it printed for people.
    #[track_caller]
    pub(crate) fn text(&self, command: &str, options: &[&str], status: i32) -> String {
        let ran = self.run(command, options);
        assert_eq!(ran.status, status, "{}{}", ran.out, ran.err);
        ran.out
    }

    pub(crate) fn dir(&self) -> &Path {
        self.dirs[0].path()
    }

    pub(crate) fn index(&self) -> PathBuf {
        self.dir().join("kvo-nvme.index")
    }

    pub(crate) fn data(&self, device: usize) -> PathBuf {
        self.dirs[device].path().join("kvo-nvme.data")
    }

    /// The bytes of a superblock.
    pub(crate) fn superblock(&self, block: u64) -> Vec<u8> {
        let mut bytes = vec![0; usize::try_from(BLOCK_BYTES).unwrap()];
        File::open(self.index()).unwrap().read_exact_at(&mut bytes, block * BLOCK_BYTES).unwrap();
        bytes
    }

    /// Changes both superblocks and seals them again.
    pub(crate) fn patch_superblocks(&self, at: usize, field: &[u8]) {
        for block in 0..2 {
            let mut bytes = self.superblock(block);
            bytes[at..at + field.len()].copy_from_slice(field);
            seal(&mut bytes, 0);
            write(&self.index(), block * BLOCK_BYTES, &bytes);
        }
    }

    /// Puts chunk `n` into a slot: its payload and its record.
    pub(crate) fn put(&self, n: u32, slot: u32) {
        let (key, generation) = (key(n), generation(n));
        let payload = payload(n);
        let tenancy = XxHash3_64::oneshot_with_seed(generation, &key.to_bytes());
        let sum = XxHash3_64::oneshot_with_seed(tenancy, &payload);
        let (device, offset) = self.place(slot);
        write(&self.data(device), offset, &payload);

        let mut record = Vec::new();
        record.extend(1_u32.to_le_bytes());
        record.extend(1_u32.to_le_bytes());
        record.extend(key.to_bytes());
        record.extend(u32::try_from(CHUNK_BYTES).unwrap().to_le_bytes());
        record.extend(generation.to_le_bytes());
        record.extend(sum.to_le_bytes());
        record.extend(7_u64.to_le_bytes());
        record.extend((n * 16).to_le_bytes());
        self.write_record(slot, record);
    }

    /// Says that a slot has failed.
    pub(crate) fn quarantine(&self, slot: u32) {
        self.write_record(slot, 2_u32.to_le_bytes().to_vec());
    }

    fn write_record(&self, slot: u32, mut record: Vec<u8>) {
        record.resize(RECORD_BYTES, 0);
        seal(&mut record, XxHash3_64::oneshot_with_seed(u64::from(slot), &self.id));
        write(&self.index(), record_start(slot), &record);
    }

    /// Turns a bit of a slot's record.
    pub(crate) fn flip_record(&self, slot: u32) {
        flip(&self.index(), record_start(slot) + 50);
    }

    /// Turns a bit of a slot's payload.
    pub(crate) fn flip_payload(&self, slot: u32) {
        let (device, offset) = self.place(slot);
        flip(&self.data(device), offset + 4097);
    }

    /// Turns a bit of a superblock.
    pub(crate) fn flip_superblock(&self, block: u64) {
        flip(&self.index(), block * BLOCK_BYTES + 40);
    }

    pub(crate) fn record(&self, slot: u32) -> Vec<u8> {
        let mut bytes = vec![0; RECORD_BYTES];
        File::open(self.index()).unwrap().read_exact_at(&mut bytes, record_start(slot)).unwrap();
        bytes
    }

    fn place(&self, slot: u32) -> (usize, u64) {
        let num_dirs = u32::try_from(self.dirs.len()).unwrap();
        ((slot % num_dirs) as usize, DATA_START + u64::from(slot / num_dirs) * CHUNK_BYTES)
    }

    /// Every file with its bytes.
    pub(crate) fn files(&self) -> Vec<(PathBuf, Vec<u8>)> {
        let dirs = self.dirs.iter().flat_map(|dir| fs::read_dir(dir.path()).unwrap());
        let mut files: Vec<_> = dirs.map(|entry| entry.unwrap().path()).collect();
        files.sort();
        files.into_iter().map(|path| (path.clone(), fs::read(&path).unwrap())).collect()
    }

    /// Runs a command that must leave every byte as it is.
    #[track_caller]
    pub(crate) fn untouched_by<T>(&self, run: impl FnOnce(&Self) -> T) -> T {
        let before = self.files();
        let result = run(self);
        assert!(self.files() == before, "files have changed");
        result
    }
}

pub(crate) fn key(n: u32) -> OffloadKey {
    OffloadKey::new(BlockHash([u8::try_from(n).unwrap(); 32]), GroupIdx(n % 3))
}

/// Of the first epoch.
pub(crate) fn generation(n: u32) -> u64 {
    (1 << 40) + u64::from(n)
}

fn payload(n: u32) -> Vec<u8> {
    (0..CHUNK_BYTES).map(|at| (at / 7 + u64::from(n)).to_le_bytes()[0]).collect()
}

fn record_start(slot: u32) -> u64 {
    RECORDS_START + u64::from(slot) * RECORD_BYTES as u64
}

fn seal(bytes: &mut [u8], seed: u64) {
    let at = bytes.len() - 8;
    let sum = XxHash3_64::oneshot_with_seed(seed, &bytes[..at]);
    bytes[at..].copy_from_slice(&sum.to_le_bytes());
}

fn write(path: &Path, at: u64, bytes: &[u8]) {
    OpenOptions::new().write(true).open(path).unwrap().write_all_at(bytes, at).unwrap();
}

pub(crate) fn flip(path: &Path, at: u64) {
    let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 0x10], at).unwrap();
}

pub(crate) fn set_len(path: &Path, bytes: u64) {
    OpenOptions::new().write(true).open(path).unwrap().set_len(bytes).unwrap();
}
