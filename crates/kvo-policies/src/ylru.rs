//! LRU by classes, ranked by yield.

use std::{collections::TryReserveError, num::NonZeroU64};

use kvo_core::{GroupIdx, OffloadKey, SlotId, prefetch};

use crate::{
    AccessKind, CachePolicy, KeyAccess, RequestRecency, Residents, RunSummary,
    ghosts::Ghosts,
    index::SlotIndex,
    order::{Orders, Scan, filled},
    policy::{MEMORY, insert_each},
};

mod yields;

use self::yields::{CLASSES, Yields};

/// The highest class.
const HIGHEST: u8 = 3;
const _: () = assert!(HIGHEST as usize + 1 == CLASSES);

/// Ghosts, as a multiple of the capacity.
const GHOSTS: u32 = 2;

/// Ghosts of evicted chunks.
const GONE: usize = 0;
/// Ghosts that were asked for and are to be stored again.
const ASKED: usize = 1;

/// LRU by classes, ranked by yield: chunks that were met again equally often are in LRU order, and between these orders
/// decides what the room has earned.
///
/// A chunk's class is how many requests have met it again, up to 3; a ghost remembers it. Time is counted in chunks
/// committed, and a chunk's age is the time since it was last met. The policy counts at which ages chunks of each
/// class were met again, or forgotten unmet, and from that reckons the *yield* of a class at an age: the best average
/// of hits for each step of room that a chunk can earn which stays on from there. The victim is the oldest chunk of
/// the class whose oldest one yields least.
///
/// New here; `docs/POLICIES.md` describes it as for a paper. To rank by the best average rate to come is Gittins's index
/// (J. Royal Statistical Society B 41(2), 1979).
///
/// Strands nothing on prefix chains: a parent's class is never below its child's, nor its age above, and a yield is
/// made never to fall with the class nor to rise with age. Each operation is constant per chunk, amortised, whatever
/// is pinned; an eviction also looks at a few chunks of each class that it leaves, no more than it takes and 56.
#[derive(Debug)]
pub struct Ylru {
    /// A queue for each class.
    order: Orders<CLASSES>,
    chunks: Vec<Chunk>,
    ghosts: Ghosts<2, Past>,
    ghosts_max: usize,
    asked_max: usize,
    yields: Yields,
    /// Chunks committed so far.
    clock: u64,
    running: Vec<Running>,
    free_running: Vec<u32>,
    /// Of each group, the class of the last chunk applied.
    before: Vec<(GroupIdx, u8)>,
    /// How many chunks are back, and no request has finished with them since.
    num_back: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct Chunk {
    /// The time of its place in its queue.
    placed: u64,
    past: Past,
    /// It was evicted and came back; no request has finished with it since.
    is_back: bool,
}

/// What outlives a chunk in its ghost.
#[derive(Clone, Copy, Debug, Default)]
struct Past {
    class: u8,
    /// When a request last finished with it.
    met: Option<NonZeroU64>,
}

/// A request that runs: its provisional places, one run for each class, all begun at one time.
#[derive(Clone, Copy, Debug)]
struct Running {
    runs: [u32; CLASSES],
    begun: u64,
}

impl Ylru {
    /// An empty policy for a tier of `capacity` chunks.
    ///
    /// # Panics
    /// If there is no memory for its tables.
    pub fn new(capacity: u32) -> Self {
        Self::try_new(capacity).expect(MEMORY)
    }

    pub(crate) fn try_new(capacity: u32) -> Result<Self, TryReserveError> {
        let ghosts_max = capacity.saturating_mul(GHOSTS);
        Ok(Self {
            order: Orders::new(capacity)?,
            chunks: filled(capacity, Chunk::default())?,
            // Each list may hold one more than its bound until it is trimmed.
            ghosts: Ghosts::new(ghosts_max.saturating_add(capacity).saturating_add(2))?,
            ghosts_max: ghosts_max as usize,
            asked_max: capacity as usize,
            yields: Yields::new(capacity),
            clock: 0,
            running: Vec::new(),
            free_running: Vec::new(),
            before: Vec::new(),
            num_back: 0,
        })
    }

