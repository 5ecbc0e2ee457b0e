//! Orders against plain vectors, and what they cost.

use std::cmp::Reverse;

use kvo_core::{BlockHash, GroupIdx, OffloadKey};

use super::*;

/// Steele, Lea and Flood's split-mix generator (OOPSLA 2014).
struct Rng(u64);

impl Rng {
    fn below(&mut self, bound: u32) -> u32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        u32::try_from((mixed ^ (mixed >> 31)) % u64::from(bound)).unwrap()
    }

    fn slot(&mut self, capacity: usize) -> SlotId {
        SlotId(self.below(u32::try_from(capacity).unwrap()))
    }
}

/// A tier whose slots are held and spared as a test says. Of each two slots one key has the same hash in two groups.
struct Tier {
    held: Vec<bool>,
    spared: Vec<bool>,
}

impl Residents for Tier {
    fn key(&self, slot: SlotId) -> OffloadKey {
        // No order of slots.
        let n = u64::from(slot.0 / 2).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        OffloadKey::new(BlockHash::from_u64(n), GroupIdx(slot.0 % 2))
    }

    fn may_evict(&self, slot: SlotId) -> Eviction {
        match slot.0 as usize {
            slot if self.held[slot] => Eviction::Held,
            slot if self.spared[slot] => Eviction::Spared,
            _ => Eviction::Allowed,
        }
    }
}

impl Tier {
    fn new(capacity: usize) -> Self {
        Self { held: vec![false; capacity], spared: vec![false; capacity] }
    }
}

const QUEUES: usize = 2;

/// What stands in a queue of the model: a slot, or a run and what is in it.
#[derive(Clone, Debug)]
enum Item {
    Slot(SlotId),
    Run { run: u32, slots: Vec<(Reverse<u32>, OffloadKey, SlotId)> },
}

/// An [`Orders`] and a model of it.
struct Pair {
    orders: Orders<QUEUES>,
    tier: Tier,
    queues: [Vec<Item>; QUEUES],
    runs: Vec<u32>,
    /// Slots that a scan has to look at.
    waiting: Vec<bool>,
    num_ops: usize,
    num_promoted: usize,
}

impl Pair {
    fn new(capacity: usize) -> Self {
        Self {
            orders: Orders::new(u32::try_from(capacity).unwrap()).unwrap(),
            tier: Tier::new(capacity),
            queues: [Vec::new(), Vec::new()],
            runs: Vec::new(),
            waiting: vec![false; capacity],
            num_ops: 0,
            num_promoted: 0,
        }
    }

    fn list(&self, queue: usize) -> Vec<SlotId> {
        let of = |item: &Item| match item {
            Item::Slot(slot) => vec![*slot],
            Item::Run { slots, .. } => slots.iter().map(|(_, _, slot)| *slot).collect(),
        };
        self.queues[queue].iter().flat_map(of).collect()
    }

    fn queue_of(&self, slot: SlotId) -> Option<usize> {
        (0..QUEUES).find(|queue| self.list(*queue).contains(&slot))
    }

    fn take(&mut self, slot: SlotId) {
        for queue in &mut self.queues {
            queue.retain(|item| !matches!(item, Item::Slot(of) if *of == slot));
            for item in queue {
                if let Item::Run { slots, .. } = item {
                    slots.retain(|(_, _, of)| *of != slot);
                }
            }
        }
        self.waiting[slot.0 as usize] = false;
    }

    fn push(&mut self, queue: usize, slot: SlotId) {
        self.orders.push(queue, slot);
        self.take(slot);
        self.queues[queue].push(Item::Slot(slot));
        self.waiting[slot.0 as usize] = true;
    }

    fn remove(&mut self, slot: SlotId) {
        self.orders.remove(slot);
        self.take(slot);
    }

