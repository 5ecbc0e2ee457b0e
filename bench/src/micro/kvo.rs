//! kvo's own subject.

use std::time::Instant;

use kvo_core::{OffloadKey, OffloadManager, RequestContext, RequestId, StoreOutcome, TransferResult};
use kvo_cpu::{CpuManager, CpuOptions};
use kvo_policies::{Arc, CachePolicy, GhostHits, Lru, PolicyKind};

use super::{CHAIN, Job, MicroError, Sample, Subject, Sweep, ThreadTime, fold_victim, shuffle};

/// Tokens a chunk, for the positions.
const CHUNK_TOKENS: u32 = 16;
/// Requests that are made ready before a stretch that is timed.
const GROUP: usize = 8;

/// A [`CpuManager`] without events or threshold.
#[derive(Debug)]
pub struct Kvo<P> {
    name: String,
    manager: CpuManager<P>,
    next_request: u64,
    victims: u64,
}

/// A manager with a policy by name. Lru and Arc are built in; others are called through a box.
///
/// # Errors
/// If a manager of that size cannot be built.
pub fn kvo_subject(kind: PolicyKind, chunks: u32) -> Result<Box<dyn Subject>, MicroError> {
    let name = format!("kvo {kind}");
    Ok(match kind {
        PolicyKind::Lru => Box::new(Kvo::new(name, chunks, Lru::new(chunks))?),
        PolicyKind::Arc(GhostHits::T1) => Box::new(Kvo::new(name, chunks, Arc::new(chunks, GhostHits::T1))?),
        _ => Box::new(Kvo::new(name, chunks, kind.build(chunks))?),
    })
}

impl<P: CachePolicy> Kvo<P> {
    /// An empty manager.
    ///
    /// # Errors
    /// If a manager of that size cannot be built.
    pub fn new(name: String, chunks: u32, policy: P) -> Result<Self, MicroError> {
        match CpuManager::new(CpuOptions::new(chunks), policy) {
            Ok(manager) => Ok(Self { name, manager, next_request: 0, victims: 0 }),
            Err(error) => Err(MicroError::Build { subject: name, chunks, why: error.to_string() }),
        }
    }

    fn unexpected(&self, call: &str, answer: impl std::fmt::Debug) -> MicroError {
        MicroError::Unexpected { subject: self.name.clone(), what: format!("{call} answered {answer:?}") }
    }

    /// A request that the manager does not know yet, with a position for each key.
    fn context(&mut self, keys: &[OffloadKey]) -> RequestContext {
        self.next_request += 1;
        let mut request = RequestContext::new(RequestId(self.next_request));
        request.set_positions(keys.iter().copied().zip((1..).map(|chunk| chunk * CHUNK_TOKENS)));
        request
    }

    fn contexts(&mut self, keys: &[OffloadKey]) -> Vec<RequestContext> {
        keys.chunks(CHAIN).map(|chain| self.context(chain)).collect()
    }

    fn begin(&mut self, request: &mut RequestContext) -> Result<(), MicroError> {
        self.manager.new_request(request).map_err(|error| self.unexpected("new_request", error))?;
        Ok(())
    }

    fn finish(&mut self, request: &mut RequestContext) -> Result<(), MicroError> {
        self.manager.on_request_finished(request).map_err(|error| self.unexpected("finish", error))
    }

    fn prepare_store(
        &mut self,
        request: &mut RequestContext,
        keys: &[OffloadKey],
    ) -> Result<kvo_core::StoreJob, MicroError> {
        match self.manager.prepare_store(request, keys) {
            Ok(StoreOutcome::Prepared(job)) if job.keys.len() == keys.len() => Ok(job),
            answer => Err(self.unexpected("prepare_store of fresh keys", answer)),
        }
    }

    fn complete_store(&mut self, job: kvo_core::StoreJob) -> Result<(), MicroError> {
        for key in &job.evicted {
            self.victims = fold_victim(self.victims, key);
        }
        self.manager
            .complete_store(job.token, TransferResult::Done)
            .map_err(|error| self.unexpected("complete_store", error))
    }

    fn store_chain(
        &mut self,
        request: &mut RequestContext,
        keys: &[OffloadKey],
        batch: usize,
    ) -> Result<(), MicroError> {
        self.begin(request)?;
        for part in keys.chunks(batch) {
            let job = self.prepare_store(request, part)?;
            self.complete_store(job)?;
        }
        Ok(())
    }

