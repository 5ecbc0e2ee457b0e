//! The segmented policies, S3-FIFO and FIFO against their definitions on plain vectors: requests one after the other
//! over prefix chains, with chunks pinned in between.

mod support;

use std::collections::{HashMap, HashSet};

use kvo_core::OffloadKey;
use kvo_policies::{AccessKind, CachePolicy, KeyAccess, PolicyKind, RequestRecency, S3FifoOptions};
use support::{Driven, key, seeded::Rng, ylru::Ylru};

/// What a definition needs of the tier: which chunks must stay.
struct Stay<'a> {
    held: &'a HashSet<u64>,
    spared: &'a HashSet<u64>,
}

impl Stay<'_> {
    fn may_go(&self, chunk: u64) -> bool {
        !self.held.contains(&chunk) && !self.spared.contains(&chunk)
    }
}

/// A definition, in vectors whose old end is first.
trait Definition {
    fn miss(&mut self, missing: &[u64]);
    fn evict(&mut self, count: usize, stay: &Stay<'_>) -> Vec<u64>;
    fn insert(&mut self, missing: &[u64]);
    fn finish(&mut self, keys: &[u64], inserted: &HashSet<u64>);
}

/// Takes the oldest that may go out of the first of the lists that has one.
fn take_oldest(lists: &mut [Vec<u64>], stay: &Stay<'_>) -> (usize, u64) {
    for (at, list) in lists.iter_mut().enumerate() {
        if let Some(index) = list.iter().position(|chunk| stay.may_go(*chunk)) {
            return (at, list.remove(index));
        }
    }
    panic!("enough chunks may go");
}

fn push(lists: &mut [Vec<u64>], to: usize, chunk: u64) {
    for list in &mut *lists {
        list.retain(|other| *other != chunk);
    }
    lists[to].push(chunk);
}

/// Ghosts that were asked for, until they are stored; the last `capacity` of them.
#[derive(Default)]
struct Asked {
    ghosts: Vec<u64>,
    capacity: usize,
}

impl Asked {
    fn push(&mut self, ghost: u64) {
        self.ghosts.retain(|other| *other != ghost);
        self.ghosts.push(ghost);
        if self.ghosts.len() > self.capacity {
            self.ghosts.remove(0);
        }
    }

    fn take(&mut self, chunk: u64) -> bool {
        let before = self.ghosts.len();
        self.ghosts.retain(|other| *other != chunk);
        self.ghosts.len() < before
    }
}

#[derive(Default)]
struct Fifo([Vec<u64>; 1]);

impl Definition for Fifo {
    fn miss(&mut self, _missing: &[u64]) {}

    fn evict(&mut self, count: usize, stay: &Stay<'_>) -> Vec<u64> {
        (0..count).map(|_| take_oldest(&mut self.0, stay).1).collect()
    }

    fn insert(&mut self, missing: &[u64]) {
        self.0[0].extend(missing.iter().rev());
    }

    fn finish(&mut self, _keys: &[u64], _inserted: &HashSet<u64>) {}
}

/// Probation and protected; with ghosts if the share adapts.
struct Segmented {
    lists: [Vec<u64>; 2],
    capacity: usize,
    target: f64,
    adapts: bool,
    ghosts: [Vec<u64>; 2],
    asked: Asked,
    marked: HashSet<u64>,
    promoted: HashSet<u64>,
}

impl Segmented {
    fn new(capacity: u32, target: f64, adapts: bool) -> Self {
        Self {
            lists: Default::default(),
            capacity: capacity as usize,
            target,
            adapts,
            ghosts: Default::default(),
            asked: Asked { capacity: capacity as usize, ..Asked::default() },
            marked: HashSet::new(),
            promoted: HashSet::new(),
        }
    }
}

impl Definition for Segmented {
    fn miss(&mut self, missing: &[u64]) {
        for chunk in missing.iter().rev() {
            if self.asked.ghosts.contains(chunk) {
                self.asked.push(*chunk);
            }
            let Some(list) = self.ghosts.iter().position(|ghosts| ghosts.contains(chunk)) else { continue };
            let [b1, b2] = [self.ghosts[0].len() as f64, self.ghosts[1].len() as f64];
            self.target = if list == 0 {
                f64::max(0.0, self.target - f64::max(1.0, b2 / b1))
            } else {
                f64::min(self.capacity as f64, self.target + f64::max(1.0, b1 / b2))
            };
            self.ghosts[list].retain(|ghost| ghost != chunk);
            self.asked.push(*chunk);
        }
    }