    /// Chunks that searches for victims have looked at so far.
    pub fn visits(&self) -> u64 {
        self.order.visits()
    }

    /// Replaces what is known of the chunk in `slot`; returns what it was.
    fn set(&mut self, slot: SlotId, chunk: Chunk) -> Chunk {
        let before = std::mem::replace(&mut self.chunks[slot.0 as usize], chunk);
        self.num_back = self.num_back + usize::from(chunk.is_back) - usize::from(before.is_back);
        before
    }

    /// The provisional places of a request.
    fn running(&mut self, req: &mut RequestRecency) -> Running {
        if let Some(number) = req.run {
            return self.running[number as usize];
        }
        let runs = std::array::from_fn(|class| self.order.begin_run(class));
        let running = Running { runs, begun: self.clock };
        let number = self.free_running.pop().unwrap_or_else(|| {
            self.running.push(running);
            u32::try_from(self.running.len() - 1).expect("a request that runs takes far more than a byte")
        });
        self.running[number as usize] = running;
        req.run = Some(number);
        running
    }

    /// The request is over; what it has not committed keeps its place.
    fn end(&mut self, req: &mut RequestRecency, tier: &dyn Residents) {
        if let Some(number) = req.run.take() {
            for run in self.running[number as usize].runs {
                self.order.end_run(run, tier);
            }
            self.free_running.push(number);
        }
    }

    fn put_in_run(
        &mut self,
        running: Running,
        class: usize,
        slot: SlotId,
        end_token: u32,
        tier: &dyn Residents,
    ) {
        self.order.push_to_run(running.runs[class], slot, end_token, tier);
        self.chunks[slot.0 as usize].placed = running.begun;
    }

    /// A chunk begins in `slot`, with what its ghost remembers.
    fn begin(&mut self, slot: SlotId, key: &OffloadKey) {
        let (past, is_back) = match self.ghosts.take(key) {
            Some((ASKED, past)) => (past, true),
            _ => (Past::default(), false),
        };
        self.set(slot, Chunk { placed: self.clock, past, is_back });
    }

    /// A key that is not resident was asked for.
    fn ask(&mut self, key: OffloadKey) {
        if self.ghosts.list_of(&key).is_some() {
            self.ghosts.push(ASKED, key);
            self.ghosts.trim(ASKED, self.asked_max);
        }
    }

    /// The class of a chunk after an access, no higher than `highest`; takes down at which age it was met.
    fn class_after(&mut self, slot: SlotId, kind: AccessKind, highest: u8) -> u8 {
        let Chunk { past, is_back, .. } = self.chunks[slot.0 as usize];
        if kind == AccessKind::Inserted && !is_back {
            // Others may have met it before the request that stored it finished.
            return past.class.min(highest);
        }
        if let Some(met) = past.met {
            self.yields.met(past.class.into(), self.clock - met.get());
        }
        (past.class + 1).min(highest)
    }

    /// Applies an access: a chunk's class is no higher than that of the chunk before it in its group.
    fn commit(&mut self, keys: &[KeyAccess], kind: impl Fn(&KeyAccess) -> AccessKind) {
        self.clock += keys.len() as u64;
        self.before.clear();
        for access in keys {
            let Some(slot) = access.slot else { continue };
            if self.order.queue_of(slot).is_none() {
                continue;
            }
            let group = access.key.group();
            let before = self.before.iter().position(|(of, _)| *of == group).unwrap_or_else(|| {
                self.before.push((group, HIGHEST));
                self.before.len() - 1
            });
            let class = self.class_after(slot, kind(access), self.before[before].1);
            self.before[before].1 = class;
            let past = Past { class, met: NonZeroU64::new(self.clock) };
            self.set(slot, Chunk { placed: self.clock, past, is_back: false });
        }
        for slot in keys.iter().rev().filter_map(|access| access.slot) {
            if self.order.queue_of(slot).is_some() {
                let class = self.chunks[slot.0 as usize].past.class;
                self.order.push(class.into(), slot);
            }
        }
        self.yields.advance(keys.len() as u64);
    }

