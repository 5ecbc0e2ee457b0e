//! A tier whose device can hang: I/O that has begun ends when the test says so, long after its job was reported.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use kvo_core::{
    HostMemory, JobId, JobRejected, Medium, OffloadKey, ReadClaim, ReleasedSlot, RequestId, SecondaryTier,
    SlotId, StableMemory, TierChunk, TierCompletion, TierDirection, TierJob, TierLookup, WriteClaim,
};

use super::content::{Rng, chunk_content};

/// A tier in memory that works whenever it is polled, except for the chunks that hang. A clone is another handle to the
/// same tier: one goes to the manager, one stays with the test.
#[derive(Clone)]
pub struct Stalling(Arc<Mutex<Device>>);

/// The device of a [`Stalling`] tier.
pub struct Device {
    memory: Arc<dyn StableMemory>,
    chunks: BTreeMap<OffloadKey, Vec<u8>>,
    /// Chunks whose I/O hangs from now on, in this direction.
    pub hangs: BTreeSet<OffloadKey>,
    pub hanging: Option<TierDirection>,
    open: Vec<Job>,
    stuck: Vec<Stuck>,
    reports: Vec<TierCompletion>,
    releases: Vec<ReleasedSlot>,
    /// Releases that were taken, to be said again.
    released: Vec<ReleasedSlot>,
    pub finished: Vec<RequestId>,
    pub tally: Tally,
}

/// What a device did that others do not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    pub late_reads: u64,
    pub late_writes: u64,
    /// Of them, after the request was finished.
    pub after_finish: u64,
    /// Releases of slots that it did not hold.
    pub strays: u64,
}

struct Job {
    job: TierJob,
    failed: Vec<OffloadKey>,
}

/// I/O that does not end. It has claimed its slot as an engine of a store does.
struct Stuck {
    job: JobId,
    chunk: TierChunk,
    claim: Claim,
    /// Whether its job was reported.
    is_late: bool,
}

enum Claim {
    Read(ReadClaim),
    Write(WriteClaim),
}

impl Stalling {
    pub fn new(memory: &Arc<dyn HostMemory>) -> Self {
        let memory = Arc::clone(memory).into_stable().expect("the region stays where it is");
        Self(Arc::new(Mutex::new(Device {
            memory,
            chunks: BTreeMap::new(),
            hangs: BTreeSet::new(),
            hanging: None,
            open: Vec::new(),
            stuck: Vec::new(),
            reports: Vec::new(),
            releases: Vec::new(),
            released: Vec::new(),
            finished: Vec::new(),
            tally: Tally::default(),
        })))
    }

    /// The device, to look at and to disturb.
    pub fn look(&self) -> MutexGuard<'_, Device> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets the I/O of `keys` in one direction hang, from now on.
    pub fn hang(&self, direction: TierDirection, keys: &[OffloadKey]) {
        let mut device = self.look();
        device.hanging = Some(direction);
        device.hangs = keys.iter().copied().collect();
    }
}

impl Device {
    /// Ends hanging; what hangs already goes on to.
    pub fn recover(&mut self) {
        self.hanging = None;
    }

    /// Jobs whose I/O hangs have waited long enough: they will be reported as late.
    pub fn expire(&mut self) {
        let late: BTreeSet<JobId> =
            self.stuck.iter().filter(|stuck| !stuck.is_late).map(|stuck| stuck.job).collect();
        for id in late {
            let at = self.open.iter().position(|open| open.job.id == id).expect("it is open");
            let Job { job, mut failed } = self.open.remove(at);
            let mut held = Vec::new();
            for stuck in self.stuck.iter_mut().filter(|stuck| stuck.job == id) {
                stuck.is_late = true;
                failed.push(stuck.chunk.key);
                held.push(stuck.chunk.slot);
            }
            let count = held.len() as u64;
            match job.direction {
                TierDirection::Read => self.tally.late_reads += count,
                TierDirection::Write => self.tally.late_writes += count,
            }
            self.tally.after_finish += if self.finished.contains(&job.req) { count } else { 0 };
            self.reports.push(TierCompletion::except(id, failed).with_held(held));
        }
    }

    /// Slots that are held after their job was reported.
    pub fn num_held(&self) -> usize {
        self.stuck.iter().filter(|stuck| stuck.is_late).count()
    }