    fn begin_run(&mut self, queue: usize) {
        let run = self.orders.begin_run(queue);
        assert!(!self.runs.contains(&run), "run {run} is in use");
        self.runs.push(run);
        self.queues[queue].push(Item::Run { run, slots: Vec::new() });
    }

    fn push_to_run(&mut self, run: u32, slot: SlotId, end_token: u32) {
        self.orders.push_to_run(run, slot, end_token, &self.tier);
        self.take(slot);
        for item in self.queues.iter_mut().flatten() {
            match item {
                Item::Run { run: of, slots } if *of == run => {
                    slots.push((Reverse(end_token), self.tier.key(slot), slot));
                    slots.sort();
                }
                _ => {}
            }
        }
        self.waiting[slot.0 as usize] = true;
    }

    /// The slots of a run with their positions, oldest first.
    fn in_run(&self, run: u32) -> Vec<(u32, SlotId)> {
        let of = |item: &Item| match item {
            Item::Run { run: of, slots } if *of == run => {
                Some(slots.iter().map(|(Reverse(end_token), _, slot)| (*end_token, *slot)).collect())
            }
            _ => None,
        };
        self.queues.iter().flatten().find_map(of).unwrap()
    }

    /// Ends a run at the recent end, if [`Orders`] can do that as it stands.
    fn promote_run(&mut self, run: u32, rng: &mut Rng) {
        let queue = self.orders.runs[run as usize].queue as usize;
        let slots = self.in_run(run);
        let is_promoted = match rng.below(4) {
            0 => {
                assert!(!self.orders.promote_run_of(run, slots.len() + 1), "too few");
                false
            }
            1 => {
                let done = self.orders.promote_run(run, slots.iter().rev().map(|(_, slot)| *slot));
                assert!(!done || slots.len() == 1, "in the wrong order");
                done
            }
            2 => self.orders.promote_run_of(run, slots.len()),
            _ => self.orders.promote_run(run, slots.iter().map(|(_, slot)| *slot)),
        };
        if is_promoted {
            assert!(slots.windows(2).all(|pair| pair[0].0 >= pair[1].0), "a run in order");
            self.runs.retain(|of| *of != run);
            self.queues[queue].retain(|item| !matches!(item, Item::Run { run: of, .. } if *of == run));
            self.queues[queue].extend(slots.iter().map(|(_, slot)| Item::Slot(*slot)));
            self.num_promoted += 1;
        }
    }

    fn end_run(&mut self, run: u32) {
        self.orders.end_run(run, &self.tier);
        self.runs.retain(|of| *of != run);
        for queue in &mut self.queues {
            let items = std::mem::take(queue);
            for item in items {
                match item {
                    Item::Run { run: of, slots } if of == run => {
                        queue.extend(slots.iter().map(|(_, _, slot)| Item::Slot(*slot)));
                    }
                    item => queue.push(item),
                }
            }
        }
    }

    fn wake(&mut self, slot: SlotId) {
        self.tier.held[slot.0 as usize] = false;
        self.orders.wake(slot);
        self.waiting[slot.0 as usize] = self.queue_of(slot).is_some();
    }

    fn clear(&mut self) {
        self.orders.clear();
        self.queues = [Vec::new(), Vec::new()];
        self.runs.clear();
        self.waiting.fill(false);
        self.tier.held.fill(false);
    }

