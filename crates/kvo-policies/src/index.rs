//! From keys to slots: for tiers, and for lists of ghosts.
//!
//! Buckets of one cache line: twelve entries of an 8-bit tag and a slot. The key itself is compared in the slot's own
//! entry, so a key that is there costs two cache lines and one that is not costs one. A bucket that is full counts the
//! keys that had to go on to the next, so a search ends at the first bucket without such a count, and removing a key
//! leaves nothing behind.
//!
//! Placement is keyed by a seed of this table alone: who can choose digests cannot choose buckets.

use std::{collections::TryReserveError, hash::BuildHasher};

use hashbrown::DefaultHashBuilder;
use kvo_core::{BlockHash, OffloadKey, SlotId, prefetch, reserve_table};

const WIDTH: usize = 12;
/// The tag of an entry that is empty; no key has it.
const NO_TAG: u8 = 0;
const NONE: u32 = u32::MAX;

/// An index from keys to slots, of up to as many keys as it was built for. It never allocates after that.
///
/// It keeps no key: whoever owns it knows the key of a slot, and is asked to compare. Placement is keyed by a random seed
/// of this index alone, so that keys that were chosen to fall together do not.
#[derive(Debug)]
pub struct SlotIndex {
    buckets: Vec<Bucket>,
    /// Random, of this table alone.
    seed: [u64; 5],
}

/// Where a key is in an index.
#[derive(Clone, Copy, Debug, Default)]
pub struct IndexEntry {
    bucket: u32,
    /// How many full buckets it had to pass.
    distance: u16,
    entry: u8,
}

#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Bucket {
    /// One an entry.
    tags: [u8; WIDTH],
    /// Keys that belong here, or came by from before, and had to go on.
    passed_on: u32,
    slots: [u32; WIDTH],
}

/// Entries of a bucket, in no order: bit 8 n stands for entry n, bit 8 n + 1 for entry n + 8.
struct Entries(u64);

impl Iterator for Entries {
    type Item = usize;

    #[inline]
    fn next(&mut self) -> Option<usize> {
        if self.0 == 0 {
            return None;
        }
        let bit = self.0.trailing_zeros() as usize;
        self.0 &= self.0 - 1;
        Some(bit / 8 + 8 * (bit % 2))
    }
}

impl Bucket {
    /// The entries with a tag, a true one first, if there is any; others may be among them.
    #[inline]
    fn entries(&self, tag: u8) -> Entries {
        let (first, rest) = self.tags.split_first_chunk().expect("there are more than eight");
        let last = rest.first_chunk().expect("there are four more");
        let first = tagged(u64::from_le_bytes(*first), tag);
        let last = tagged(u32::from_le_bytes(*last).into(), tag) & u64::from(u32::MAX);
        Entries(first >> 7 | last >> 6)
    }
}

/// The top bit of each byte that is `tag`, and perhaps of one above such a byte.
#[inline]
fn tagged(bytes: u64, tag: u8) -> u64 {
    const LOW: u64 = u64::from_le_bytes([1; 8]);
    let differences = bytes ^ (LOW * u64::from(tag));
    differences.wrapping_sub(LOW) & !differences & (LOW << 7)
}

/// What the bucket of a key says of it.
#[derive(Clone, Copy)]
enum First {
    Absent,
    /// Perhaps this one's.
    Slot(SlotId),
    PassedOn,
}

/// The high and the low half of a product, one over the other.
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    #[expect(clippy::cast_possible_truncation, reason = "the halves are wanted")]
    let (low, high) = (product as u64, (product >> 64) as u64);
    low ^ high
}

const EMPTY: Bucket = Bucket { tags: [NO_TAG; WIDTH], passed_on: 0, slots: [NONE; WIDTH] };

impl SlotIndex {
    /// Keys that are looked for together: as many cache lines as a core has under way at a time, about.
    pub const BATCH: usize = 32;

    /// Buckets for `capacity` keys, at most half full.
    ///
    /// # Errors
    /// If there is no memory for them.
    pub fn new(capacity: u32) -> Result<Self, TryReserveError> {
        let num_buckets = (capacity as usize * 2).div_ceil(WIDTH).max(2);
        let mut buckets = reserve_table(num_buckets)?;
        buckets.resize(num_buckets, EMPTY);
        let random = DefaultHashBuilder::default();
        let seed = std::array::from_fn(|index| random.hash_one(index));
        Ok(Self { buckets, seed })
    }