    fn lookup(&mut self, request: &mut RequestContext, keys: &[OffloadKey]) -> Result<(), MicroError> {
        let found = self.manager.lookup_prefix(request, keys);
        if found.ready == keys.len() { Ok(()) } else { Err(self.unexpected("lookup_prefix", found)) }
    }

    fn load(&mut self, request: &mut RequestContext, keys: &[OffloadKey]) -> Result<(), MicroError> {
        self.lookup(request, keys)?;
        let job = self
            .manager
            .prepare_load(request, keys)
            .map_err(|error| self.unexpected("prepare_load", error))?;
        self.manager.complete_load(job.token).map_err(|error| self.unexpected("complete_load", error))
    }

    fn cycle(&mut self, keys: &[OffloadKey], batch: usize) -> Result<Sample, MicroError> {
        let mut sample = Sample::default();
        for group in keys.chunks(GROUP * CHAIN) {
            let mut requests = self.contexts(group);
            let ns = ThreadTime::of(|| {
                requests.iter_mut().zip(group.chunks(CHAIN)).try_for_each(|(request, chain)| {
                    self.store_chain(request, chain, batch)?;
                    self.finish(request)
                })
            })?;
            sample.add(ns, group.len());
        }
        Ok(sample)
    }

    fn finish_own(&mut self, keys: &[OffloadKey]) -> Result<Sample, MicroError> {
        let mut sample = Sample::default();
        for group in keys.chunks(GROUP * CHAIN) {
            let mut requests = self.contexts(group);
            for (request, chain) in requests.iter_mut().zip(group.chunks(CHAIN)) {
                self.store_chain(request, chain, 32)?;
            }
            let ns = ThreadTime::of(|| self.finish_all(&mut requests))?;
            sample.add(ns, requests.len());
        }
        Ok(sample)
    }

    /// Loads, and finishes behind them.
    fn loads(&mut self, keys: &[OffloadKey]) -> Result<Sample, MicroError> {
        let mut sample = Sample::default();
        for group in keys.chunks(GROUP * CHAIN) {
            let mut requests = self.contexts(group);
            sample.add(ThreadTime::of(|| self.load_all(&mut requests, group))?, group.len());
            self.finish_all(&mut requests)?;
        }
        Ok(sample)
    }

    /// Finishes behind loads.
    fn finish_shared(&mut self, keys: &[OffloadKey]) -> Result<Sample, MicroError> {
        let mut sample = Sample::default();
        for group in keys.chunks(GROUP * CHAIN) {
            let mut requests = self.contexts(group);
            self.load_all(&mut requests, group)?;
            sample.add(ThreadTime::of(|| self.finish_all(&mut requests))?, group.len());
        }
        Ok(sample)
    }

    fn load_all(&mut self, requests: &mut [RequestContext], keys: &[OffloadKey]) -> Result<(), MicroError> {
        requests.iter_mut().zip(keys.chunks(CHAIN)).try_for_each(|(request, chain)| {
            self.begin(request)?;
            self.load(request, chain)
        })
    }

    fn finish_all(&mut self, requests: &mut [RequestContext]) -> Result<(), MicroError> {
        requests.iter_mut().try_for_each(|request| self.finish(request))
    }

    fn lookups(&mut self, keys: &[OffloadKey]) -> Result<Sample, MicroError> {
        let mut request = self.context(&[]);
        let ns =
            ThreadTime::of(|| keys.chunks(CHAIN).try_for_each(|chain| self.lookup(&mut request, chain)))?;
        Ok(Sample::new(ns, keys.len()))
    }

    fn misses(&mut self, keys: &[OffloadKey]) -> Result<Sample, MicroError> {
        const REPEATS: usize = 64;
        let mut request = self.context(&[]);
        let ns = ThreadTime::of(|| {
            (0..REPEATS).flat_map(|_| keys.chunks(CHAIN)).try_for_each(|chain| {
                let found = self.manager.lookup_prefix(&mut request, chain);
                if found.ready == 0 {
                    return Ok(());
                }
                Err(self.unexpected("lookup_prefix of absent keys", found))
            })
        })?;
        Ok(Sample::new(ns, REPEATS * keys.len() / CHAIN))
    }