    /// Looks for `counts` victims in each queue, the two scans in turns, and removes them if all were found. Each look
    /// must be one that was needed.
    fn scan(&mut self, counts: [usize; QUEUES], asks_ahead: bool) {
        self.orders.sort_runs(&self.tier);
        let visits = self.orders.visits();
        let ahead = |queue: usize| if asks_ahead { counts[queue] } else { 1 };
        let mut scans = [0, 1].map(|queue| self.orders.scan_for(queue, ahead(queue)));
        let (mut found, mut dry) = ([Vec::new(), Vec::new()], [false; QUEUES]);
        for round in 0..counts[0].max(counts[1]) {
            for queue in 0..QUEUES {
                if round < counts[queue] && !dry[queue] {
                    match self.orders.next(&mut scans[queue], &self.tier) {
                        Some(slot) => found[queue].push(slot),
                        None => dry[queue] = true,
                    }
                }
            }
        }
        let mut looks = 0;
        for queue in 0..QUEUES {
            let mut expected = Vec::new();
            for slot in self.list(queue) {
                if expected.len() == counts[queue] {
                    break;
                }
                looks += u64::from(std::mem::take(&mut self.waiting[slot.0 as usize]));
                match self.tier.may_evict(slot) {
                    Eviction::Allowed => expected.push(slot),
                    Eviction::Spared => {}
                    Eviction::Held => continue,
                }
                self.waiting[slot.0 as usize] = true;
            }
            assert_eq!(found[queue], expected);
        }
        assert_eq!(self.orders.visits() - visits, looks, "looks");
        if dry == [false; QUEUES] {
            found.iter().flatten().for_each(|slot| self.remove(*slot));
        }
    }

    /// Evicts from one queue.
    fn evict(&mut self, queue: usize, count: usize) {
        let evictable = |slot: &SlotId| self.tier.may_evict(*slot) == Eviction::Allowed;
        let mut expected: Vec<_> = self.list(queue).into_iter().filter(evictable).take(count).collect();
        if expected.len() < count {
            expected.clear();
        }
        let mut victims = Vec::new();
        let done = self.orders.evict(queue, count, &self.tier, &mut victims);
        assert_eq!((done, &victims), (expected.len() == count, &expected));
        for slot in &expected {
            self.take(*slot);
        }
        // What was looked at and is held is not looked at again; which that was is left to `scan`.
        for slot in self.list(queue) {
            let place = self.orders.places[slot.0 as usize].at;
            let is_waiting = self.orders.metas[(place >> 4) as usize].waiting >> (place & 15) & 1 == 1;
            assert!(is_waiting || self.tier.may_evict(slot) == Eviction::Held);
            self.waiting[slot.0 as usize] = is_waiting;
        }
    }

    fn check(&mut self) {
        self.num_ops += 1;
        self.orders.assert_consistent();
        self.orders.assert_linked();
        for queue in 0..QUEUES {
            let expected = self.list(queue);
            assert_eq!(self.orders.len(queue), expected.len());
            if self.orders.runs.iter().all(|run| run.unsorted == 0) {
                assert_eq!(self.orders.list(queue), expected);
                assert_eq!(self.orders.oldest(queue), expected.first().copied());
            }
        }
    }

    fn step(&mut self, rng: &mut Rng) {
        let capacity = self.waiting.len();
        let (queue, slot) = (rng.below(2) as usize, rng.slot(capacity));
        let run = (!self.runs.is_empty()).then(|| self.runs[rng.slot(self.runs.len()).0 as usize]);
        match rng.below(100) {
            0..22 => self.push(queue, slot),
            22..30 => self.remove(slot),
            30..40 => self.tier.held[slot.0 as usize] = self.queue_of(slot).is_some(),
            40..55 if self.tier.held[slot.0 as usize] => self.wake(slot),
            // One too many is harmless.
            40..57 => {
                self.orders.wake(slot);
                self.waiting[slot.0 as usize] = self.queue_of(slot).is_some();
            }
            57..60 if self.runs.len() < 5 => self.begin_run(queue),
            60..85 => {
                let Some(run) = run else { return };
                let rising = 16 * u32::try_from(self.num_ops).unwrap();
                let end_token = match rng.below(32) {
                    0 => 0,
                    1 => u32::MAX,
                    2..6 => 16 * rng.below(4),
                    6..12 => 16 * rng.below(100),
                    _ => rising,
                };
                if self.orders.queue_of(slot) == Some(self.orders.runs[run as usize].queue as usize) {
                    self.check_raised(slot, run, end_token);
                }
                self.push_to_run(run, slot, end_token);
            }
            85..87 => {
                let Some(run) = run else { return };
                if rng.below(2) == 0 { self.end_run(run) } else { self.promote_run(run, rng) }
            }
            87..99 => {
                for slot in 0..capacity {
                    self.tier.spared[slot] = rng.below(8) == 0;
                }
                let counts = [rng.below(8) as usize, rng.below(4) as usize];
                match rng.below(3) {
                    0 => self.evict(queue, counts[queue]),
                    ahead => self.scan(counts, ahead == 1),
                }
            }
            _ if rng.below(30) == 0 => self.clear(),
            _ => self.scan([capacity, capacity], rng.below(2) == 0),
        }
    }

