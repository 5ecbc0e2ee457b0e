//! S3-FIFO with leaf-only victims, request by request.

use std::{
    cell::Cell,
    collections::{TryReserveError, VecDeque},
};

use kvo_core::{OffloadKey, SlotId};

use crate::{
    AccessKind, CachePolicy, Eviction, KeyAccess, RequestRecency, Residents,
    ghosts::Ghosts,
    order::{Orders, Scan, filled},
    policy::MEMORY,
    segmented::share,
};

/// Reuses are counted up to here.
const REUSES_MAX: u8 = 3;
/// Of the capacity, how many ghosts there are, in percent.
const GHOSTS_PCT: u8 = 90;

const SMALL: usize = 0;
const MAIN: usize = 1;

/// Ghosts of the small queue's victims.
const GONE: usize = 0;
/// Ghosts that were asked for and are to be stored again.
const ASKED: usize = 1;

/// How an [`S3Fifo`] is to behave.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct S3FifoOptions {
    /// Share of the capacity meant for the small queue, in percent, up to 100.
    pub small_pct: u8,
    /// Reuses, from 1 to 3, with which a chunk passes from the small queue to the main one.
    pub threshold: u8,
    /// Whether only chunks without resident children go.
    pub leaf_only: bool,
}

impl Default for S3FifoOptions {
    fn default() -> Self {
        Self { small_pct: 30, threshold: 1, leaf_only: true }
    }
}

/// S3-FIFO: two queues, small and main, whose chunks are not moved when they are met, and ghosts of the small one.
///
/// A new chunk enters the small queue, or the main one if it has a ghost. Finishes only count reuses, up to 3. The
/// work is done when a victim is needed:
///
/// - If main holds more than its share, or small has nothing to give, main's oldest is looked at: if it was reused or
///   has a resident child it returns to the recent end, with a reuse less or none, else it goes.
/// - Otherwise small's oldest is looked at: if it was reused `threshold` times or has a resident child it moves to
///   main, its reuses forgotten, else it goes and leaves a ghost. There are ghosts for 90 % of the capacity.
///
/// Once main has shown all that it can give, and the first again, and nothing but chunks with children in a row, small
/// is asked even so; being asked, also for a chunk that is spared, begins a new row. If neither has a leaf to give,
/// because all leaves are held, main's oldest goes: an eviction that some policy could grant is never refused.
///
/// A key's ghost is spent when a request first misses the key, before the eviction that makes room for it.
///
/// From J. Yang, Y. Zhang, Z. Qiu, Y. Yue, R. Vinayak, "FIFO Queues are All You Need for Cache Eviction", SOSP 2023,
/// with these departures:
///
/// - One request is one access: a chunk counts as reused at the finish of a request that reused it, once. A request's
///   insertions get their place when it finishes, the tail first; until then those in the small queue share a
///   provisional place, ordered by position as in [`Lru`](crate::Lru).
/// - With `leaf_only` a chunk with resident children stays. Without it the policy strands up to a quarter of the tier
///   behind missing heads, and block hits overstate what it is good for.
/// - 30 % for the small queue, not 10 %, and one reuse, not two, is enough to leave it.
///
/// What is a child of what is learnt from requests: a key's parent is its predecessor of the same group in the list of
/// a request that finishes. So a running request ties nothing yet: its chunks are kept by the pins of its transfers.
///
/// With `leaf_only` strands nothing on prefix chains as long as not all leaves are held; without, it can. A finish is
/// constant per chunk. An eviction looks at a chunk at most 3 times per reuse and, in the worst case, once at all of
/// main. Once it has seen all of main it knows whether anything there can go, and goes through it again only then.
#[derive(Debug)]
pub struct S3Fifo {
    options: S3FifoOptions,
    main_share: usize,
    /// [`SMALL`] and [`MAIN`].
    order: Orders<2>,
    /// [`GONE`] and [`ASKED`].
    ghosts: Ghosts<2>,
    ghosts_max: usize,
    asked_max: usize,
    chunks: Vec<Chunk>,
    /// What the eviction under way has returned to, or moved to, the recent end of main.
    returned: VecDeque<SlotId>,
    /// How many of these main's turn would not pass over.
    num_giving: usize,
    /// Looks at chunks that were returned.
    visits_returned: u64,
}

