//! The CPU manager once more, as plainly as it can be said: vectors, searched from the front.

use std::collections::BTreeMap;

use kvo_core::{ChunkCounts, EventKind, JobId, JobKind, LookupResult, OffloadKey, Refusal, SlotId};
use kvo_cpu::{CpuOptions, CpuStats, HoldKind, Released};
use kvo_policies::{AccessKind, KeyAccess};

use super::policies::naive::{Naive, State};

/// A number of chunks.
fn count(of: usize) -> u32 {
    u32::try_from(of).unwrap()
}

pub struct Model {
    options: CpuOptions,
    policy: Box<dyn Naive>,
    /// Pinned until the step ends, once for each time that they are here.
    reserved: Vec<OffloadKey>,
    chunks: Vec<Chunk>,
    /// One entry a hold from before a reset, or of a promotion that was given up.
    parked: Vec<SlotId>,
    pub generation: u64,
    pub jobs: Vec<Job>,
    /// Offers a key, the key offered longest ago first.
    offers: Vec<(OffloadKey, u32)>,
    events: Vec<(EventKind, Vec<OffloadKey>)>,
    pub requests: Vec<Request>,
    stats: CpuStats,
    /// Keys that requests met resident, or missed, for the first time, all together.
    pub first: (usize, usize),
    /// The accesses of the last request that finished with any.
    pub committed: Vec<KeyAccess>,
}

struct Chunk {
    key: OffloadKey,
    slot: SlotId,
    /// Pins, once it is ready.
    pins: Option<u32>,
}

pub struct Job {
    pub id: JobId,
    pub kind: JobKind,
    pub generation: u64,
    keys: Vec<OffloadKey>,
}

#[derive(Default)]
pub struct Request {
    pub finished: bool,
    positions: BTreeMap<OffloadKey, u32>,
    /// Keys in the order in which the request met them, each with what it met first, a miss apart.
    met: Vec<(OffloadKey, Option<AccessKind>)>,
    missed: Vec<OffloadKey>,
}

/// What an offer must come to.
#[derive(Debug, PartialEq, Eq)]
pub enum Offered {
    Prepared { keys: Vec<OffloadKey>, evicted: Vec<OffloadKey> },
    NothingToStore,
    Refused(Refusal),
}

impl Model {
    pub fn new(options: CpuOptions, policy: Box<dyn Naive>, num_requests: usize) -> Self {
        Self {
            options,
            policy,
            chunks: Vec::new(),
            reserved: Vec::new(),
            parked: Vec::new(),
            generation: 0,
            jobs: Vec::new(),
            offers: Vec::new(),
            events: Vec::new(),
            requests: (0..num_requests).map(|_| Request::default()).collect(),
            stats: CpuStats::default(),
            first: (0, 0),
            committed: Vec::new(),
        }
    }

    pub fn has_position(&self, req: usize, key: OffloadKey) -> bool {
        self.requests[req].positions.contains_key(&key)
    }

    fn chunk(&mut self, key: OffloadKey) -> Option<&mut Chunk> {
        self.chunks.iter_mut().find(|chunk| chunk.key == key)
    }

    pub fn slot(&self, key: OffloadKey) -> Option<SlotId> {
        self.chunks.iter().find(|chunk| chunk.key == key).map(|chunk| chunk.slot)
    }

    pub fn is_used(&self, slot: SlotId) -> bool {
        self.parked.contains(&slot) || self.chunks.iter().any(|chunk| chunk.slot == slot)
    }

    fn num_parked(&self) -> u32 {
        let mut slots = self.parked.clone();
        slots.sort();
        slots.dedup();
        count(slots.len())
    }

    pub fn counts(&self) -> ChunkCounts {
        let all = |is: fn(&Chunk) -> bool| count(self.chunks.iter().filter(|c| is(c)).count());
        let parked = self.num_parked();
        ChunkCounts {
            capacity: self.options.num_slots,
            free: self.options.num_slots - count(self.chunks.len()) - parked,
            pending: all(|chunk| chunk.pins.is_none()) + parked,
            evictable: all(|chunk| chunk.pins == Some(0)),
            pinned: all(|chunk| chunk.pins > Some(0)),
        }
    }

