//! The same tests over each engine: real files, real threads, real host memory.

mod ends;
mod faults;
mod limits;
mod moves;
mod slow;
#[expect(unsafe_code, reason = "it hands out the claims of a region as its own")]
mod unruly;

use std::{
    fs::{File, OpenOptions},
    os::unix::fs::OpenOptionsExt,
    path::Path,
    process::Command,
    sync::Arc,
    time::Duration,
};

use crossbeam_channel::Receiver;
use kvo_core::{BlockHash, GroupIdx, HostMemory, JobId, OffloadKey, SlotAccessError, SlotId};
use kvo_cpu::{HostRegion, RegionOptions};
use rustix::fs::{MemfdFlags, OFlags, memfd_create};

use super::{Action, Engine, EngineInfo, Event, Fault, Op, OpDone, Started, Stuck, start};
use crate::{
    ChecksumKind, EngineKind, NvmeOptions, OpenError, checksum::checksum, file::ChunkFile,
    format::DATA_START, options::Geometry, slots::Tenant, testing::Rng, worker::Worker,
};

const CHUNK_BYTES: usize = 64 << 10;
const LONG: Duration = Duration::from_mins(1);

/// An engine to be tested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Kind {
    engine: EngineKind,
    direct: bool,
}

const KINDS: [Kind; 4] = [
    Kind { engine: EngineKind::Threads, direct: false },
    Kind { engine: EngineKind::Threads, direct: true },
    Kind { engine: EngineKind::Uring, direct: false },
    Kind { engine: EngineKind::Uring, direct: true },
];

/// Runs a test over each engine that works here.
fn over_each(test: impl Fn(Kind)) {
    for kind in KINDS.into_iter().filter(|&kind| works(kind)) {
        eprintln!("{kind:?}");
        test(kind);
    }
}

/// Whether an engine works here; says so if not.
fn works(kind: Kind) -> bool {
    match Rig::try_new(kind, 1, 1, |_| {}) {
        Ok(mut rig) => rig.stop(),
        Err(error) => {
            eprintln!("SKIPPED {kind:?}: {error:?}");
            return false;
        }
    }
    true
}

fn has_uring() -> bool {
    works(Kind { engine: EngineKind::Uring, direct: false })
}

/// Whether this is the process of a test alone. If not, such a process is started, and must end well.
///
/// `prefix` is a command that runs the one that follows it.
#[track_caller]
fn is_alone(module: &str, test: &str, prefix: &[&str]) -> bool {
    const ALONE: &str = "KVO_NVME_ALONE";
    if std::env::var_os(ALONE).is_some() {
        return true;
    }
    let program = std::env::current_exe().unwrap();
    let (_, module) = module.split_once("::").unwrap();
    let name = format!("{module}::{test}");
    let mut command = match prefix {
        [] => Command::new(program),
        [first, rest @ ..] => {
            let mut command = Command::new(first);
            command.args(rest).arg(program);
            command
        }
    };
    let output =
        command.args([&name, "--exact", "--nocapture", "--test-threads=1"]).env(ALONE, "1").output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    said.lines().filter(|line| line.starts_with("SKIPPED")).for_each(|line| eprintln!("{line}"));
    let ran = String::from_utf8_lossy(&output.stdout).contains("1 passed");
    assert!(output.status.success() && ran, "{name}: {:?}\n{said}", output.status);
    false
}

/// An engine with files and memory, and no store.
struct Rig {
    engine: Box<dyn Engine>,
    info: EngineInfo,
    events: Receiver<Event>,
    memory: Arc<HostRegion>,
    files: Vec<Arc<File>>,
    geometry: Geometry,
    dir: tempfile::TempDir,
    next: u32,
}

impl Rig {
    fn new(kind: Kind, num_devices: u32, capacity: u32) -> Self {
        Self::try_new(kind, num_devices, capacity, |_| {}).unwrap()
    }

    /// Twice as many slots of host memory as of the files.
    fn try_new(
        kind: Kind,
        num_devices: u32,
        capacity: u32,
        change: impl FnOnce(&mut NvmeOptions),
    ) -> Result<Self, OpenError> {
        Self::sized(kind, num_devices, capacity, capacity * 2, change)
    }

    fn sized(
        kind: Kind,
        num_devices: u32,
        capacity: u32,
        num_slots: u32,
        change: impl FnOnce(&mut NvmeOptions),
    ) -> Result<Self, OpenError> {
        let mut options = NvmeOptions { engine: kind.engine, ..options(capacity) };
        change(&mut options);
        let dir = tempfile::tempdir().unwrap();
        let geometry = Geometry::new(capacity, num_devices, options.chunk_bytes).unwrap();
        let files = (0..num_devices).map(|device| make_file(dir.path(), device, &geometry, kind.direct));
        let files = files.collect::<Result<Vec<_>, OpenError>>()?;
        Self::on_files(&options, files, num_slots, |memory| memory, dir)
    }

    /// Over host memory that is something else to the engine.
    fn over(
        kind: Kind,
        num_devices: u32,
        capacity: u32,
        wrap: impl FnOnce(Arc<HostRegion>) -> Arc<dyn HostMemory>,
    ) -> Result<Self, OpenError> {
        let options = NvmeOptions { engine: kind.engine, ..options(capacity) };
        let dir = tempfile::tempdir().unwrap();
        let geometry = Geometry::new(capacity, num_devices, options.chunk_bytes).unwrap();
        let files = (0..num_devices).map(|device| make_file(dir.path(), device, &geometry, kind.direct));
        let files = files.collect::<Result<Vec<_>, OpenError>>()?;
        Self::on_files(&options, files, capacity * 2, wrap, dir)
    }