/// What is known of the chunk in a slot.
#[derive(Clone, Copy, Debug, Default)]
struct Chunk {
    reuses: u8,
    /// Whether it is among those returned.
    is_returned: bool,
    /// Resident chunks whose parent it is.
    children: u32,
    /// Its parent's slot, and which chunk it was of those that the slot has held.
    parent: Option<(SlotId, u32)>,
    /// How many chunks the slot has held.
    generation: u32,
}

impl S3Fifo {
    /// An empty policy for a tier of `capacity` chunks.
    ///
    /// # Panics
    /// If an option is out of its range, or if there is no memory for its tables.
    pub fn new(capacity: u32, options: S3FifoOptions) -> Self {
        Self::try_new(capacity, options).expect(MEMORY)
    }

    pub(crate) fn try_new(capacity: u32, options: S3FifoOptions) -> Result<Self, TryReserveError> {
        let S3FifoOptions { small_pct, threshold, .. } = options;
        assert!(small_pct <= 100, "{small_pct} % of the tier cannot be the small queue's");
        assert!(
            (1..=REUSES_MAX).contains(&threshold),
            "reuses are counted up to 3, so {threshold} is no threshold"
        );
        let ghosts_max = share(capacity, GHOSTS_PCT);
        let mut returned = VecDeque::new();
        returned.try_reserve_exact(capacity as usize)?;
        Ok(Self {
            options,
            main_share: (capacity - share(capacity, small_pct)) as usize,
            order: Orders::new(capacity)?,
            // Each list may hold one more until it is trimmed.
            ghosts: Ghosts::new(ghosts_max.saturating_add(capacity).saturating_add(2))?,
            ghosts_max: ghosts_max as usize,
            asked_max: capacity as usize,
            chunks: filled(capacity, Chunk::default())?,
            returned,
            num_giving: 0,
            visits_returned: 0,
        })
    }

    /// Chunks that searches for victims have looked at so far.
    pub fn visits(&self) -> u64 {
        self.order.visits() + self.visits_returned
    }

    fn chunk(&mut self, slot: SlotId) -> &mut Chunk {
        &mut self.chunks[slot.0 as usize]
    }

    /// Counts a reuse.
    fn reuse(&mut self, slot: SlotId) {
        let chunk = self.chunk(slot);
        chunk.reuses = (chunk.reuses + 1).min(REUSES_MAX);
    }

    fn has_children(&self, slot: SlotId) -> bool {
        self.options.leaf_only && self.chunks[slot.0 as usize].children > 0
    }

    /// Whether main's turn passes over the chunk in `slot`, if it has one.
    fn is_barren(&self, slot: SlotId) -> bool {
        self.chunks[slot.0 as usize].reuses == 0 && self.has_children(slot)
    }

    /// Makes `parent` the parent of the chunk in `slot`.
    fn tie(&mut self, slot: SlotId, parent: SlotId) {
        let generation = self.chunk(parent).generation;
        if self.chunk(slot).parent != Some((parent, generation)) {
            self.untie(slot);
            self.chunk(slot).parent = Some((parent, generation));
            self.chunk(parent).children += 1;
        }
    }

    /// The chunk in `slot` has no parent any more.
    fn untie(&mut self, slot: SlotId) {
        if let Some((parent, generation)) = self.chunk(slot).parent.take()
            && self.chunk(parent).generation == generation
        {
            let was_barren = self.is_barren(parent);
            self.chunk(parent).children -= 1;
            if self.chunk(parent).is_returned && was_barren && !self.is_barren(parent) {
                self.num_giving += 1;
            }
        }
    }