    fn make_contexts(&mut self, keys: &[OffloadKey]) -> Result<Sample, MicroError> {
        let mut sample = Sample::default();
        for group in keys.chunks(GROUP * CHAIN) {
            let mut requests = Vec::new();
            let ns = ThreadTime::of(|| {
                requests = self.contexts(group);
                Ok(())
            })?;
            sample.add(ns, group.len());
        }
        Ok(sample)
    }

    fn cold_cycle(&mut self, keys: &[OffloadKey], sweep: &mut Sweep) -> Result<Sample, MicroError> {
        let mut sample = Sample::default();
        for chain in keys.chunks(CHAIN) {
            let mut request = self.context(chain);
            self.begin(&mut request)?;
            for part in chain.chunks(32) {
                sweep.run();
                let started = Instant::now();
                let job = self.prepare_store(&mut request, part)?;
                sample.add_wall(started, part.len());
                sweep.run();
                let started = Instant::now();
                self.complete_store(job)?;
                sample.add_wall(started, 0);
            }
            sweep.run();
            let started = Instant::now();
            self.finish(&mut request)?;
            sample.add_wall(started, 0);
        }
        Ok(sample)
    }

    fn cold_load(&mut self, keys: &[OffloadKey], sweep: &mut Sweep) -> Result<Sample, MicroError> {
        let mut sample = Sample::default();
        for chain in keys.chunks(CHAIN) {
            let mut request = self.context(chain);
            self.begin(&mut request)?;
            sweep.run();
            let started = Instant::now();
            self.lookup(&mut request, chain)?;
            let job = self
                .manager
                .prepare_load(&mut request, chain)
                .map_err(|error| self.unexpected("prepare_load", error))?;
            sample.add_wall(started, chain.len());
            sweep.run();
            let started = Instant::now();
            self.manager.complete_load(job.token).map_err(|error| self.unexpected("complete_load", error))?;
            sample.add_wall(started, 0);
            self.finish(&mut request)?;
        }
        Ok(sample)
    }
}

impl<P: CachePolicy> Subject for Kvo<P> {
    fn name(&self) -> &str {
        &self.name
    }

    fn has(&self, job: Job) -> bool {
        job != Job::MatchPinned
    }

    /// Takes every slot and gives them back in another order.
    fn scatter(&mut self) -> Result<(), MicroError> {
        let num_chains = u64::from(self.manager.counts().capacity).div_ceil(CHAIN as u64);
        let mut holds = Vec::with_capacity(self.manager.counts().capacity as usize);
        // Chains from the far end, so that the workload never meets them.
        for chain in super::chains(u64::MAX / 512 - num_chains..u64::MAX / 512).chunks(CHAIN) {
            let mut request = self.context(&[]);
            holds.extend(chain.iter().map_while(|key| self.manager.hold_for_promotion(&mut request, key)));
        }
        shuffle(&mut holds, 0);
        for hold in holds {
            self.manager
                .release(hold, TransferResult::Failed)
                .map_err(|hold| self.unexpected("release", hold))?;
        }
        Ok(())
    }

    fn run(&mut self, job: Job, keys: &[OffloadKey], sweep: &mut Sweep) -> Result<Sample, MicroError> {
        match job {
            Job::Cycle32 => self.cycle(keys, 32),
            Job::Cycle1 => self.cycle(keys, 1),
            Job::FinishOwn => self.finish_own(keys),
            Job::Lookup => self.lookups(keys),
            Job::Load => self.loads(keys),
            Job::FinishShared => self.finish_shared(keys),
            Job::Miss => self.misses(keys),
            Job::Context => self.make_contexts(keys),
            Job::ColdCycle => self.cold_cycle(keys, sweep),
            Job::ColdLoad => self.cold_load(keys, sweep),
            Job::MatchPinned => Ok(Sample::default()),
        }
    }

    fn victims(&self) -> Option<u64> {
        Some(self.victims)
    }

    fn check_at_rest(&self) -> Result<(), MicroError> {
        let counts = self.manager.counts();
        let (open_jobs, evictable) = (self.manager.stats().open_jobs, counts.evictable);
        if open_jobs == 0 && evictable == counts.capacity {
            return Ok(());
        }
        let what = format!(
            "at rest there are {open_jobs} open jobs, and {counts:?}, of which all should be evictable"
        );
        Err(MicroError::Unexpected { subject: self.name.clone(), what })
    }
}