    fn evict(&mut self, count: usize, stay: &Stay<'_>) -> Vec<u64> {
        let mut victims = Vec::new();
        for _ in 0..count {
            let (_, victim) = take_oldest(&mut self.lists, stay);
            victims.push(victim);
            let list = usize::from(self.promoted.remove(&victim));
            if self.adapts {
                self.ghosts[list].push(victim);
                if self.ghosts[list].len() > self.capacity {
                    self.ghosts[list].remove(0);
                }
            }
        }
        victims
    }

    fn insert(&mut self, missing: &[u64]) {
        for chunk in missing.iter().rev() {
            push(&mut self.lists, 0, *chunk);
            if self.asked.take(*chunk) {
                self.marked.insert(*chunk);
            }
        }
    }

    fn finish(&mut self, keys: &[u64], inserted: &HashSet<u64>) {
        let is_wanted = |chunk: &u64| {
            self.lists[1].contains(chunk) || !inserted.contains(chunk) || self.marked.contains(chunk)
        };
        let wanted = if self.adapts {
            keys.iter().take_while(|chunk| is_wanted(chunk)).copied().collect()
        } else {
            keys.iter().filter(|chunk| !inserted.contains(chunk)).copied().collect::<HashSet<_>>()
        };
        for chunk in keys.iter().rev() {
            self.marked.remove(chunk);
            if self.lists[1].contains(chunk) || wanted.contains(chunk) {
                push(&mut self.lists, 1, *chunk);
                self.promoted.insert(*chunk);
            } else {
                push(&mut self.lists, 0, *chunk);
            }
        }
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "from 0 to the capacity")]
        while self.lists[1].len() > self.target as usize {
            let oldest = self.lists[1].remove(0);
            self.lists[0].push(oldest);
        }
    }
}

impl Definition for Ylru {
    fn miss(&mut self, missing: &[u64]) {
        Ylru::miss(self, missing);
    }

    fn evict(&mut self, count: usize, stay: &Stay<'_>) -> Vec<u64> {
        Ylru::evict(self, count, |chunk| stay.may_go(chunk))
    }

    fn insert(&mut self, missing: &[u64]) {
        Ylru::insert(self, missing);
    }

    fn finish(&mut self, keys: &[u64], inserted: &HashSet<u64>) {
        Ylru::finish(self, keys, inserted);
    }
}

/// S3-FIFO. Held chunks are as if they were not there; spared ones have their turn.
struct S3Fifo {
    small: Vec<u64>,
    main: Vec<u64>,
    ghosts: Vec<u64>,
    asked: Asked,
    reuses: HashMap<u64, u8>,
    parents: HashMap<u64, u64>,
    main_share: usize,
    ghosts_max: usize,
    options: S3FifoOptions,
}

impl S3Fifo {
    fn new(capacity: u32, options: S3FifoOptions) -> Self {
        let capacity = capacity as usize;
        Self {
            small: Vec::new(),
            main: Vec::new(),
            ghosts: Vec::new(),
            asked: Asked { capacity, ..Asked::default() },
            reuses: HashMap::new(),
            parents: HashMap::new(),
            main_share: capacity - capacity * usize::from(options.small_pct) / 100,
            ghosts_max: capacity * 90 / 100,
            options,
        }
    }

    fn has_children(&self, chunk: u64) -> bool {
        self.options.leaf_only && self.parents.values().any(|parent| *parent == chunk)
    }
}

/// The oldest of a queue whose turn it can be.
fn oldest(queue: &[u64], stay: &Stay<'_>, aside: &HashSet<u64>) -> Option<u64> {
    queue.iter().copied().find(|chunk| !stay.held.contains(chunk) && !aside.contains(chunk))
}

impl Definition for S3Fifo {
    fn miss(&mut self, missing: &[u64]) {
        for chunk in missing.iter().rev() {
            if self.ghosts.contains(chunk) || self.asked.ghosts.contains(chunk) {
                self.ghosts.retain(|ghost| ghost != chunk);
                self.asked.push(*chunk);
            }
        }
    }