    /// Over a file of which only reading was asked for.
    fn read_only(engine: EngineKind) -> Result<Self, OpenError> {
        let options = NvmeOptions { engine, ..options(4) };
        let dir = tempfile::tempdir().unwrap();
        make_file(dir.path(), 0, &Geometry::new(4, 1, options.chunk_bytes).unwrap(), false)?;
        let file = File::open(dir.path().join("0")).unwrap();
        Self::on_files(&options, vec![Arc::new(file)], 8, |memory| memory, dir)
    }

    /// Over a file that can be sealed.
    fn on_memory_file(engine: EngineKind) -> Result<Self, OpenError> {
        let options = NvmeOptions { engine, ..options(4) };
        let geometry = Geometry::new(4, 1, options.chunk_bytes).unwrap();
        let file = File::from(memfd_create("kvo-nvme-test", MemfdFlags::ALLOW_SEALING).unwrap());
        file.set_len(geometry.file_bytes(0)).unwrap();
        let dir = tempfile::tempdir().unwrap();
        Self::on_files(&options, vec![Arc::new(file)], 8, |memory| memory, dir)
    }

    fn on_files(
        options: &NvmeOptions,
        files: Vec<Arc<File>>,
        num_slots: u32,
        wrap: impl FnOnce(Arc<HostRegion>) -> Arc<dyn HostMemory>,
        dir: tempfile::TempDir,
    ) -> Result<Self, OpenError> {
        let num_devices = u32::try_from(files.len()).unwrap();
        let geometry = Geometry::new(options.capacity_chunks, num_devices, options.chunk_bytes).unwrap();
        let region =
            RegionOptions { prefault_threads: 1, ..RegionOptions::new(num_slots, geometry.chunk_bytes) };
        let memory = Arc::new(HostRegion::anonymous(&region).unwrap());
        let (sender, events) = crossbeam_channel::unbounded();
        let shared = wrap(Arc::clone(&memory));
        let worker = Worker {
            files: files.iter().map(|file| Arc::clone(file) as Arc<dyn ChunkFile>).collect(),
            memory: shared,
            geometry,
            checksum: options.checksum,
        };
        let Started { engine, info } = start(options, &files, &worker, &sender)?;
        Ok(Self { engine, info, events, memory, files, geometry, dir, next: 0 })
    }

    fn fill(&self, host: u32, bytes: &[u8]) {
        self.memory.with_write(SlotId(host), &mut |slot| slot.copy_from_slice(bytes)).unwrap();
    }

    fn bytes(&self, host: u32) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.memory.with_read(SlotId(host), &mut |slot| bytes = slot.to_vec()).unwrap();
        bytes
    }

    fn submit(&mut self, host: u32, slot: u32, tenant: Tenant, action: Action) -> u32 {
        let index = self.next;
        self.next += 1;
        self.engine.submit(Op { job: JobId(1), index, host: SlotId(host), slot, tenant, action }).unwrap();
        index
    }

    #[track_caller]
    fn next_done(&self) -> OpDone {
        match self.events.recv_timeout(LONG) {
            Ok(Event::Moved(done)) => done,
            other => panic!("no chunk came: {other:?}"),
        }
    }

    /// Moves one chunk and waits for it.
    #[track_caller]
    fn run(&mut self, host: u32, slot: u32, tenant: Tenant, action: Action) -> Result<u64, Fault> {
        let index = self.submit(host, slot, tenant, action);
        let done = self.next_done();
        assert_eq!(done.op.index, index);
        done.result
    }

    #[track_caller]
    fn write(&mut self, host: u32, slot: u32, tenant: Tenant) -> u64 {
        self.run(host, slot, tenant, Action::Write).unwrap()
    }

    /// Takes `count` events, all of them wanted, and looks that each op came once.
    #[track_caller]
    fn all_done(&self, count: usize) -> Vec<OpDone> {
        let done: Vec<OpDone> = (0..count).map(|_| self.next_done()).collect();
        let mut indices: Vec<u32> = done.iter().map(|done| done.op.index).collect();
        indices.sort_unstable();
        indices.dedup();
        assert_eq!(indices.len(), count, "each op is reported once");
        assert!(self.events.try_recv().is_err(), "and nothing else is");
        done
    }

    #[track_caller]
    fn stop(&mut self) {
        self.engine.stop(LONG).unwrap();
    }
}

fn options(capacity: u32) -> NvmeOptions {
    NvmeOptions::new("unused", capacity, CHUNK_BYTES as u64)
}

fn make_file(dir: &Path, device: u32, geometry: &Geometry, direct: bool) -> Result<Arc<File>, OpenError> {
    let path = dir.join(device.to_string());
    let flags = if direct { OFlags::DIRECT } else { OFlags::empty() };
    let mut options = OpenOptions::new();
    options.read(true).write(true).create_new(true).custom_flags(flags.bits().cast_signed());
    let file = options.open(&path).map_err(|source| OpenError::Io { operation: "open", path, source })?;
    file.set_len(geometry.file_bytes(device)).unwrap();
    Ok(Arc::new(file))
}

fn tenant(n: u64) -> Tenant {
    Tenant { key: OffloadKey::new(BlockHash::from_u64(n), GroupIdx(0)), generation: n }
}

/// Bytes that no other `n` has.
fn content(n: u64, bytes: usize) -> Vec<u8> {
    (0_u64..).flat_map(|i| (n << 32 | i).to_le_bytes()).take(bytes).collect()
}
