//! What stands between the connector and the tiering manager: it passes every call on, and looks at what it has changed.

use std::collections::{BTreeMap, BTreeSet};

use kvo_core::{
    ChunkCounts, CompleteError, EventKind, JobId, JobToken, LoadError, LoadJob, LookupResult, OffloadEvent,
    OffloadKey, OffloadManager, OffloadPolicy, PrefixLookup, RequestContext, RequestError, RequestId,
    StoreError, StoreOutcome, TransferResult,
};
use kvo_policies::CachePolicy;
use kvo_tiering::TieringManager;

use crate::{
    canary::Plant,
    tier::{SharedTier, lock},
    violation::{Rule, check},
};

pub(crate) struct Watch {
    pub(crate) inner: TieringManager<Box<dyn CachePolicy>>,
    tiers: Vec<SharedTier>,
    plant: Option<Plant>,
    /// Load jobs that are open, for a plant.
    loads: BTreeMap<JobId, RequestId>,
    finished: BTreeSet<RequestId>,
}

/// What a call must leave as it was.
#[derive(Debug, PartialEq, Eq)]
struct Before {
    counts: ChunkCounts,
    said: u64,
}

impl Watch {
    pub(crate) fn new(
        inner: TieringManager<Box<dyn CachePolicy>>,
        tiers: Vec<SharedTier>,
        plant: Option<Plant>,
    ) -> Self {
        Self { inner, tiers, plant, loads: BTreeMap::new(), finished: BTreeSet::new() }
    }

    fn before(&self) -> Before {
        let said = self.tiers.iter().map(|tier| lock(tier).said).sum();
        Before { counts: self.inner.counts(), said }
    }

    /// Nothing has changed, unless a tier has said something meanwhile.
    fn check_unchanged(&self, before: &Before, what: &str) {
        let after = self.before();
        let is_unchanged = before.said != after.said || before.counts == after.counts;
        check(is_unchanged, Rule::Refusal, || format!("{what} changed {before:?} to {after:?}"));
    }
}

impl OffloadManager for Watch {
    fn new_request(&mut self, req: &mut RequestContext) -> Result<OffloadPolicy, RequestError> {
        self.inner.new_request(req)
    }

    fn lookup(&mut self, req: &mut RequestContext, key: &OffloadKey) -> LookupResult {
        let before = self.before();
        let result = self.inner.lookup(req, key);
        // What is pending may have been reserved a slot just now.
        if result != LookupResult::HitPending {
            self.check_unchanged(&before, "a lookup");
        }
        result
    }

    fn lookup_prefix(&mut self, req: &mut RequestContext, keys: &[OffloadKey]) -> PrefixLookup {
        self.inner.lookup_prefix(req, keys)
    }

    fn peek(&self, key: &OffloadKey) -> LookupResult {
        self.inner.peek(key)
    }

    fn reserve(&mut self, keys: &[OffloadKey]) -> usize {
        let before = self.before();
        let ready = self.inner.reserve(keys);
        if ready == 0 {
            self.check_unchanged(&before, "a reservation of nothing");
        }
        ready
    }

    fn prepare_load(&mut self, req: &mut RequestContext, keys: &[OffloadKey]) -> Result<LoadJob, LoadError> {
        let before = self.before();
        let result = self.inner.prepare_load(req, keys);
        match &result {
            Ok(job) => drop(self.loads.insert(job.token.id(), req.id())),
            Err(_) => self.check_unchanged(&before, "a load that was refused"),
        }
        result
    }

    fn complete_load(&mut self, token: JobToken) -> Result<(), CompleteError> {
        let req = self.loads.remove(&token.id());
        if self.plant == Some(Plant::PinsLeaked) && req.is_some_and(|req| self.finished.contains(&req)) {
            return Ok(());
        }
        let before = self.before();
        let result = self.inner.complete_load(token);
        if result.is_err() {
            self.check_unchanged(&before, "the end of a load that is none");
        }
        result
    }

    fn prepare_store(
        &mut self,
        req: &mut RequestContext,
        keys: &[OffloadKey],
    ) -> Result<StoreOutcome, StoreError> {
        let before = self.before();
        let result = self.inner.prepare_store(req, keys);
        if matches!(result, Ok(StoreOutcome::Refused(_)) | Err(_)) {
            self.check_unchanged(&before, "an offer that was refused");
        }
        result
    }

    fn complete_store(&mut self, token: JobToken, result: TransferResult) -> Result<(), CompleteError> {
        let before = self.before();
        let completed = self.inner.complete_store(token, result);
        if completed.is_err() {
            self.check_unchanged(&before, "the end of a store that is none");
        }
        completed
    }

    fn touch(&mut self, keys: &[OffloadKey]) {
        self.inner.touch(keys);
    }

    fn on_request_finished(&mut self, req: &mut RequestContext) -> Result<(), RequestError> {
        self.finished.insert(req.id());
        self.inner.on_request_finished(req)
    }

    fn on_schedule_end(&mut self) {
        self.inner.on_schedule_end();
    }

    fn primary_name(&self) -> &str {
        self.inner.primary_name()
    }

    fn secondary_names(&self) -> Vec<&str> {
        self.inner.secondary_names()
    }

    fn cascading(&self) -> Vec<OffloadKey> {
        self.inner.cascading()
    }

    fn take_events(&mut self, events: &mut Vec<OffloadEvent>) {
        let before = events.len();
        self.inner.take_events(events);
        if self.plant == Some(Plant::EvictionUntold) {
            let is_untold = |event: &OffloadEvent| {
                event.kind == EventKind::Removed && &*event.tier == self.primary_name()
            };
            if let Some(at) = events[before..].iter().position(is_untold) {
                events.remove(before + at);
            }
        }
    }

    fn counts(&self) -> ChunkCounts {
        self.inner.counts()
    }

    fn reset_cache(&mut self) {
        self.inner.reset_cache();
    }

    fn on_reset_flushed(&mut self) {
        self.inner.on_reset_flushed();
    }

    fn has_pending_work(&self) -> bool {
        self.inner.has_pending_work()
    }
}
