//! The keys of a subject.

use kvo_core::{BlockHash, GroupIdx, OffloadKey};

/// The keys that a subject writes: fresh ones at every write, and none that another subject has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keys {
    group: u32,
    num_chunks: u32,
    writes: u64,
}

impl Keys {
    /// Those of subject number `group`, `num_chunks` a write.
    pub fn new(group: u32, num_chunks: u32) -> Self {
        Self { group, num_chunks, writes: 0 }
    }

    /// From now on, other keys.
    pub fn next_write(&mut self) {
        self.writes += 1;
    }

    /// The key of chunk `index` of the last write.
    pub fn key(&self, index: u32) -> OffloadKey {
        let number = self.writes * u64::from(self.num_chunks) + u64::from(index);
        OffloadKey::new(BlockHash::from_u64(number), GroupIdx(self.group))
    }

    /// Chunks a write.
    pub fn num_chunks(&self) -> u32 {
        self.num_chunks
    }

    /// Writes so far.
    pub fn writes(&self) -> u64 {
        self.writes
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn no_two_writes_and_no_two_subjects_have_a_key_in_common() {
        let mut seen = HashSet::new();
        for group in 0..3 {
            let mut keys = Keys::new(group, 5);
            for _ in 0..3 {
                keys.next_write();
                assert!((0..5).all(|index| seen.insert(keys.key(index))));
            }
        }
    }
}