    pub fn stats(&self) -> CpuStats {
        CpuStats {
            counts: self.counts(),
            generation: self.generation,
            open_jobs: self.jobs.iter().filter(|job| job.generation == self.generation).count(),
            parked_slots: self.num_parked(),
            tracked_keys: self.offers.len(),
            ..self.stats
        }
    }

    pub fn peek(&self, key: OffloadKey) -> LookupResult {
        match self.chunks.iter().find(|chunk| chunk.key == key) {
            None => LookupResult::Miss,
            Some(Chunk { pins: None, .. }) => LookupResult::HitPending,
            Some(_) => LookupResult::Hit,
        }
    }

    pub fn lookup(&mut self, key: OffloadKey) -> LookupResult {
        let result = self.peek(key);
        match result {
            LookupResult::Hit => self.stats.lookup_hits += 1,
            LookupResult::HitPending => self.stats.lookup_pending += 1,
            _ => self.stats.lookup_misses += 1,
        }
        result
    }

    pub fn new_request(&mut self, req: usize) {
        self.requests[req] = Request::default();
        self.policy.forget_request(req);
    }

    pub fn set_position(&mut self, req: usize, key: OffloadKey, end_token: u32) {
        self.requests[req].positions.insert(key, end_token);
    }

    /// The request meets a key; true for the first time.
    fn meet(&mut self, req: usize, key: OffloadKey, kind: Option<AccessKind>) -> bool {
        let met = &mut self.requests[req].met;
        if let Some((_, first)) = met.iter_mut().find(|(of, _)| *of == key) {
            *first = first.or(kind);
            return false;
        }
        met.push((key, kind));
        true
    }

    fn access(&mut self, req: usize, keys: &[OffloadKey]) {
        let access = |key: &OffloadKey| KeyAccess {
            key: *key,
            slot: self.slot(*key),
            end_token: self.requests[req].positions.get(key).copied(),
            kind: AccessKind::Reused,
        };
        let accesses: Vec<_> = keys.iter().map(access).filter(|access| access.slot.is_some()).collect();
        self.first.0 += accesses.len();
        self.policy.access(req, &accesses);
    }

    fn miss(&mut self, req: usize, keys: &[OffloadKey]) {
        let missed = &mut self.requests[req].missed;
        let first: Vec<_> = keys.iter().filter(|key| !missed.contains(key)).copied().collect();
        missed.extend(&first);
        if !first.is_empty() {
            self.first.1 += first.len();
            self.policy.store_miss(&first);
        }
    }

    fn pin(&mut self, key: OffloadKey) {
        let pins = self.chunk(key).unwrap().pins.as_mut().unwrap();
        *pins += 1;
        self.policy.set(key, State::Pinned);
    }

    fn unpin(&mut self, key: OffloadKey) {
        let pins = self.chunk(key).unwrap().pins.as_mut().unwrap();
        *pins -= 1;
        if *pins == 0 {
            self.policy.set(key, State::Free);
        }
    }

    fn ready(&mut self, key: OffloadKey) {
        self.chunk(key).unwrap().pins = Some(0);
        self.policy.set(key, State::Free);
    }

    fn fail(&mut self, key: OffloadKey) {
        self.chunks.retain(|chunk| chunk.key != key);
        self.policy.remove(key);
        self.stats.chunks_failed += 1;
    }

    fn evict(&mut self, count: usize, spared: &[OffloadKey]) -> Option<Vec<OffloadKey>> {
        let victims = self.policy.evict(count, spared)?;
        self.chunks.retain(|chunk| !victims.contains(&chunk.key));
        self.stats.chunks_evicted += victims.len() as u64;
        self.record(EventKind::Removed, &victims);
        Some(victims)
    }

    pub fn record(&mut self, kind: EventKind, keys: &[OffloadKey]) {
        if self.options.record_events && !keys.is_empty() {
            self.events.push((kind, keys.to_vec()));
        }
    }