    /// The chunk in `slot` is gone.
    fn forget(&mut self, slot: SlotId) {
        self.untie(slot);
        let generation = self.chunk(slot).generation.wrapping_add(1);
        *self.chunk(slot) = Chunk { generation, ..Chunk::default() };
    }

    /// Ties each chunk of a request to the one before it in its group.
    fn tie_all(&mut self, keys: &[KeyAccess]) {
        for (index, access) in keys.iter().enumerate() {
            let Some(slot) = access.slot else { continue };
            let group = access.key.group();
            let parent = keys[..index].iter().rev().find(|before| before.key.group() == group);
            if let Some(parent) = parent.and_then(|parent| parent.slot).filter(|parent| *parent != slot) {
                self.tie(slot, parent);
            }
        }
    }

    /// Whether `count` chunks may go. Looks at them, and changes nothing.
    fn can_evict(&mut self, count: usize, tier: &dyn Residents) -> bool {
        let mut scans = [SMALL, MAIN].map(|queue| self.order.scan(queue));
        (0..count).all(|_| scans.iter_mut().any(|scan| self.order.next(scan, tier).is_some()))
    }

    /// The next chunk that main's turn falls on.
    fn next_in_main(&mut self, pass: &mut Pass, tier: &dyn Residents) -> Option<SlotId> {
        let slot = self.order.next(&mut pass.main, tier);
        pass.is_main_seen |= slot.is_none();
        slot.or_else(|| {
            self.visits_returned += 1;
            self.pop_returned()
        })
    }

    fn push_returned(&mut self, slot: SlotId) {
        self.chunk(slot).is_returned = true;
        self.num_giving += usize::from(!self.is_barren(slot));
        self.returned.push_back(slot);
    }

    fn pop_returned(&mut self) -> Option<SlotId> {
        let slot = self.returned.pop_front()?;
        self.chunk(slot).is_returned = false;
        self.num_giving -= usize::from(!self.is_barren(slot));
        Some(slot)
    }

    /// Passes over all that main has, and the first again, if that is known beforehand to give nothing; says whether.
    fn pass_over_main(&mut self, pass: &mut Pass) -> bool {
        let is_known = pass.is_main_seen && pass.with_children == 0 && self.num_giving == 0;
        if !is_known || self.returned.is_empty() {
            return false;
        }
        pass.first_with_children = self.returned.front().copied();
        pass.with_children = self.returned.len() + 1;
        self.returned.rotate_left(1);
        true
    }

    /// Finds the next chunk that small's turn falls on, and how many spared ones are before it.
    fn find_in_small(&mut self, pass: &mut Pass, tier: &dyn Residents) {
        let spared = Cell::new(0);
        let tier = CountingSpared { tier, spared: &spared };
        pass.next_small = self.order.next(&mut pass.small, &tier);
        pass.spared_small = spared.get();
    }

    /// The next victim; there must be one. What only changes its place is left in `returned`.
    fn choose(&mut self, pass: &mut Pass, tier: &dyn Residents) -> SlotId {
        loop {
            let is_small_empty = pass.next_small.is_none() && pass.spared_small == 0;
            // Once all of main was seen, `returned` is all that it can give.
            let is_main_barren = pass.is_main_seen && pass.with_children > self.returned.len();
            let is_mains_turn = (pass.main_len > self.main_share || is_small_empty) && !is_main_barren;
            if is_mains_turn && self.pass_over_main(pass) {
                continue;
            }
            if is_mains_turn && let Some(slot) = self.next_in_main(pass, tier) {
                if self.look_in_main(pass, slot) {
                    return slot;
                }
            } else if pass.spared_small > 0 {
                pass.spared_small -= 1;
                pass.with_children = 0;
            } else if let Some(slot) = pass.next_small {
                self.find_in_small(pass, tier);
                pass.with_children = 0;
                if self.look_in_small(pass, slot, tier) {
                    return slot;
                }
            } else {
                // Main was gone through more than once: back to where that began.
                if let Some(first) = pass.first_with_children.take() {
                    let at = self.returned.iter().position(|slot| *slot == first);
                    self.returned.rotate_left(at.unwrap_or(0));
                }
                pass.main_len -= 1;
                return self.next_in_main(pass, tier).expect("enough chunks may go");
            }
        }
    }

