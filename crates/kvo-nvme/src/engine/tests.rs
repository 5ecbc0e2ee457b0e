//! The same tests over each engine: real files, real threads, real host memory.

mod faults;
mod moves;

use std::{
    fs::{File, OpenOptions},
    os::unix::fs::OpenOptionsExt,
    sync::Arc,
    time::Duration,
};

use crossbeam_channel::Receiver;
use kvo_core::{BlockHash, GroupIdx, HostMemory, JobId, OffloadKey, SlotId};
use kvo_cpu::{HostRegion, RegionOptions};
use rustix::fs::OFlags;

use super::{Action, Engine, EngineInfo, Event, Fault, Op, OpDone, Started, start};
use crate::{
    EngineKind, NvmeOptions, OpenError, checksum::checksum, file::ChunkFile, format::DATA_START,
    options::Geometry, slots::Tenant, worker::Worker,
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
    for kind in KINDS {
        let tried = Rig::try_new(kind, 1, 4, |_| {});
        match tried {
            Ok(mut rig) => rig.engine.stop(LONG).unwrap(),
            Err(error) => {
                eprintln!("SKIPPED {kind:?}: {error:?}");
                continue;
            }
        }
        eprintln!("{kind:?}");
        test(kind);
    }
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
        let mut options = NvmeOptions::new("unused", capacity, CHUNK_BYTES as u64);
        options.engine = kind.engine;
        change(&mut options);
        let chunk_bytes = usize::try_from(options.chunk_bytes).unwrap();
        let region = RegionOptions { prefault_threads: 1, ..RegionOptions::new(capacity * 2, chunk_bytes) };
        let memory = Arc::new(HostRegion::anonymous(&region).unwrap());
        let geometry = Geometry::new(capacity, num_devices, options.chunk_bytes).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let flags = if kind.direct { OFlags::DIRECT } else { OFlags::empty() };
        let files = (0..num_devices).map(|device| {
            let path = dir.path().join(format!("{device}"));
            let made = OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(true)
                .custom_flags(flags.bits().cast_signed())
                .open(path)
                .map_err(|source| OpenError::Io { operation: "open", path: dir.path().into(), source })?;
            made.set_len(geometry.file_bytes(device)).unwrap();
            Ok(Arc::new(made))
        });
        let files = files.collect::<Result<Vec<_>, OpenError>>()?;
        let (sender, events) = crossbeam_channel::unbounded();
        let shared = Arc::clone(&memory) as Arc<dyn HostMemory>;
        let worker = Worker {
            files: files.iter().map(|file| Arc::clone(file) as Arc<dyn ChunkFile>).collect(),
            memory: shared,
            geometry,
            checksum: options.checksum,
        };
        let Started { engine, info } = start(&options, &files, &worker, &sender)?;
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

    #[track_caller]
    fn stop(&mut self) {
        self.engine.stop(LONG).unwrap();
    }
}

fn tenant(n: u64) -> Tenant {
    Tenant { key: OffloadKey::new(BlockHash::from_u64(n), GroupIdx(0)), generation: n }
}

/// Bytes that no other `n` has.
fn content(n: u64, bytes: usize) -> Vec<u8> {
    (0_u64..).flat_map(|i| (n << 32 | i).to_le_bytes()).take(bytes).collect()
}

/// Numbers from a seed, by the method of Steele, Lea and Flood (`SplitMix64`).
#[derive(Clone)]
struct Random(u64);

impl Random {
    /// The seed is what the environment variable says, or new each time; it is printed.
    fn from_seed_of(variable: &str) -> Self {
        let seed = std::env::var(variable).ok().and_then(|seed| seed.parse().ok());
        let seed = seed.unwrap_or_else(|| {
            std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().subsec_nanos().into()
        });
        eprintln!("{variable}={seed}");
        Self(seed)
    }

    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((mixed ^ (mixed >> 31)) % end as u64).unwrap()
    }
}