    /// Absent and pending keys, in order; none of them and the keys are pinned.
    pub fn load(&mut self, req: usize, keys: &[OffloadKey]) -> (Vec<OffloadKey>, Vec<OffloadKey>) {
        let all = |result| keys.iter().filter(|key| self.peek(**key) == result).copied().collect::<Vec<_>>();
        let unready = (all(LookupResult::Miss), all(LookupResult::HitPending));
        if unready == (vec![], vec![]) {
            let mut new = Vec::new();
            for key in keys {
                self.pin(*key);
                if self.meet(req, *key, Some(AccessKind::Reused)) {
                    new.push(*key);
                }
            }
            self.access(req, &new);
            self.stats.chunks_loaded += keys.len() as u64;
        }
        unready
    }

    fn count_offers(&mut self, keys: &[OffloadKey]) {
        if self.options.store_threshold == 1 {
            return;
        }
        let before = self.offers.clone();
        let of = |key: &OffloadKey| before.iter().find(|(of, _)| of == key).copied();
        self.offers.retain(|(key, _)| !keys.contains(key));
        let older = self.offers.len();
        self.offers.extend(keys.iter().filter_map(of).map(|(key, offers)| (key, offers + 1)));
        self.offers.extend(keys.iter().filter(|key| of(key).is_none()).map(|key| (*key, 1)));
        let excess = self.offers.len().saturating_sub(self.options.tracker_keys_max as usize);
        self.offers.drain(..excess.min(older));
    }

    pub fn offer(&mut self, req: usize, offered: &[OffloadKey]) -> Offered {
        let mut keys: Vec<OffloadKey> = Vec::new();
        for key in offered {
            if !keys.contains(key) {
                keys.push(*key);
            }
        }
        self.count_offers(&keys);
        let (mut candidates, mut new) = (Vec::new(), Vec::new());
        for key in &keys {
            let met = match self.peek(*key) {
                LookupResult::Hit => Some(AccessKind::Reused),
                LookupResult::Miss => {
                    let offers =
                        self.offers.iter().find(|(of, _)| of == key).map_or(1, |(_, offers)| *offers);
                    if offers < self.options.store_threshold {
                        self.stats.keys_below_threshold += 1;
                        continue;
                    }
                    candidates.push(*key);
                    None
                }
                _ => continue,
            };
            if self.meet(req, *key, met) {
                new.push(*key);
            }
        }
        self.access(req, &new);
        self.miss(req, &candidates);
        if candidates.is_empty() {
            return Offered::NothingToStore;
        }
        let counts = self.counts();
        let lacking = candidates.len().saturating_sub(counts.free as usize);
        let evicted = if lacking == 0 { Some(Vec::new()) } else { self.evict(lacking, &keys) };
        let Some(evicted) = evicted else {
            self.stats.offers_refused += 1;
            let needed = count(candidates.len());
            return Offered::Refused(Refusal { needed, free: counts.free, evictable: counts.evictable });
        };
        Offered::Prepared { keys: candidates, evicted }
    }

    /// The keys of an offer got their slots.
    pub fn occupy(&mut self, req: usize, keys: &[OffloadKey], slots: &[SlotId]) {
        for (key, slot) in keys.iter().zip(slots) {
            let end_token = self.requests[req].positions.get(key).copied();
            self.policy.insert(req, *key, end_token);
            self.meet(req, *key, Some(AccessKind::Inserted));
            self.chunks.push(Chunk { key: *key, slot: *slot, pins: None });
        }
    }

    pub fn open(&mut self, id: JobId, kind: JobKind, keys: Vec<OffloadKey>) {
        self.jobs.push(Job { id, kind, generation: self.generation, keys });
    }

    pub fn complete(&mut self, id: JobId, done: bool) {
        let at = self.jobs.iter().position(|job| job.id == id).unwrap();
        let job = self.jobs.remove(at);
        match (job.kind, done) {
            (JobKind::Load, _) => job.keys.iter().for_each(|key| self.unpin(*key)),
            (JobKind::Store, true) => {
                job.keys.iter().for_each(|key| self.ready(*key));
                self.stats.chunks_stored += job.keys.len() as u64;
                self.record(EventKind::Stored, &job.keys);
            }
            (JobKind::Store, false) => {
                job.keys.iter().for_each(|key| self.fail(*key));
                self.record(EventKind::Discarded, &job.keys);
            }
        }
    }