    fn evict(&mut self, count: usize, stay: &Stay<'_>) -> Vec<u64> {
        let mut victims = Vec::new();
        let mut aside = HashSet::new();
        let mut in_a_row = 0;
        while victims.len() < count {
            let main = oldest(&self.main, stay, &aside);
            let small = oldest(&self.small, stay, &aside);
            let main_len = self.main.iter().filter(|c| !stay.held.contains(c) && !aside.contains(c)).count();
            let is_mains_turn =
                (self.main.len() > self.main_share || small.is_none()) && in_a_row <= main_len;
            let (chunk, is_main) = match (main, small) {
                (Some(chunk), _) if is_mains_turn => (chunk, true),
                (_, Some(chunk)) => (chunk, false),
                _ => panic!("leaves that may go are left"),
            };
            let has_children = self.has_children(chunk);
            let reuses = self.reuses.entry(chunk).or_default();
            if !is_main {
                in_a_row = 0;
            }
            if stay.spared.contains(&chunk) {
                aside.insert(chunk);
                continue;
            }
            self.main.retain(|other| *other != chunk);
            self.small.retain(|other| *other != chunk);
            match is_main {
                true if *reuses > 0 => {
                    *reuses -= 1;
                    in_a_row = 0;
                    self.main.push(chunk);
                    continue;
                }
                true if has_children => {
                    in_a_row += 1;
                    self.main.push(chunk);
                    continue;
                }
                true => in_a_row = 0,
                false if *reuses >= self.options.threshold || has_children => {
                    *reuses = 0;
                    self.main.push(chunk);
                    continue;
                }
                false => {
                    self.ghosts.push(chunk);
                    if self.ghosts.len() > self.ghosts_max {
                        self.ghosts.remove(0);
                    }
                }
            }
            self.reuses.remove(&chunk);
            self.parents.remove(&chunk);
            victims.push(chunk);
        }
        victims
    }

    fn insert(&mut self, missing: &[u64]) {
        for chunk in missing.iter().rev() {
            if self.asked.take(*chunk) { self.main.push(*chunk) } else { self.small.push(*chunk) }
        }
    }

    fn finish(&mut self, keys: &[u64], inserted: &HashSet<u64>) {
        for chunk in keys.iter().filter(|chunk| !inserted.contains(chunk)) {
            let reuses = self.reuses.entry(*chunk).or_default();
            *reuses = (*reuses + 1).min(3);
        }
        self.parents.extend(keys.windows(2).map(|pair| (pair[1], pair[0])));
    }
}

/// A chain of chunks from a tree in which every chunk has three children: the parent of `n` is `(n - 1) / 3`.
fn chain(rng: &mut Rng, capacity: usize) -> Vec<u64> {
    let mut chunk = rng.below(120);
    let mut keys = vec![chunk];
    while chunk > 0 {
        chunk = (chunk - 1) / 3;
        keys.push(chunk);
    }
    keys.reverse();
    keys.truncate(capacity);
    keys
}

fn numbers(keys: &[OffloadKey]) -> Vec<u64> {
    let known: HashMap<OffloadKey, u64> = (0..120).map(|n| (key(n), n)).collect();
    keys.iter().map(|key| known[key]).collect()
}

