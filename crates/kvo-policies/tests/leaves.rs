//! Policies that strand nothing, while requests overlap: what goes has no resident child.
//!
//! Requests meet, store and finish in any order. What others do in between may take a part of their prefix, as it may
//! in a tier: such a request stores no more. Prefixes are pinned now and then, whole.

mod support;

use std::collections::HashSet;

use kvo_policies::{AccessKind, CachePolicy, KeyAccess, PolicyKind, RequestRecency};
use support::{Driven, access, key, seeded::Rng};

const KINDS: [PolicyKind; 2] = [PolicyKind::Lru, PolicyKind::Ylru];

/// Chunks of a tree in which every chunk has three children.
const NUM_CHUNKS: u64 = 364;

fn parent(chunk: u64) -> Option<u64> {
    chunk.checked_sub(1).map(|before| before / 3)
}

/// The chain that ends at `chunk`, head to tail.
fn chain(chunk: u64) -> Vec<u64> {
    let mut keys: Vec<u64> = std::iter::successors(Some(chunk), |chunk| parent(*chunk)).collect();
    keys.reverse();
    keys
}

/// A request under way: what it has met of its chain so far.
struct Running {
    recency: RequestRecency,
    chain: Vec<u64>,
    met: Vec<KeyAccess>,
    /// How many evictions there had been when it began.
    begun: usize,
}

struct Tier {
    policy: Driven<Box<dyn CachePolicy>>,
    capacity: usize,
    resident: HashSet<u64>,
    /// Pinned prefixes, by their last chunk.
    pinned: Vec<u64>,
    evicted: Vec<u64>,
}

impl Tier {
    fn new(kind: PolicyKind, capacity: u32) -> Self {
        Self {
            policy: Driven::new(capacity, kind.build(capacity)),
            capacity: capacity as usize,
            resident: HashSet::new(),
            pinned: Vec::new(),
            evicted: Vec::new(),
        }
    }

    /// The request meets the next `count` chunks of its chain: those that are resident, or it stores them.
    ///
    /// Returns whether it may go on: not if its prefix is broken or the tier has no room.
    fn step(&mut self, request: &mut Running, count: usize) -> bool {
        let done = request.met.len();
        if self.evicted[request.begun..].iter().any(|chunk| request.chain[..done].contains(chunk)) {
            return false;
        }
        let next: Vec<u64> = request.chain[done..].iter().copied().take(count).collect();
        let missing: Vec<u64> = next.iter().copied().filter(|chunk| !self.resident.contains(chunk)).collect();
        let met: Vec<KeyAccess> = (1..)
            .skip(done)
            .zip(&next)
            .map(|(end, chunk)| {
                let is_resident = self.resident.contains(chunk);
                let kind = if is_resident { AccessKind::Reused } else { AccessKind::Inserted };
                access(key(*chunk), Some(16 * end), kind)
            })
            .collect();
        self.policy.access(&mut request.recency, &met);
        if !missing.is_empty() {
            self.policy.store_miss(&missing.iter().copied().map(key).collect::<Vec<_>>());
        }
        if !self.make_room(missing.len(), &request.chain) {
            request.met.extend(met.iter().filter(|access| access.kind == AccessKind::Reused));
            return false;
        }
        for access in met.iter().filter(|access| access.kind == AccessKind::Inserted) {
            self.policy.insert(&mut request.recency, access.key, access.end_token);
            self.policy.ready(access.key);
        }
        self.resident.extend(missing);
        request.met.extend(met);
        request.met.len() < request.chain.len()
    }

    fn make_room(&mut self, num_missing: usize, spared: &[u64]) -> bool {
        let count = (self.resident.len() + num_missing).saturating_sub(self.capacity);
        let spared: Vec<_> = spared.iter().copied().map(key).collect();
        let mut victims = Vec::new();
        let is_done = self.policy.evict(count, &spared, &mut victims);
        for victim in victims {
            let victim = (0..NUM_CHUNKS).find(|chunk| key(*chunk) == victim).unwrap();
            self.resident.remove(&victim);
            let child = self.resident.iter().find(|chunk| parent(**chunk) == Some(victim));
            assert_eq!(child, None, "{victim} went before its child");
            self.evicted.push(victim);
        }
        is_done
    }

    fn finish(&mut self, mut request: Running) {
        self.policy.finish(&mut request.recency, &request.met);
    }

    fn pin_or_unpin(&mut self, rng: &mut Rng) {
        if rng.chance(50) && !self.pinned.is_empty() {
            let last = self.pinned.swap_remove(rng.index(self.pinned.len()));
            for chunk in chain(last) {
                self.policy.unpin(key(chunk));
            }
        } else if self.pinned.len() < 2 {
            let chain = chain(rng.below(NUM_CHUNKS));
            let prefix = chain.iter().take_while(|chunk| self.resident.contains(chunk));
            for chunk in prefix.clone() {
                self.policy.pin(key(*chunk));
            }
            self.pinned.extend(prefix.last());
        }
    }
}

#[track_caller]
fn check(kind: PolicyKind, seed: u64) -> usize {
    let mut rng = Rng::new(seed);
    let mut tier = Tier::new(kind, u32::try_from(12 + rng.below(60)).unwrap());
    let mut running: Vec<Running> = Vec::new();
    for _ in 0..1_500 {
        let at = rng.index(5);
        if at >= running.len() {
            // Some chunks are met far more often than others.
            let last = rng.below(NUM_CHUNKS).min(rng.below(NUM_CHUNKS));
            running.push(Running {
                recency: RequestRecency::default(),
                chain: chain(last),
                met: Vec::new(),
                begun: tier.evicted.len(),
            });
        } else {
            let count = 1 + rng.index(4);
            if !tier.step(&mut running[at], count) || rng.chance(10) {
                let request = running.swap_remove(at);
                tier.finish(request);
            }
        }
        if rng.chance(5) {
            tier.pin_or_unpin(&mut rng);
        }
    }
    tier.evicted.len()
}

#[test]
fn what_goes_has_no_resident_child_however_requests_overlap() {
    for kind in KINDS {
        let evictions: usize = (0..400).map(|seed| check(kind, seed)).sum();
        println!("{kind}: {evictions} evictions");
        assert!(evictions > 100_000, "{kind}: {evictions} evictions only");
    }
}