    /// How many of the first keys are ready, which it pins until the step ends.
    pub fn reserve(&mut self, keys: &[OffloadKey]) -> usize {
        let ready: Vec<_> =
            keys.iter().copied().take_while(|key| self.peek(*key) == LookupResult::Hit).collect();
        for key in &ready {
            self.pin(*key);
        }
        self.reserved.extend(&ready);
        self.stats.lookup_hits += ready.len() as u64;
        ready.len()
    }

    pub fn end_step(&mut self) {
        for key in std::mem::take(&mut self.reserved) {
            self.unpin(key);
        }
    }

    /// Whether a cascade may read the chunk, which it then pins.
    pub fn cascade(&mut self, key: OffloadKey) -> bool {
        let ready = self.peek(key) == LookupResult::Hit;
        if ready {
            self.pin(key);
        }
        ready
    }

    /// Whether there is room to promote the key to, which is made.
    pub fn promote(&mut self, req: usize, key: OffloadKey) -> bool {
        if self.peek(key) != LookupResult::Miss {
            return false;
        }
        if self.meet(req, key, None) {
            self.access(req, &[key]);
        }
        self.miss(req, &[key]);
        self.counts().free > 0 || self.evict(1, &[]).is_some()
    }

    pub fn release(&mut self, key: OffloadKey, slot: SlotId, of: (u64, HoldKind), done: bool) -> Released {
        if of.0 != self.generation {
            let at = self.parked.iter().position(|parked| *parked == slot).unwrap();
            self.parked.remove(at);
            return Released::Stale;
        }
        match (of.1, done) {
            (HoldKind::Cascade, _) => self.unpin(key),
            (HoldKind::Promotion, true) => {
                self.ready(key);
                self.stats.chunks_promoted += 1;
            }
            (HoldKind::Promotion, false) => {
                self.fail(key);
                return Released::Freed;
            }
        }
        Released::Ready
    }

    /// Whether a promotion that a tier may still write is dropped, and not one of before a reset.
    pub fn give_up(&mut self, key: OffloadKey, slot: SlotId, generation: u64) -> bool {
        let is_current = generation == self.generation;
        if is_current {
            self.fail(key);
            self.parked.push(slot);
        }
        is_current
    }

    pub fn release_given_up(&mut self, slot: SlotId) -> Released {
        self.parked.retain(|parked| *parked != slot);
        Released::Freed
    }

    pub fn touch(&mut self, keys: &[OffloadKey]) {
        self.policy.touch(keys);
    }

    pub fn finish(&mut self, req: usize) {
        let request = &mut self.requests[req];
        request.finished = true;
        request.missed.clear();
        let mut keys: Vec<KeyAccess> = Vec::new();
        for (key, kind) in request.met.drain(..) {
            let slot = self.chunks.iter().find(|chunk| chunk.key == key).map(|chunk| chunk.slot);
            let end_token = request.positions.get(&key).copied();
            keys.push(KeyAccess { key, slot, end_token, kind: kind.unwrap_or(AccessKind::Inserted) });
        }
        let without = keys.iter().any(|access| access.end_token.is_none());
        keys.sort_by_key(|access| (access.end_token.filter(|_| !without), access.key.group()));
        if !keys.is_empty() {
            self.policy.finish(&keys);
            self.committed = keys;
        }
    }

    pub fn take_events(&mut self) -> Vec<(EventKind, Vec<OffloadKey>)> {
        let mut events = std::mem::take(&mut self.events);
        for (kind, keys) in &mut events {
            if *kind == EventKind::Discarded {
                keys.retain(|key| self.peek(*key) == LookupResult::Miss);
            }
        }
        events.retain(|(_, keys)| !keys.is_empty());
        events
    }

    /// Drops everything but the slots that tiers still use.
    pub fn reset(&mut self, held: impl IntoIterator<Item = SlotId>) {
        self.chunks.clear();
        self.reserved.clear();
        self.parked.extend(held);
        self.generation += 1;
        self.policy.clear();
        for request in &mut self.requests {
            request.met.clear();
            request.missed.clear();
        }
    }
}