    /// Whether main's oldest goes; else it returns to the recent end.
    fn look_in_main(&mut self, pass: &mut Pass, slot: SlotId) -> bool {
        if self.chunk(slot).reuses > 0 {
            self.chunk(slot).reuses -= 1;
            pass.with_children = 0;
        } else if self.has_children(slot) {
            if pass.with_children == 0 {
                pass.first_with_children = Some(slot);
            }
            pass.with_children += 1;
        } else {
            pass.with_children = 0;
            pass.main_len -= 1;
            return true;
        }
        self.push_returned(slot);
        false
    }

    /// Whether small's oldest goes; else it moves to main.
    fn look_in_small(&mut self, pass: &mut Pass, slot: SlotId, tier: &dyn Residents) -> bool {
        if self.chunk(slot).reuses < self.options.threshold && !self.has_children(slot) {
            self.ghosts.push(GONE, tier.key(slot));
            self.ghosts.trim(GONE, self.ghosts_max);
            return true;
        }
        self.chunk(slot).reuses = 0;
        pass.main_len += 1;
        self.push_returned(slot);
        false
    }
}

/// An eviction under way.
#[derive(Debug)]
struct Pass {
    small: Scan,
    main: Scan,
    /// The next chunk that small's turn falls on, and how many spared ones its turn falls on before.
    next_small: Option<SlotId>,
    spared_small: usize,
    /// Chunks in main, those returned and those held included.
    main_len: usize,
    /// Whether the scan of main has come to its end.
    is_main_seen: bool,
    /// How many chunks in a row main has shown that have children, and the first of them.
    with_children: usize,
    first_with_children: Option<SlotId>,
}

/// A tier, and how many of the chunks that were asked about are spared.
struct CountingSpared<'a> {
    tier: &'a dyn Residents,
    spared: &'a Cell<usize>,
}

impl Residents for CountingSpared<'_> {
    fn key(&self, slot: SlotId) -> OffloadKey {
        self.tier.key(slot)
    }

    fn may_evict(&self, slot: SlotId) -> Eviction {
        let eviction = self.tier.may_evict(slot);
        self.spared.set(self.spared.get() + usize::from(eviction == Eviction::Spared));
        eviction
    }
}

