//! The bare memory accesses, on the same keys: what no cache of this shape can be faster than by much.
//!
//! A table of one line of tags and slots a bucket, at most half full, an entry of one line with the key, and a ring
//! of slots, oldest first. No states, pins, jobs, requests, recency or errors. Batches of 16 hash first, then read the
//! buckets, then the entries, so that the processor has their lines under way at a time.

use kvo_core::{BlockHash, GroupIdx, OffloadKey};

use super::{Job, MicroError, Sample, Subject, Sweep, ThreadTime, shuffle};

const BATCH: usize = 16;
const WIDTH: usize = 12;
const NONE: u32 = u32::MAX;
/// The tag of a place that is free.
const FREE: u8 = 0;

/// The floor.
#[derive(Debug)]
pub struct Floor {
    buckets: Vec<Bucket>,
    entries: Vec<Entry>,
    /// Slots, the oldest at `oldest`.
    ring: Vec<u32>,
    oldest: usize,
    num_used: usize,
    shift: u32,
}

#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Bucket {
    tags: [u8; WIDTH],
    passed_on: u32,
    slots: [u32; WIDTH],
}

#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Entry {
    key: OffloadKey,
}

impl Floor {
    /// Room for `chunks`.
    pub fn new(chunks: u32) -> Self {
        let num_buckets = (chunks as usize * 2).div_ceil(WIDTH).next_power_of_two().max(2);
        let empty = Entry { key: OffloadKey::new(BlockHash([0; 32]), GroupIdx(0)) };
        Self {
            buckets: vec![Bucket { tags: [FREE; WIDTH], passed_on: 0, slots: [NONE; WIDTH] }; num_buckets],
            entries: vec![empty; chunks as usize],
            ring: (0..chunks).collect(),
            oldest: 0,
            num_used: 0,
            shift: u64::BITS - num_buckets.trailing_zeros(),
        }
    }

    fn home(&self, hash: u64) -> usize {
        usize::try_from(hash >> self.shift).unwrap_or(0)
    }

    fn tag(hash: u64) -> u8 {
        hash.to_le_bytes()[0] | 1
    }

    /// How many of up to [`BATCH`] keys are there.
    fn find(&self, keys: &[OffloadKey]) -> usize {
        let hashes = hash_all(keys);
        let mut slots = [NONE; BATCH];
        for (slot, hash) in slots.iter_mut().zip(hashes).take(keys.len()) {
            let bucket = &self.buckets[self.home(hash)];
            *slot = first_of(&bucket.tags, Self::tag(hash)).map_or(NONE, |at| bucket.slots[at]);
        }
        (0..keys.len())
            .filter(|at| {
                self.entries.get(slots[*at] as usize).is_some_and(|entry| entry.key == keys[*at])
                    || self.find_slowly(&keys[*at], hashes[*at])
            })
            .count()
    }

    /// A tag that another key has too, or a bucket that was full.
    fn find_slowly(&self, key: &OffloadKey, hash: u64) -> bool {
        let mut at = self.home(hash);
        loop {
            let bucket = &self.buckets[at];
            let is_key = |slot: &u32| *slot != NONE && self.entries[*slot as usize].key == *key;
            if bucket.slots.iter().any(is_key) {
                return true;
            }
            if bucket.passed_on == 0 {
                return false;
            }
            at = (at + 1) & (self.buckets.len() - 1);
        }
    }

    /// Puts up to [`BATCH`] keys in place of the oldest.
    fn replace(&mut self, keys: &[OffloadKey]) {
        let hashes = hash_all(keys);
        let mut slots = [NONE; BATCH];
        let mut old = [keys[0]; BATCH];
        let is_full = self.num_used == self.ring.len();
        for (at, slot) in slots.iter_mut().enumerate().take(keys.len()) {
            *slot = self.ring[(self.oldest + at) % self.ring.len()];
            old[at] = self.entries[*slot as usize].key;
        }
        if is_full {
            let old_hashes = hash_all(&old);
            for (hash, slot) in old_hashes.into_iter().zip(slots).take(keys.len()) {
                self.remove(hash, slot);
            }
        }
        for ((key, hash), slot) in keys.iter().zip(hashes).zip(slots) {
            self.insert(hash, slot);
            self.entries[slot as usize].key = *key;
        }
        self.oldest = (self.oldest + keys.len()) % self.ring.len();
        self.num_used = (self.num_used + keys.len()).min(self.ring.len());
    }