    /// What the next chunk of a class yields that may go.
    fn head(&mut self, class: usize, scan: &mut Scan, tier: &dyn Residents) -> Option<(f64, SlotId)> {
        let is_new_look = scan.is_at_end_of_look();
        let slot = self.order.next(scan, tier)?;
        if is_new_look {
            self.order.upcoming(scan).for_each(|slot| prefetch(&self.chunks[slot.0 as usize]));
        }
        let age = self.clock - self.chunks[slot.0 as usize].placed;
        Some((self.yields.of(class, age), slot))
    }

    /// Appends `count` victims and leaves them where they are; or changes nothing and returns `false`.
    fn choose(&mut self, count: usize, tier: &dyn Residents, victims: &mut Vec<SlotId>) -> bool {
        let before = victims.len();
        self.order.sort_runs(tier);
        let mut scans: [Scan; CLASSES] = std::array::from_fn(|class| self.order.scan(class));
        let mut heads: [Option<(f64, SlotId)>; CLASSES] = [None; CLASSES];
        if count > 0 {
            heads = std::array::from_fn(|class| self.head(class, &mut scans[class], tier));
        }
        // How many victims in a row were of one class.
        let (mut class, mut in_a_row) = (CLASSES, 0);
        for left in (0..count).rev() {
            let Some(next) = least(&heads) else {
                victims.truncate(before);
                return false;
            };
            in_a_row = if next == class { in_a_row + 1 } else { 1 };
            class = next;
            victims.extend(heads[class].map(|(_, slot)| slot));
            // As many at once as have been of use so far: no more than half of the looks are in vain.
            scans[class].look_for(left.min(in_a_row));
            heads[class] = if left > 0 { self.head(class, &mut scans[class], tier) } else { None };
        }
        true
    }
}

/// The class of the head that yields least; of equal ones the lowest, so that a child goes before its parent.
fn least(heads: &[Option<(f64, SlotId)>; CLASSES]) -> Option<usize> {
    let mut best: Option<(f64, usize)> = None;
    for (class, head) in heads.iter().enumerate() {
        if let Some((value, _)) = *head
            && best.is_none_or(|(least, _)| value < least)
        {
            best = Some((value, class));
        }
    }
    best.map(|(_, class)| class)
}

impl CachePolicy for Ylru {
    fn num_slots_max(&self) -> u32 {
        self.order.capacity()
    }

    fn insert(
        &mut self,
        req: &mut RequestRecency,
        slot: SlotId,
        key: &OffloadKey,
        end_token: Option<u32>,
        tier: &dyn Residents,
    ) {
        self.begin(slot, key);
        match end_token {
            Some(end_token) => {
                let running = self.running(req);
                self.put_in_run(running, 0, slot, end_token, tier);
            }
            None => self.order.push(0, slot),
        }
    }

    fn insert_all(&mut self, req: &mut RequestRecency, chunks: &[KeyAccess], tier: &dyn Residents) {
        if chunks.iter().any(|chunk| chunk.end_token.is_none()) {
            insert_each(self, req, chunks, tier);
            return;
        }
        let running = self.running(req);
        for batch in chunks.chunks(SlotIndex::BATCH) {
            for (chunk, ghost) in batch.iter().zip(self.ghosts.find_batch(batch)) {
                let slot = chunk.slot.expect("a chunk that is inserted has a slot");
                if ghost.is_some() {
                    self.begin(slot, &chunk.key);
                } else {
                    self.set(slot, Chunk::default());
                }
                self.chunks[slot.0 as usize].placed = running.begun;
            }
        }
        self.order.push_all_to_run(running.runs[0], chunks, tier);
    }