    /// Of a slot in the run's queue.
    fn check_raised(&self, slot: SlotId, run: u32, end_token: u32) {
        let queue = &self.queues[self.orders.queue_of(slot).unwrap()];
        let is_run = |item: &Item| matches!(item, Item::Run { run: of, .. } if *of == run);
        let holds = |item: &Item| match item {
            Item::Slot(of) => *of == slot,
            Item::Run { slots, .. } => slots.iter().any(|(_, _, of)| *of == slot),
        };
        let at = queue.iter().position(holds).unwrap();
        let of_run = queue.iter().position(is_run).unwrap();
        let expected = match &queue[at] {
            Item::Run { slots, .. } if at == of_run => {
                slots.iter().any(|(Reverse(end), _, of)| *of == slot && end_token < *end)
            }
            _ => at < of_run,
        };
        assert_eq!(self.orders.is_raised_by_run(slot, run, end_token), expected);
    }
}

impl<const Q: usize> Orders<Q> {
    /// A queue, its old end first, held slots included.
    pub(crate) fn list(&self, queue: usize) -> Vec<SlotId> {
        let mut slots = Vec::new();
        let mut segment = self.queues[queue].oldest;
        while segment != NONE {
            let Meta { live, newer, .. } = self.metas[segment as usize];
            let in_segment = &self.segments[segment as usize].slots;
            slots.extend((0..WIDTH).filter(|at| live >> at & 1 == 1).map(|at| in_segment[at as usize]));
            segment = newer;
        }
        slots
    }

    /// Checks places, waiting slots and the lists that scans walk.
    pub(crate) fn assert_consistent(&self) {
        let mut len = [0; Q];
        for (slot, place) in self.places.iter().enumerate() {
            let place = place.at;
            if place != NONE {
                let meta = &self.metas[(place >> 4) as usize];
                assert!(meta.live >> (place & 15) & 1 == 1, "slot {slot} is live in its segment");
                assert_eq!(
                    self.segments[(place >> 4) as usize].slots[(place & 15) as usize].0 as usize,
                    slot
                );
                len[meta.queue as usize] += 1;
            }
        }
        for (queue, of) in self.queues.iter().zip(len) {
            assert_eq!(queue.len, of);
            let (mut at, mut prev) = (queue.head, NONE);
            while at != NONE {
                let (segment, meta) = (&self.segments[at as usize], &self.metas[at as usize]);
                assert_eq!((segment.prev, meta.link), (prev, Link::Listed));
                assert!(prev == NONE || self.metas[prev as usize].label() < meta.label(), "labels rise");
                (prev, at) = (at, segment.next);
            }
            assert_eq!(queue.tail, prev);
        }
        for meta in &self.metas {
            assert!(meta.link != Link::Off || meta.waiting == 0, "what waits is listed or returned");
            assert!(
                meta.live != 0 || meta.link == Link::Free || meta.run != NONE,
                "only a run keeps an empty segment"
            );
            assert_eq!(meta.waiting & !meta.live, 0);
        }
    }

    fn is_free_run(&self, run: usize) -> bool {
        self.free_runs.iter().any(|free| *free as usize == run)
    }