    /// Lets up to `count` of the I/O that hangs end, in random order. What was read too late is garbage.
    #[track_caller]
    pub fn end_io(&mut self, count: usize, rng: &mut Rng) {
        for _ in 0..count {
            let Some(Stuck { job, chunk, claim, is_late }) = rng.take(&mut self.stuck) else { break };
            let TierChunk { key, slot, .. } = chunk;
            match claim {
                Claim::Read(claim) => {
                    let bytes = claim.bytes();
                    assert!(bytes == chunk_content(&key, bytes.len()), "{key:?} changed while it was read");
                    self.chunks.insert(key, bytes.to_vec());
                }
                Claim::Write(mut claim) if is_late => claim.bytes_mut().fill(0xdb),
                Claim::Write(mut claim) => claim.bytes_mut().copy_from_slice(&self.chunks[&key]),
            }
            if is_late {
                self.releases.push(ReleasedSlot { job, slot });
            }
        }
    }

    /// Says that a slot is released which is not held: of a job that never was, of one that is open, or one that was
    /// released before.
    pub fn release_a_stray(&mut self, rng: &mut Rng) {
        let is_stuck = |chunk: &TierChunk| self.stuck.iter().any(|stuck| stuck.chunk.slot == chunk.slot);
        let of_open = self.open.iter().find_map(|open| {
            let chunk = open.job.chunks.iter().find(|chunk| !is_stuck(chunk))?;
            Some(ReleasedSlot { job: open.job.id, slot: chunk.slot })
        });
        let of_none = ReleasedSlot { job: JobId(u64::MAX), slot: SlotId(0) };
        let again = self.released.get(rng.index(self.released.len().max(1))).copied();
        let stray = [Some(of_none), of_open, again][rng.index(3)].unwrap_or(of_none);
        self.releases.push(stray);
        self.tally.strays += 1;
    }

    fn claim(&self, direction: TierDirection, slot: SlotId) -> Claim {
        let memory = Arc::clone(&self.memory);
        match direction {
            TierDirection::Write => Claim::Read(ReadClaim::new(memory, slot).expect("nobody writes it")),
            TierDirection::Read => Claim::Write(WriteClaim::new(memory, slot).expect("nobody uses it")),
        }
    }

    /// Copies a chunk; says whether it was there.
    fn copy(&mut self, direction: TierDirection, chunk: &TierChunk) -> bool {
        match self.claim(direction, chunk.slot) {
            Claim::Read(claim) => {
                let bytes = claim.bytes();
                assert!(bytes == chunk_content(&chunk.key, bytes.len()), "{:?} is another chunk", chunk.key);
                self.chunks.insert(chunk.key, bytes.to_vec());
                true
            }
            Claim::Write(mut claim) => match self.chunks.get(&chunk.key) {
                Some(bytes) => {
                    claim.bytes_mut().copy_from_slice(bytes);
                    true
                }
                None => false,
            },
        }
    }
}

impl SecondaryTier for Stalling {
    fn name(&self) -> &'static str {
        "stalling"
    }

    fn medium(&self) -> Medium {
        Medium::Ssd
    }

    fn lookup(&mut self, _req: RequestId, key: &OffloadKey) -> TierLookup {
        if self.look().chunks.contains_key(key) { TierLookup::Hit } else { TierLookup::Miss }
    }

    /// The I/O begins here: what does not hang is done.
    fn submit(&mut self, job: TierJob) -> Result<(), JobRejected> {
        let mut device = self.look();
        let mut failed = Vec::new();
        for chunk in &job.chunks {
            if device.hanging == Some(job.direction) && device.hangs.contains(&chunk.key) {
                let claim = device.claim(job.direction, chunk.slot);
                device.stuck.push(Stuck { job: job.id, chunk: *chunk, claim, is_late: false });
            } else if !device.copy(job.direction, chunk) {
                failed.push(chunk.key);
            }
        }
        device.open.push(Job { job, failed });
        Ok(())
    }

    fn poll(&mut self, done: &mut Vec<TierCompletion>) {
        let mut device = self.look();
        let Device { open, stuck, reports, .. } = &mut *device;
        let hangs = |open: &Job| stuck.iter().any(|stuck| stuck.job == open.job.id);
        for Job { job, failed } in open.extract_if(.., |open| !hangs(open)) {
            reports.push(TierCompletion::except(job.id, failed));
        }
        done.append(reports);
    }

    fn take_released(&mut self, released: &mut Vec<ReleasedSlot>) {
        let mut device = self.look();
        let Device { releases, released: said, .. } = &mut *device;
        said.extend(releases.iter().filter(|release| release.job != JobId(u64::MAX)));
        released.append(releases);
    }

    fn on_request_finished(&mut self, req: RequestId) {
        self.look().finished.push(req);
    }
}