/// Serves requests with both, and compares every victim.
#[track_caller]
fn check(kind: PolicyKind, holds: bool, definition: impl Fn(u32) -> Box<dyn Definition>) {
    for seed in 0..60 {
        let mut rng = Rng::new(seed);
        let capacity = u32::try_from(1 + rng.below(40)).unwrap();
        let mut naive = definition(capacity);
        let mut policy = Driven::new(capacity, kind.build(capacity));
        let mut resident: HashSet<u64> = HashSet::new();
        let mut held: HashSet<u64> = HashSet::new();
        for request in 0..300 {
            let keys = chain(&mut rng, capacity as usize);
            let missing: Vec<u64> = keys.iter().copied().filter(|n| !resident.contains(n)).collect();
            let inserted: HashSet<u64> = missing.iter().copied().collect();
            let spared: HashSet<u64> = keys.iter().copied().collect();
            let count = (missing.len() + resident.len()).saturating_sub(capacity as usize);
            let can_go = resident.iter().filter(|n| !held.contains(n) && !spared.contains(n)).count();

            let mut req = RequestRecency::default();
            let mut accesses: Vec<KeyAccess> = keys
                .iter()
                .zip(1..)
                .map(|(n, end_token)| KeyAccess {
                    key: key(*n),
                    slot: policy.table.find(key(*n)),
                    end_token: Some(end_token),
                    kind: if inserted.contains(n) { AccessKind::Inserted } else { AccessKind::Reused },
                })
                .collect();
            policy.access(&mut req, &accesses);
            if !missing.is_empty() {
                naive.miss(&missing);
                policy.store_miss(&missing.iter().copied().map(key).collect::<Vec<_>>());
            }
            let offered: Vec<OffloadKey> = keys.iter().copied().map(key).collect();
            let mut victims = Vec::new();
            let is_done = policy.evict(count, &offered, &mut victims);
            assert_eq!(is_done, count <= can_go, "{kind}, seed {seed}, request {request}");
            if is_done {
                let expected = naive.evict(count, &Stay { held: &held, spared: &spared });
                assert_eq!(numbers(&victims), expected, "{kind}, seed {seed}, request {request}");
                assert!(expected.iter().all(|victim| resident.remove(victim)));
                naive.insert(&missing);
                for access in accesses.iter_mut().filter(|access| access.slot.is_none()) {
                    policy.insert(&mut req, access.key, access.end_token);
                    policy.ready(access.key);
                    access.slot = policy.table.find(access.key);
                }
                resident.extend(&missing);
                assert!(resident.len() <= capacity as usize);
                naive.finish(&keys, &inserted);
                policy.finish(&mut req, &accesses);
            } else {
                // A refused request that ends has met what was there.
                let reused: Vec<u64> = keys.iter().copied().filter(|n| !inserted.contains(n)).collect();
                accesses.retain(|access| access.kind == AccessKind::Reused);
                naive.finish(&reused, &HashSet::new());
                policy.finish(&mut req, &accesses);
            }
            hold_some(&mut rng, &mut policy, &keys, &resident, &mut held, holds);
        }
    }
}

/// Pins a whole prefix of `keys`, as a load does, or unpins one of those held.
fn hold_some<P: CachePolicy>(
    rng: &mut Rng,
    policy: &mut Driven<P>,
    keys: &[u64],
    resident: &HashSet<u64>,
    held: &mut HashSet<u64>,
    holds: bool,
) {
    if holds && rng.chance(20) {
        for n in keys.iter().take_while(|n| resident.contains(n)) {
            if held.insert(*n) {
                policy.pin(key(*n));
            }
        }
    }
    let mut sorted: Vec<u64> = held.iter().copied().collect();
    sorted.sort_unstable();
    for n in sorted {
        if rng.chance(30) {
            held.remove(&n);
            assert!(policy.unpin(key(n)));
        }
    }
}

#[test]
fn fifo_is_its_definition() {
    check(PolicyKind::Fifo, true, |_| Box::new(Fifo::default()));
}

#[test]
fn slru_is_its_definition() {
    for protected_pct in [1, 20, 50, 99] {
        let definition = |capacity: u32| -> Box<dyn Definition> {
            let target = u64::from(capacity) * u64::from(protected_pct) / 100;
            Box::new(Segmented::new(capacity, target as f64, false))
        };
        check(PolicyKind::Slru { protected_pct }, true, definition);
    }
}

#[test]
fn aslru_is_its_definition() {
    let definition = |capacity: u32| -> Box<dyn Definition> {
        Box::new(Segmented::new(capacity, 0.2 * f64::from(capacity), true))
    };
    check(PolicyKind::Aslru, true, definition);
}

#[test]
fn ylru_is_its_definition() {
    check(PolicyKind::Ylru, true, |capacity| Box::new(Ylru::new(capacity)));
}

/// Leaf-only it is compared without pins: with them there need not be a leaf that may go.
#[test]
fn s3_fifo_is_its_definition() {
    for (small_pct, threshold, leaf_only) in [(30, 1, true), (10, 2, true), (30, 1, false), (50, 3, false)] {
        let options = S3FifoOptions { small_pct, threshold, leaf_only };
        check(PolicyKind::S3Fifo(options), !leaf_only, |capacity| Box::new(S3Fifo::new(capacity, options)));
    }
}