    fn num_segments(&self) -> usize {
        self.metas.len() - self.free_segments.len()
    }

    /// Checks the list of all segments, the runs and the heaps.
    fn assert_linked(&self) {
        let mut num_segments = 0;
        let mut in_runs = vec![0; self.runs.len()];
        for (number, queue) in self.queues.iter().enumerate() {
            let (mut at, mut prev) = (queue.oldest, NONE);
            let (mut listed, mut next_listed) = (0, queue.head);
            while at != NONE {
                let meta = &self.metas[at as usize];
                assert_eq!((meta.older, meta.queue as usize), (prev, number));
                assert!(prev == NONE || self.metas[prev as usize].label() < meta.label(), "labels rise");
                if meta.run != NONE {
                    let is_first = prev == NONE || self.metas[prev as usize].run != meta.run;
                    assert_eq!(self.runs[meta.run as usize].first == at, is_first, "the first of a run");
                    assert_eq!(self.runs[meta.run as usize].sequence, meta.sequence);
                }
                match meta.link {
                    Link::Listed => {
                        assert_eq!(next_listed, at, "listed segments stand in the order of all");
                        (listed, next_listed) = (listed + 1, self.segments[at as usize].next);
                    }
                    Link::Returned => {
                        let entry = Reverse((meta.label(), at));
                        let entries = queue.returned.iter().filter(|of| **of == entry).count();
                        assert_eq!(entries, 1, "one entry of the heap");
                    }
                    Link::Off => {}
                    Link::Free => panic!("segment {at} is free and in use"),
                }
                if meta.run != NONE {
                    in_runs[meta.run as usize] += meta.live.count_ones();
                }
                num_segments += 1;
                (prev, at) = (at, meta.newer);
            }
            assert_eq!((queue.newest, next_listed), (prev, NONE), "{listed} are listed");
            assert!(queue.returned.len() <= 2 * self.metas.len() + 65);
        }
        assert_eq!(num_segments, self.num_segments(), "all segments are in a queue or free");
        for (run, len) in in_runs.into_iter().enumerate().filter(|(run, _)| !self.is_free_run(*run)) {
            assert_eq!(self.runs[run].len, len, "slots of run {run}");
        }
    }
}

#[test]
fn orders_equal_vectors() {
    let (mut num_ops, mut num_promoted) = (0, 0);
    let capacities = [1, 2, 14, 15, 30, 60, 150].into_iter().cycle();
    for (seed, capacity) in (0..60).zip(capacities) {
        let mut rng = Rng(seed);
        let mut pair = Pair::new(capacity);
        for _ in 0..8_000 {
            pair.step(&mut rng);
            pair.check();
        }
        // All goes, in order.
        (0..capacity).for_each(|slot| pair.wake(SlotId(u32::try_from(slot).unwrap())));
        pair.tier.spared.fill(false);
        let all = [pair.orders.len(0), pair.orders.len(1)];
        pair.scan(all, false);
        assert_eq!([pair.orders.len(0), pair.orders.len(1)], [0, 0]);
        pair.check();
        num_ops += pair.num_ops;
        num_promoted += pair.num_promoted;
    }
    println!("{num_ops} operations, {num_promoted} runs were moved as they stood");
    assert!(num_ops >= 450_000 && num_promoted >= 1_000);
}

/// Fills a run in the order given, several groups at each position, and checks how it ends up.
#[track_caller]
fn check_run(end_tokens: &[u32], chunk: usize) {
    let mut pair = Pair::new(end_tokens.len() + 2);
    pair.push(0, SlotId(u32::try_from(end_tokens.len()).unwrap()));
    pair.begin_run(0);
    pair.push(0, SlotId(u32::try_from(end_tokens.len() + 1).unwrap()));
    for (slot, end_token) in (0..).map(SlotId).zip(end_tokens) {
        pair.push_to_run(pair.runs[0], slot, *end_token);
        if (slot.0 as usize).is_multiple_of(chunk) {
            pair.scan([0, 0], false);
            pair.check();
        }
    }
    pair.end_run(pair.runs[0]);
    pair.check();
    pair.scan([end_tokens.len() + 2, 0], false);
}

