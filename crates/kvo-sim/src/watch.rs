//! What stands between the connector and the tiering manager: it passes every call on, and looks at what it has changed.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use kvo_core::{
    ChunkCounts, CompleteError, EventKind, JobId, JobToken, LoadError, LoadJob, LookupResult, OffloadEvent,
    OffloadKey, OffloadManager, OffloadPolicy, PrefixLookup, RequestContext, RequestError, RequestId,
    ShutDown, SlotId, StoreError, StoreOutcome, TierDirection, TransferResult,
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
    /// What is open at the primary, and the slots of it.
    loads: BTreeMap<JobId, (RequestId, Vec<SlotId>)>,
    stores: BTreeMap<JobId, Vec<SlotId>>,
    /// Jobs of tiers that were open at a reset.
    stale: BTreeSet<JobId>,
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
        Self {
            inner,
            tiers,
            plant,
            loads: BTreeMap::new(),
            stores: BTreeMap::new(),
            stale: BTreeSet::new(),
            finished: BTreeSet::new(),
        }
    }

    /// What is pinned and pending at the primary is what open jobs have of it. Between steps no promotion waits to become one.
    pub(crate) fn check_slots(&self) {
        let mut pinned: BTreeSet<SlotId> =
            self.loads.values().flat_map(|(_, slots)| slots).copied().collect();
        let mut pending: BTreeSet<SlotId> = self.stores.values().flatten().copied().collect();
        for tier in &self.tiers {
            for (job, slot, direction) in lock(tier).slots() {
                let is_pin = direction == TierDirection::Write && !self.stale.contains(&job);
                if is_pin { &mut pinned } else { &mut pending }.insert(slot);
            }
        }
        let counts = self.inner.counts();
        let is_so = counts.pinned as usize == pinned.len() && counts.pending as usize == pending.len();
        check(is_so, Rule::Counts, || format!("{pinned:?} are pinned, {pending:?} pending, and {counts:?}"));
        check(pinned.is_disjoint(&pending), Rule::InUse, || {
            format!("{pinned:?} are pinned, and {pending:?} are written")
        });
    }

    fn before(&self) -> Before {
        let said = self.tiers.iter().map(|tier| lock(tier).said).sum();
        Before { counts: self.inner.counts(), said }
    }

    /// A defect: room is made for chunks that are not stored.
    fn evict_for(&mut self, req: &mut RequestContext, keys: &[OffloadKey]) {
        if let Ok(StoreOutcome::Prepared(job)) = self.inner.prepare_store(req, keys) {
            let _ = self.inner.complete_store(job.token, TransferResult::Failed);
        }
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
            Ok(job) => drop(self.loads.insert(job.token.id(), (req.id(), job.slots.clone()))),
            Err(_) => self.check_unchanged(&before, "a load that was refused"),
        }
        result
    }

    fn complete_load(&mut self, token: JobToken) -> Result<(), CompleteError> {
        let load = self.loads.remove(&token.id());
        let is_finished = load.is_some_and(|(req, _)| self.finished.contains(&req));
        if self.plant == Some(Plant::PinsLeaked) && is_finished {
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
        if self.plant == Some(Plant::RefusalEvicts) && matches!(result, Ok(StoreOutcome::Refused(_))) {
            self.evict_for(req, &keys[..1]);
        }
        if let Ok(StoreOutcome::Prepared(job)) = &result {
            self.stores.insert(job.token.id(), job.slots.clone());
        }
        if matches!(result, Ok(StoreOutcome::Refused(_)) | Err(_)) {
            self.check_unchanged(&before, "an offer that was refused");
        }
        result
    }

    fn complete_store(&mut self, token: JobToken, result: TransferResult) -> Result<(), CompleteError> {
        let before = self.before();
        self.stores.remove(&token.id());
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
        self.loads.clear();
        self.stores.clear();
        self.inner.reset_cache();
        for tier in &self.tiers {
            self.stale.extend(lock(tier).slots().into_iter().map(|(job, ..)| job));
        }
    }

    fn on_reset_flushed(&mut self) {
        self.inner.on_reset_flushed();
    }

    fn has_pending_work(&self) -> bool {
        self.inner.has_pending_work()
    }

    fn shut_down(&mut self, timeout: Duration) -> ShutDown {
        self.inner.shut_down(timeout)
    }
}