impl CachePolicy for S3Fifo {
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
        self.forget(slot);
        let has_ghost = self.ghosts.remove(key) == Some(ASKED);
        match end_token {
            _ if has_ghost => self.order.push(MAIN, slot),
            Some(end_token) => {
                let run = *req.run.get_or_insert_with(|| self.order.begin_run(SMALL));
                self.order.push_to_run(run, slot, end_token, tier);
            }
            None => self.order.push(SMALL, slot),
        }
    }

    fn on_ready(&mut self, slot: SlotId) {
        self.order.wake(slot);
    }

    fn on_unpin(&mut self, slot: SlotId) {
        self.order.wake(slot);
    }

    fn remove(&mut self, slot: SlotId) {
        self.forget(slot);
        self.order.remove(slot);
    }

    fn evict(&mut self, count: usize, tier: &dyn Residents, victims: &mut Vec<SlotId>) -> bool {
        self.order.sort_runs(tier);
        if !self.can_evict(count, tier) {
            return false;
        }
        let mut pass = Pass {
            small: self.order.scan(SMALL),
            main: self.order.scan(MAIN),
            next_small: None,
            spared_small: 0,
            main_len: self.order.len(MAIN),
            is_main_seen: false,
            with_children: 0,
            first_with_children: None,
        };
        self.find_in_small(&mut pass, tier);
        let before = victims.len();
        for _ in 0..count {
            let victim = self.choose(&mut pass, tier);
            self.forget(victim);
            victims.push(victim);
        }
        for victim in &victims[before..] {
            self.order.remove(*victim);
        }
        while let Some(slot) = self.pop_returned() {
            self.order.push(MAIN, slot);
        }
        true
    }

    fn touch(&mut self, keys: &[KeyAccess], _tier: &dyn Residents) {
        for slot in keys.iter().filter_map(|access| access.slot) {
            self.reuse(slot);
        }
    }

    fn on_store_miss(&mut self, keys: &[KeyAccess], _tier: &dyn Residents) {
        for access in keys.iter().rev() {
            if self.ghosts.list_of(&access.key).is_some() {
                self.ghosts.push(ASKED, access.key);
                self.ghosts.trim(ASKED, self.asked_max);
            }
        }
    }

    fn on_request_finished(&mut self, req: &mut RequestRecency, keys: &[KeyAccess], tier: &dyn Residents) {
        for access in keys.iter().rev() {
            let Some(slot) = access.slot else { continue };
            match (access.kind, self.order.queue_of(slot)) {
                (AccessKind::Inserted, Some(queue)) => self.order.push(queue, slot),
                _ => self.reuse(slot),
            }
        }
        if self.options.leaf_only {
            self.tie_all(keys);
        }
        if let Some(run) = req.run.take() {
            self.order.end_run(run, tier);
        }
    }

    fn clear(&mut self) {
        self.order.clear();
        self.ghosts.clear();
        self.chunks.fill(Chunk::default());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Table, check_evicts, key};

    /// Small and main, the old end first; then which of the numbers have a ghost.
    #[track_caller]
    fn check_lists(policy: &S3Fifo, table: &Table, expected: [&[u64]; 3]) {
        let [small, main] = [SMALL, MAIN].map(|queue| table.numbers(&policy.order.list(queue)));
        let ghosts: Vec<u64> = (0..100).filter(|n| policy.ghosts.list_of(&key(*n)) == Some(GONE)).collect();
        assert_eq!([small, main, ghosts], expected);
    }

    fn plain(capacity: u32) -> S3Fifo {
        S3Fifo::new(capacity, S3FifoOptions { leaf_only: false, ..S3FifoOptions::default() })
    }

    #[test]
    fn a_reuse_saves_from_the_small_queue_and_a_ghost_enters_main() {
        let mut table = Table::new(10);
        let mut policy = plain(10);
        for n in 1..=4 {
            table.store(&mut policy, &[n]);
        }
        table.reuse(&mut policy, &[1]);
        check_evicts(&mut policy, &mut table, &[2]);
        check_lists(&policy, &table, [&[3, 4], &[1], &[2]]);
        table.store(&mut policy, &[2]);
        check_lists(&policy, &table, [&[3, 4], &[1, 2], &[]]);
        // Main has no more than its share, so it gives only what small cannot; its victims leave no ghosts.
        check_evicts(&mut policy, &mut table, &[3, 4, 1]);
        check_lists(&policy, &table, [&[], &[2], &[3, 4]]);
    }

    #[test]
    fn main_gives_above_its_share_and_each_reuse_is_a_turn() {
        let mut table = Table::new(4);
        let mut policy = S3Fifo::new(4, S3FifoOptions { small_pct: 50, threshold: 1, leaf_only: false });
        for n in 1..=4 {
            table.store(&mut policy, &[n]);
            table.reuse(&mut policy, &[n]);
        }
        check_lists(&policy, &table, [&[1, 2, 3, 4], &[], &[]]);
        check_evicts(&mut policy, &mut table, &[1]);
        check_lists(&policy, &table, [&[4], &[2, 3], &[]]);
        table.reuse(&mut policy, &[2]);
        table.store(&mut policy, &[5]);
        check_evicts(&mut policy, &mut table, &[3]);
        check_lists(&policy, &table, [&[5], &[4, 2], &[]]);
    }

    #[test]
    fn the_threshold_counts_reuses() {
        let mut table = Table::new(4);
        let mut policy = S3Fifo::new(4, S3FifoOptions { threshold: 2, ..S3FifoOptions::default() });
        table.store(&mut policy, &[1]);
        table.store(&mut policy, &[2]);
        table.reuse(&mut policy, &[1]);
        table.reuse(&mut policy, &[2]);
        table.reuse(&mut policy, &[2]);
        check_evicts(&mut policy, &mut table, &[1]);
        check_evicts(&mut policy, &mut table, &[2]);
        check_lists(&policy, &table, [&[], &[], &[1]]);
    }

    #[test]
    fn a_chunk_with_resident_children_stays() {
        let mut table = Table::new(10);
        let mut policy = S3Fifo::new(10, S3FifoOptions::default());
        table.store(&mut policy, &[1, 2]);
        table.serve(&mut policy, &[1, 3]);
        check_lists(&policy, &table, [&[2, 1, 3], &[], &[]]);
        // 2 goes; 1, which was reused, passes to main; so does its child 3, and then 1 may follow.
        check_evicts(&mut policy, &mut table, &[2]);
        check_evicts(&mut policy, &mut table, &[3]);
        check_lists(&policy, &table, [&[], &[1], &[2, 3]]);
        check_evicts(&mut policy, &mut table, &[1]);
    }

    #[test]
    fn where_no_leaf_is_left_a_parent_goes() {
        let mut table = Table::new(10);
        let mut policy = S3Fifo::new(10, S3FifoOptions::default());
        table.store(&mut policy, &[1, 2, 3]);
        table.pin(3);
        check_evicts(&mut policy, &mut table, &[2]);
        // 3 is nobody's child any more, and 1 nobody's parent, whoever comes into the slot of 2.
        table.store(&mut policy, &[4]);
        check_evicts(&mut policy, &mut table, &[4, 1]);
        table.unpin(&mut policy, 3);
        check_evicts(&mut policy, &mut table, &[3]);
    }

    #[test]
    fn too_few_victims_change_nothing() {
        let mut table = Table::new(10);
        let mut policy = plain(10);
        for n in 1..=4 {
            table.store(&mut policy, &[n]);
        }
        table.reuse(&mut policy, &[1]);
        table.pin(3);
        assert!(!policy.evict(4, &table, &mut Vec::new()));
        check_lists(&policy, &table, [&[1, 2, 3, 4], &[], &[]]);
        assert_eq!(policy.chunk(table.slot(1).unwrap()).reuses, 1);
    }

    /// B59.
    #[test]
    fn main_is_not_gone_through_again_for_each_chunk_of_small_where_it_has_only_parents() {
        let mut table = Table::new(1_000);
        let mut policy = S3Fifo::new(1_000, S3FifoOptions::default());
        // Conversations of 40 chunks, 5 a turn: all but the last turn of each were reused.
        for turn in 1..=8 {
            for first in (0..1_000).step_by(40) {
                table.serve(&mut policy, &(first..first + 5 * turn).collect::<Vec<_>>());
            }
        }
        let before = policy.visits();
        let mut victims = Vec::new();
        assert!(policy.evict(1, &table, &mut victims));
        let looks = policy.visits() - before;
        assert!(looks <= 8 * 1_000, "{looks} looks");
    }

    #[test]
    fn a_group_is_a_chain_of_its_own() {
        let mut policy = S3Fifo::new(4, S3FifoOptions::default());
        let table = Table::new(4);
        let access = |slot: u32, group| KeyAccess {
            key: OffloadKey::new(kvo_core::BlockHash::from_u64(slot.into()), kvo_core::GroupIdx(group)),
            slot: Some(SlotId(slot)),
            end_token: None,
            kind: AccessKind::Reused,
        };
        let keys = [access(0, 0), access(1, 1), access(2, 0), access(3, 1)];
        policy.on_request_finished(&mut RequestRecency::default(), &keys, &table);
        let parents = policy.chunks.iter().map(|chunk| chunk.parent.map(|(slot, _)| slot.0));
        assert_eq!(parents.collect::<Vec<_>>(), [None, None, Some(0), Some(1)]);
    }
}