#[test]
fn a_run_that_is_filled_in_any_order_ends_up_in_order() {
    let rising: Vec<u32> = (0..200).collect();
    let falling: Vec<u32> = (0..200).rev().collect();
    let group_by_group: Vec<u32> = (0..200).map(|n| n % 67).collect();
    let equal = vec![16; 100];
    let mut shuffled = rising.clone();
    let mut rng = Rng(7);
    (1..200).rev().for_each(|at| shuffled.swap(at as usize, rng.below(at + 1) as usize));
    for chunk in [1, 13, 40, 1_000] {
        for end_tokens in [&rising, &falling, &group_by_group, &equal, &shuffled] {
            check_run(end_tokens, chunk);
        }
    }
}

/// B59: whatever is held, each scan looks at what it takes, and at each hold once.
#[test]
fn a_hold_is_looked_at_once_until_it_is_woken() {
    for (capacity, percent) in [100_000, 1_000_000].into_iter().flat_map(|n| [0, 50, 99].map(|p| (n, p))) {
        let mut rng = Rng(u64::from(percent));
        let mut tier = Tier::new(capacity as usize);
        let mut orders = Orders::<1>::new(capacity).unwrap();
        for slot in (0..capacity).map(SlotId) {
            orders.push(0, slot);
            tier.held[slot.0 as usize] = rng.below(100) < percent;
        }
        let mut holds = tier.held.iter().filter(|held| **held).count() as u64;
        let (mut asked, mut pushes) = (0, 0);
        for round in 0..20_000 {
            // An eviction of a few, which come back, and one that is refused for lack of one.
            let mut scan = orders.scan(0);
            let count = 1 + rng.below(16);
            let found: Vec<_> = (0..count).map_while(|_| orders.next(&mut scan, &tier)).collect();
            asked += u64::from(count);
            for slot in found {
                orders.push(0, slot);
                pushes += 1;
            }
            if round % 1_000 == 0 {
                let mut scan = orders.scan(0);
                while orders.next(&mut scan, &tier).is_some() {
                    asked += 1;
                }
            }
            // A commit of some chunks, held or not.
            for _ in 0..4 {
                orders.push(0, rng.slot(capacity as usize));
                pushes += 1;
            }
            // Holds end, others begin.
            for _ in 0..4 {
                let (ends, begins) = (rng.slot(capacity as usize), rng.slot(capacity as usize));
                if tier.held[ends.0 as usize] && !tier.held[begins.0 as usize] {
                    tier.held[ends.0 as usize] = false;
                    orders.wake(ends);
                    tier.held[begins.0 as usize] = true;
                    holds += 1;
                }
            }
        }
        orders.assert_consistent();
        let (visits, visits_max) = (orders.visits(), asked + holds + pushes);
        assert!(visits <= visits_max, "{visits} looks with {percent} % held, {visits_max} at most");
        // Once nothing changes, there is no look at what is held.
        let mut scan = orders.scan(0);
        while orders.next(&mut scan, &tier).is_some() {}
        let before = orders.visits();
        for _ in 0..100 {
            let mut scan = orders.scan(0);
            let _ = orders.next(&mut scan, &tier);
        }
        assert_eq!(orders.visits() - before, 100);
    }
}