    /// The hash of a key: what the other calls are given, so that it is computed once.
    #[expect(
        clippy::inline_always,
        reason = "it is a tenth of what storing a chunk costs, half of that the call"
    )]
    #[inline(always)]
    pub fn hash(&self, key: &OffloadKey) -> u64 {
        let BlockHash(digest) = key.hash();
        let (words, _) = digest.as_chunks::<8>();
        let word = |index: usize| u64::from_le_bytes(words[index]) ^ self.seed[index];
        let halves = fold(word(0), word(1)) ^ fold(word(2), word(3)).rotate_left(32);
        fold(halves ^ u64::from(key.group().0), self.seed[4] | 1)
    }

    /// The slot of the key with this hash; `is_key` says whether a slot holds it.
    pub fn get(&self, hash: u64, is_key: impl Fn(SlotId) -> bool) -> Option<SlotId> {
        let (home, tag) = self.home(hash);
        let mut at = home;
        loop {
            let bucket = &self.buckets[at];
            let slots = bucket.entries(tag).map(|entry| SlotId(bucket.slots[entry]));
            if let Some(slot) = slots.into_iter().find(|slot| slot.0 != NONE && is_key(*slot)) {
                return Some(slot);
            }
            if bucket.passed_on == 0 {
                return None;
            }
            at = self.next(at);
            // In an index of few buckets, each can have passed a key on.
            if at == home {
                return None;
            }
        }
    }

    /// Asks for the bucket of a key with this hash.
    #[inline]
    pub fn prefetch(&self, hash: u64) {
        let (at, _) = self.home(hash);
        prefetch(&self.buckets[at]);
    }

    /// Whether a key with this hash may be there. If not, it costs one look at one bucket.
    #[inline]
    pub fn may_have(&self, hash: u64) -> bool {
        let (at, tag) = self.home(hash);
        let bucket = &self.buckets[at];
        bucket.passed_on > 0 || bucket.entries(tag).next().is_some()
    }

    /// As [`get`](Self::get) for up to [`BATCH`](Self::BATCH) keys, whose hashes are given and whose slots are written.
    /// All buckets are read first; `soon` is told of each slot whose key will then be compared, so that its owner can
    /// [`prefetch`] it.
    ///
    /// # Panics
    /// If there are more hashes than a batch has.
    #[inline]
    pub fn get_batch(
        &self,
        hashes: &[u64],
        slots: &mut [Option<SlotId>],
        soon: impl Fn(SlotId),
        is_key: impl Fn(usize, SlotId) -> bool,
    ) {
        assert!(hashes.len() <= Self::BATCH, "{} keys are more than a batch", hashes.len());
        let mut firsts = [First::Absent; Self::BATCH];
        for (hash, first) in hashes.iter().zip(&mut firsts) {
            let (at, tag) = self.home(*hash);
            let bucket = &self.buckets[at];
            *first = match bucket.entries(tag).next() {
                Some(entry) => {
                    let slot = SlotId(bucket.slots[entry]);
                    soon(slot);
                    First::Slot(slot)
                }
                None if bucket.passed_on == 0 => First::Absent,
                None => First::PassedOn,
            };
        }
        for (nth, ((hash, slot), first)) in hashes.iter().zip(slots).zip(firsts).enumerate() {
            *slot = match first {
                First::Absent => None,
                First::Slot(first) if is_key(nth, first) => Some(first),
                _ => self.get(*hash, |slot| is_key(nth, slot)),
            };
        }
    }

    /// Adds a key that is absent, of which there may be as many as the index was built for; returns where, for its
    /// removal.
    #[inline]
    pub fn insert(&mut self, hash: u64, slot: SlotId) -> IndexEntry {
        let (at, tag) = self.home(hash);
        self.put(at, tag, slot, 0).unwrap_or_else(|| self.pass_on(at, tag, slot))
    }

    /// Adds a key to a bucket, unless that is full.
    #[inline]
    fn put(&mut self, at: usize, tag: u8, slot: SlotId, distance: u16) -> Option<IndexEntry> {
        let bucket = &mut self.buckets[at];
        let entry = bucket.entries(NO_TAG).next()?;
        bucket.tags[entry] = tag;
        bucket.slots[entry] = slot.0;
        #[expect(clippy::cast_possible_truncation, reason = "capacities and widths are less")]
        Some(IndexEntry { bucket: at as u32, distance, entry: entry as u8 })
    }

    /// Adds a key that belongs into a full bucket to the next that is not.
    #[cold]
    fn pass_on(&mut self, home: usize, tag: u8, slot: SlotId) -> IndexEntry {
        let (mut at, mut distance) = (home, 0u16);
        loop {
            self.buckets[at].passed_on += 1;
            distance = distance.checked_add(1).expect("seeded hashes fill no 65,535 buckets in a row");
            at = self.next(at);
            if let Some(entry) = self.put(at, tag, slot, distance) {
                return entry;
            }
        }
    }

    /// Asks for the bucket of an entry.
    #[inline]
    pub fn prefetch_entry(&self, entry: IndexEntry) {
        prefetch(&self.buckets[entry.bucket as usize]);
    }

    /// Removes the key of an entry, which [`insert`](Self::insert) has returned and which was not removed since. Any other
    /// entry takes the wrong key out.
    #[inline]
    pub fn remove(&mut self, entry: IndexEntry) {
        let IndexEntry { bucket, entry, distance } = entry;
        let at = bucket as usize;
        self.buckets[at].tags[entry as usize] = NO_TAG;
        self.buckets[at].slots[entry as usize] = NONE;
        if distance > 0 {
            self.uncount(at, distance);
        }
    }

    /// A key that had gone on through so many buckets before this one is gone.
    #[cold]
    fn uncount(&mut self, at: usize, distance: u16) {
        let mut at = at;
        for _ in 0..distance {
            at = at.checked_sub(1).unwrap_or(self.buckets.len() - 1);
            let passed_on = &mut self.buckets[at].passed_on;
            *passed_on = passed_on.checked_sub(1).expect("a key that went on was counted");
        }
    }

    /// Removes all keys, in time proportional to the capacity.
    pub fn clear(&mut self) {
        self.buckets.fill(EMPTY);
    }

    /// How many keys there are, counted in time proportional to the capacity.
    pub fn count_keys(&self) -> usize {
        self.buckets.iter().flat_map(|bucket| bucket.slots).filter(|slot| *slot != NONE).count()
    }

    /// The bucket where a key belongs, and its tag.
    #[inline]
    fn home(&self, hash: u64) -> (usize, u8) {
        let scaled = u128::from(hash) * self.buckets.len() as u128;
        #[expect(
            clippy::cast_possible_truncation,
            reason = "the high bits choose a bucket, the low ones are the tag"
        )]
        ((scaled >> u64::BITS) as usize, (hash as u8).max(NO_TAG + 1))
    }

    fn next(&self, at: usize) -> usize {
        if at + 1 == self.buckets.len() { 0 } else { at + 1 }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use kvo_core::GroupIdx;

    use super::*;

    /// Fills an index with keys that differ in one place of their digest only, and takes them out again.
    #[track_caller]
    fn check(make: impl Fn(u32) -> [u8; 32]) {
        const CAPACITY: u32 = 20_000;
        let keys: Vec<OffloadKey> =
            (0..CAPACITY).map(|n| OffloadKey::new(BlockHash(make(n)), GroupIdx(n & 1))).collect();
        let mut index = SlotIndex::new(CAPACITY).unwrap();
        let mut entries = Vec::new();
        for (slot, key) in (0..).zip(&keys) {
            assert_eq!(index.get(index.hash(key), |slot| keys[slot.0 as usize] == *key), None);
            entries.push(index.insert(index.hash(key), SlotId(slot)));
        }
        for (slot, key) in (0..).zip(&keys) {
            assert_eq!(index.get(index.hash(key), |slot| keys[slot.0 as usize] == *key), Some(SlotId(slot)));
        }
        // At half load a bucket of twelve is full once in a hundred or so; who could choose buckets would fill them.
        let passed_on: u32 = index.buckets.iter().map(|bucket| bucket.passed_on).sum();
        assert!(passed_on < CAPACITY / 50, "{passed_on} of {CAPACITY} keys are not where they belong");
        for (entry, key) in entries.into_iter().zip(&keys).rev() {
            index.remove(entry);
            assert_eq!(index.get(index.hash(key), |slot| keys[slot.0 as usize] == *key), None);
        }
        assert_eq!(index.count_keys(), 0);
        assert!(index.buckets.iter().all(|bucket| bucket.passed_on == 0), "removing leaves nothing behind");
    }

    fn with_bytes(at: usize, n: u32) -> [u8; 32] {
        let mut digest = [0x5a; 32];
        digest[at..at + 4].copy_from_slice(&n.to_le_bytes());
        digest
    }

    #[test]
    fn digests_that_agree_in_all_but_four_bytes_are_spread_like_any_others() {
        for at in [0, 4, 13, 28] {
            check(|n| with_bytes(at, n));
        }
        check(|n| with_bytes(8, n.reverse_bits()));
    }

    #[test]
    fn two_indexes_place_the_same_keys_differently() {
        let key = |n| OffloadKey::new(BlockHash::from_u64(n), GroupIdx(0));
        let (a, b) = (SlotIndex::new(10_000).unwrap(), SlotIndex::new(10_000).unwrap());
        assert!((0..100).any(|n| a.home(a.hash(&key(n))).0 != b.home(b.hash(&key(n))).0));
    }

    #[test]
    fn an_index_can_be_filled_to_its_capacity() {
        for capacity in [1, 2, 11, 12, 13, 100] {
            let keys: Vec<OffloadKey> = (0..capacity)
                .map(|n: u32| OffloadKey::new(BlockHash::from_u64(n.into()), GroupIdx(0)))
                .collect();
            let mut index = SlotIndex::new(capacity).unwrap();
            for (slot, key) in (0..).zip(&keys) {
                index.insert(index.hash(key), SlotId(slot));
            }
            let found = (0..).zip(&keys).all(|(slot, key)| {
                index.get(index.hash(key), |s| keys[s.0 as usize] == *key) == Some(SlotId(slot))
            });
            assert!(found, "all {capacity} are there");
            index.clear();
            assert_eq!(index.count_keys(), 0);
        }
    }
    /// Steele, Lea and Flood's split-mix generator.
    struct Rng(u64);

    impl Rng {
        fn below(&mut self, bound: usize) -> usize {
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut mixed = self.0;
            mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            usize::try_from((mixed ^ (mixed >> 31)) % bound as u64).unwrap()
        }
    }

    fn is_key(keys: &[Option<OffloadKey>], slot: SlotId, key: &OffloadKey) -> bool {
        keys[slot.0 as usize].expect("the slot of a key is in use") == *key
    }

    /// Keys come and go at random, more and fewer in turn, in slots that are used again for others.
    #[track_caller]
    fn check_random(capacity: u32, num_ops: usize, seed: u64) {
        let mut rng = Rng(seed);
        let mut index = SlotIndex::new(capacity).unwrap();
        let all: Vec<OffloadKey> = (0..2 * u64::from(capacity))
            .map(|n| OffloadKey::new(BlockHash::from_u64(n / 2), GroupIdx(u32::from(n % 2 == 0))))
            .collect();
        let mut model: HashMap<OffloadKey, (SlotId, IndexEntry)> = HashMap::new();
        let mut keys: Vec<Option<OffloadKey>> = vec![None; capacity as usize];
        let mut free: Vec<SlotId> = (0..capacity).map(SlotId).collect();
        for op in 0..num_ops {
            let key = all[rng.below(all.len())];
            let found = index.get(index.hash(&key), |slot| is_key(&keys, slot, &key));
            let expected = model.get(&key).map(|(slot, _)| *slot);
            assert_eq!(found, expected, "operation {op} of seed {seed}");
            let filling = (op / (2 * capacity as usize)).is_multiple_of(2);
            match found {
                Some(slot) if !filling || rng.below(3) == 0 => {
                    let (_, entry) = model.remove(&key).unwrap();
                    index.remove(entry);
                    keys[slot.0 as usize] = None;
                    free.push(slot);
                }
                None if (filling || rng.below(3) == 0) && !free.is_empty() => {
                    let slot = free.swap_remove(rng.below(free.len()));
                    model.insert(key, (slot, index.insert(index.hash(&key), slot)));
                    keys[slot.0 as usize] = Some(key);
                }
                _ => {}
            }
            if op % (8 * capacity as usize) == 0 {
                assert_eq!(index.count_keys(), model.len());
                for key in &all {
                    let found = index.get(index.hash(key), |slot| is_key(&keys, slot, key));
                    assert_eq!(found, model.get(key).map(|(slot, _)| *slot));
                }
            }
            if op % 50_000 == 49_999 {
                index.clear();
                model.clear();
                keys.fill(None);
                free = (0..capacity).map(SlotId).collect();
            }
        }
        let passed_on: u32 = index.buckets.iter().map(|bucket| bucket.passed_on).sum();
        for (_, entry) in model.into_values() {
            index.remove(entry);
        }
        assert!(index.buckets.iter().all(|bucket| bucket.passed_on == 0), "{passed_on} were passed on");
    }

    #[test]
    fn an_index_equals_a_hash_map() {
        check_random(1_000, 200_000, 1);
        for (capacity, seed) in [(1, 2), (2, 3), (11, 4), (12, 5), (13, 6), (60, 7), (192, 8)] {
            check_random(capacity, 30_000, seed);
        }
    }

    /// B53: a hash is no key. Whoever owns the slots compares the keys, and finds those that others share a hash with.
    #[test]
    fn keys_of_one_hash_are_told_apart() {
        const NUM_KEYS: usize = 20;
        for hash in [0, 1, 0x5a5a, u64::MAX] {
            let mut index = SlotIndex::new(20).unwrap();
            let get = |index: &SlotIndex, nth: usize| index.get(hash, |slot| slot.0 as usize == nth);
            let mut entries = Vec::new();
            for (slot, nth) in (0..).zip(0..NUM_KEYS) {
                assert_eq!(get(&index, nth), None, "the others of this hash are not this one");
                entries.push(index.insert(hash, SlotId(slot)));
            }
            for (slot, nth) in (0..).zip(0..NUM_KEYS) {
                assert_eq!(get(&index, nth), Some(SlotId(slot)));
            }
            let mut slots = [None; NUM_KEYS];
            index.get_batch(&[hash; NUM_KEYS], &mut slots, |_| (), |nth, slot| slot.0 as usize == nth);
            assert_eq!(slots, std::array::from_fn(|nth| Some(SlotId(u32::try_from(nth).unwrap()))));
            // The first goes, the others stay.
            index.remove(entries.remove(0));
            assert_eq!((get(&index, 0), get(&index, 1)), (None, Some(SlotId(1))));
        }
    }

    /// Far more than a hash function ever puts into one bucket, so that searches go on and round the end.
    #[test]
    fn a_full_index_finds_keys_that_went_on_round_its_end() {
        let capacity = 24;
        let mut index = SlotIndex::new(capacity).unwrap();
        let last = index.buckets.len() - 1;
        let keys: Vec<OffloadKey> = (0..)
            .map(|n| OffloadKey::new(BlockHash::from_u64(n), GroupIdx(0)))
            .filter(|key| index.home(index.hash(key)).0 == last)
            .take(capacity as usize)
            .collect();
        for round in 0..u64::from(capacity) {
            let entries: Vec<_> =
                (0..).zip(&keys).map(|(slot, key)| index.insert(index.hash(key), SlotId(slot))).collect();
            assert_eq!((index.buckets[last].passed_on, index.buckets[0].passed_on), (12, 0));
            let mut rng = Rng(round);
            let mut left: Vec<u32> = (0..capacity).collect();
            while !left.is_empty() {
                let gone = left.swap_remove(rng.below(left.len()));
                index.remove(entries[gone as usize]);
                for (slot, key) in (0..).zip(&keys) {
                    let expected = left.contains(&slot).then_some(SlotId(slot));
                    assert_eq!(index.get(index.hash(key), |slot| keys[slot.0 as usize] == *key), expected);
                }
            }
            assert!(index.buckets.iter().all(|bucket| bucket.passed_on == 0));
        }
    }

    #[test]
    fn a_search_ends_where_every_bucket_has_passed_a_key_on() {
        let mut index = SlotIndex::new(14).unwrap();
        for home in 0..index.buckets.len() {
            let hashes: Vec<u64> = (0..)
                .map(|n| index.hash(&OffloadKey::new(BlockHash::from_u64(n), GroupIdx(0))))
                .filter(|hash| index.home(*hash).0 == home)
                .take(WIDTH + 1)
                .collect();
            let mut entries = Vec::new();
            for hash in hashes {
                if index.buckets[home].passed_on == 0 {
                    entries.push(index.insert(hash, SlotId(0)));
                }
            }
            assert!(index.count_keys() <= 14);
            // The one that was passed on stays.
            entries.pop();
            for entry in entries {
                index.remove(entry);
            }
        }
        assert!(index.buckets.iter().all(|bucket| bucket.passed_on == 1));
        assert_eq!(index.get(1 << 63, |_| false), None);
    }
}