    fn on_ready(&mut self, slot: SlotId) {
        self.order.wake(slot);
    }

    fn on_unpin(&mut self, slot: SlotId) {
        self.order.wake(slot);
    }

    fn remove(&mut self, slot: SlotId) {
        self.set(slot, Chunk::default());
        self.order.remove(slot);
    }

    fn evict(&mut self, count: usize, tier: &dyn Residents, victims: &mut Vec<SlotId>) -> bool {
        let before = victims.len();
        if !self.choose(count, tier, victims) {
            return false;
        }
        self.order.remove_all(victims[before..].iter().copied());
        for victim in &victims[before..] {
            let Chunk { past, .. } = self.set(*victim, Chunk::default());
            self.ghosts.push_new(GONE, tier.key(*victim), past);
            while self.ghosts.len(GONE) > self.ghosts_max {
                let Some(Past { class, met: Some(met) }) = self.ghosts.pop_oldest(GONE) else { continue };
                self.yields.gone(class.into(), self.clock - met.get());
            }
        }
        true
    }

    fn touch(&mut self, keys: &[KeyAccess], _tier: &dyn Residents) {
        for access in keys.iter().rev().filter(|access| access.slot.is_none()) {
            self.ask(access.key);
        }
        self.commit(keys, |_| AccessKind::Reused);
    }

    fn on_store_miss(&mut self, keys: &[KeyAccess], _tier: &dyn Residents) {
        for batch in keys.rchunks(SlotIndex::BATCH) {
            // A key without a ghost gets none by what the others do.
            let found = self.ghosts.find_batch(batch);
            for (access, _) in batch.iter().zip(found).rev().filter(|(_, ghost)| ghost.is_some()) {
                self.ask(access.key);
            }
        }
    }

    fn on_request_access(&mut self, req: &mut RequestRecency, keys: &[KeyAccess], tier: &dyn Residents) {
        for access in keys {
            let (Some(end_token), Some(slot)) = (access.end_token, access.slot) else { continue };
            let Some(class) = self.order.queue_of(slot) else { continue };
            let running = self.running(req);
            if self.order.is_raised_by_run(slot, running.runs[class], end_token) {
                self.put_in_run(running, class, slot, end_token, tier);
            }
        }
    }

    fn on_request_finished(&mut self, req: &mut RequestRecency, keys: &[KeyAccess], tier: &dyn Residents) {
        self.commit(keys, |access| access.kind);
        self.end(req, tier);
    }

    /// What a request stored alone, and is not back, stays in class 0. Its run there holds nothing else, so it holds all
    /// if it has as many.
    fn commit_run(&mut self, req: &mut RequestRecency, summary: RunSummary) -> bool {
        let Some(number) = req.run else { return false };
        let [lowest, others @ ..] = self.running[number as usize].runs;
        let is_new = summary.num_reused == 0 && self.num_back == 0;
        if !is_new || !self.order.promote_run_of(lowest, summary.num_keys) {
            return false;
        }
        for run in others {
            self.order.end_empty_run(run);
        }
        req.run = None;
        self.free_running.push(number);
        self.clock += summary.num_keys as u64;
        let chunk = Chunk {
            placed: self.clock,
            past: Past { class: 0, met: NonZeroU64::new(self.clock) },
            is_back: false,
        };
        for slot in self.order.newest(0, summary.num_keys) {
            self.chunks[slot.0 as usize] = chunk;
        }
        self.yields.advance(summary.num_keys as u64);
        true
    }

    fn clear(&mut self) {
        self.num_back = 0;
        self.chunks.fill(Chunk::default());
        self.order.clear();
        self.ghosts.clear();
        self.yields = Yields::new(self.order.capacity());
        self.clock = 0;
        self.running.clear();
        self.free_running.clear();
    }
}

#[cfg(test)]
mod tests;