    fn remove(&mut self, hash: u64, slot: u32) {
        let mut at = self.home(hash);
        loop {
            let bucket = &mut self.buckets[at];
            if let Some(index) = bucket.slots.iter().position(|found| *found == slot) {
                bucket.slots[index] = NONE;
                bucket.tags[index] = FREE;
                return;
            }
            bucket.passed_on -= 1;
            at = (at + 1) & (self.buckets.len() - 1);
        }
    }

    fn insert(&mut self, hash: u64, slot: u32) {
        let mut at = self.home(hash);
        loop {
            let bucket = &mut self.buckets[at];
            if let Some(index) = first_of(&bucket.tags, FREE) {
                bucket.tags[index] = Self::tag(hash);
                bucket.slots[index] = slot;
                return;
            }
            bucket.passed_on += 1;
            at = (at + 1) & (self.buckets.len() - 1);
        }
    }
}

fn hash_all(keys: &[OffloadKey]) -> [u64; BATCH] {
    let mut hashes = [0; BATCH];
    for (hash, key) in hashes.iter_mut().zip(keys) {
        *hash = hash_of(key);
    }
    hashes
}

/// Two folded multiplications. The seeds are not random, as those of a real table have to be.
fn hash_of(key: &OffloadKey) -> u64 {
    let digest = key.hash().0;
    let word = |at: usize| {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&digest[at..at + 8]);
        u64::from_le_bytes(bytes)
    };
    let a = fold(word(0) ^ 0x243f_6a88_85a3_08d3, word(8) ^ 0x1319_8a2e_0370_7344);
    let b = fold(word(16) ^ 0xa409_3822_299f_31d0, word(24) ^ 0x082e_fa98_ec4e_6c89);
    (a ^ b.rotate_left(32)).wrapping_add(u64::from(key.group().0)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    let halves = product.to_le_bytes();
    let half = |at: usize| {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&halves[at..at + 8]);
        u64::from_le_bytes(bytes)
    };
    half(0) ^ half(8)
}

/// Where a tag is first, without a branch for each: where it is cannot be predicted.
fn first_of(tags: &[u8; WIDTH], tag: u8) -> Option<usize> {
    let mask = (0..WIDTH).fold(0u16, |mask, at| mask | u16::from(tags[at] == tag) << at);
    (mask != 0).then(|| mask.trailing_zeros() as usize)
}

impl Subject for Floor {
    fn name(&self) -> &'static str {
        "floor"
    }

    fn has(&self, job: Job) -> bool {
        matches!(job, Job::Cycle32 | Job::Cycle1 | Job::FinishOwn | Job::Lookup | Job::ColdCycle)
    }

    fn is_timed(&self, job: Job) -> bool {
        matches!(job, Job::Cycle32 | Job::Lookup)
    }

    fn scatter(&mut self) -> Result<(), MicroError> {
        shuffle(&mut self.ring, 0);
        Ok(())
    }

    fn run(&mut self, job: Job, keys: &[OffloadKey], _sweep: &mut Sweep) -> Result<Sample, MicroError> {
        let ns = ThreadTime::of(|| {
            if job != Job::Lookup {
                keys.chunks(BATCH).for_each(|batch| self.replace(batch));
                return Ok(());
            }
            let found: usize = keys.chunks(BATCH).map(|batch| self.find(batch)).sum();
            if found == keys.len() {
                return Ok(());
            }
            let what = format!("found {found} of {} keys", keys.len());
            Err(MicroError::Unexpected { subject: self.name().to_owned(), what })
        })?;
        Ok(Sample::new(ns, keys.len()))
    }
}