/// Re-ranks slots at random, `held` % of them held and seen to be, and gives the largest number of segments.
fn most_segments(capacity: u32, held: u32, num_pushes: u32, choose: impl Fn(&mut Rng) -> SlotId) -> usize {
    let mut rng = Rng(3);
    let mut tier = Tier::new(capacity as usize);
    let mut orders = Orders::<1>::new(capacity).unwrap();
    for slot in (0..capacity).map(SlotId) {
        orders.push(0, slot);
        tier.held[slot.0 as usize] = rng.below(100) < held;
    }
    let mut most = 0;
    for push in 0..num_pushes {
        if push.is_multiple_of(1_000) {
            let mut scan = orders.scan(0);
            while orders.next(&mut scan, &tier).is_some() {}
        }
        orders.push(0, choose(&mut rng));
        most = most.max(orders.num_segments());
    }
    orders.assert_consistent();
    orders.assert_linked();
    most
}

#[test]
fn merging_keeps_segments_few_however_long_slots_are_ranked_anew() {
    for capacity in [100, 1_000, 20_000] {
        let dense = (capacity / WIDTH) as usize;
        for held in [0, 50, 99] {
            let uniform = most_segments(capacity, held, 400_000, |rng| rng.slot(capacity as usize));
            assert!(uniform <= 4 * dense + 16, "{uniform} segments for {capacity}, {held} % held");
            // One in ten is ranked anew all the time, the others hardly ever.
            let skewed = most_segments(capacity, held, 400_000, |rng| {
                let bound = if rng.below(100) == 0 { capacity } else { capacity / 10 };
                SlotId(rng.below(bound))
            });
            assert!(skewed <= 4 * dense + 16, "{skewed} segments for {capacity}, {held} % held, skewed");
        }
    }
}

#[test]
fn requests_that_come_and_go_leave_no_segments_behind() {
    let mut rng = Rng(11);
    let mut orders = Orders::<1>::new(2_000).unwrap();
    let tier = Tier::new(2_000);
    let (mut most, mut most_runs) = (0, 0);
    for round in 0..20_000 {
        let run = orders.begin_run(0);
        for n in 0..=rng.below(40) {
            orders.push_to_run(run, rng.slot(2_000), 16 * (n % 20), &tier);
        }
        if round % 3 == 0 {
            orders.sort_runs(&tier);
        }
        orders.end_run(run, &tier);
        for _ in 0..rng.below(20) {
            orders.push(0, rng.slot(2_000));
        }
        most = most.max(orders.num_segments());
        most_runs = most_runs.max(orders.runs.len());
    }
    orders.assert_consistent();
    orders.assert_linked();
    assert_eq!(most_runs, 1, "the number of a run that has ended is used again");
    assert!(most <= 4 * 2_000 / WIDTH as usize + 16, "{most} segments");
}

/// A prompt of two groups that is offered piece by piece, each group in order, and an eviction after each piece.
#[test]
fn putting_a_run_in_order_costs_what_came_out_of_order_not_the_whole_run() {
    const PIECE: u32 = 64;

    struct Counting(std::cell::Cell<u64>);
    impl Residents for Counting {
        fn key(&self, slot: SlotId) -> OffloadKey {
            self.0.set(self.0.get() + 1);
            OffloadKey::new(BlockHash::from_u64(u64::from(slot.0)), GroupIdx(0))
        }
        fn may_evict(&self, _: SlotId) -> Eviction {
            Eviction::Allowed
        }
    }
    let tier = Counting(std::cell::Cell::new(0));
    let cost = |num_pieces: u32| {
        let mut orders = Orders::<1>::new(2 * PIECE * num_pieces).unwrap();
        let run = orders.begin_run(0);
        let before = tier.0.get();
        for piece in 0..num_pieces {
            for group in 0..2 {
                for n in 0..PIECE {
                    let slot = SlotId((2 * piece + group) * PIECE + n);
                    orders.push_to_run(run, slot, 16 * (piece * PIECE + n), &tier);
                }
            }
            orders.sort_runs(&tier);
        }
        orders.assert_consistent();
        tier.0.get() - before
    };
    let (short, long) = (cost(10), cost(100));
    assert!(long <= 12 * short, "{short} keys are compared for 10 pieces, {long} for 100");
}
