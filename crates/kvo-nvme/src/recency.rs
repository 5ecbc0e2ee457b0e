//! What each running request has met in the store, recorded while it runs and committed once.

use hashbrown::HashMap;
use kvo_core::{OffloadKey, TierChunk};
use kvo_policies::{AccessKind, KeyAccess, RequestRecency};

/// The accesses of one request.
#[derive(Debug, Default)]
pub(crate) struct RequestAccesses {
    pub(crate) recency: RequestRecency,
    /// In the order of recording, each key once.
    recorded: Vec<KeyAccess>,
    index: HashMap<OffloadKey, usize>,
}

impl RequestAccesses {
    /// Records a key if it is new to the request, and then returns its access. A position that was missing is
    /// filled in.
    pub(crate) fn record(&mut self, chunk: &TierChunk, kind: AccessKind) -> Option<KeyAccess> {
        let next = self.recorded.len();
        let index = *self.index.entry(chunk.key).or_insert(next);
        if index < next {
            let known = &mut self.recorded[index];
            known.end_token = known.end_token.or(chunk.end_token);
            return None;
        }
        let access = KeyAccess { key: chunk.key, end_token: chunk.end_token, kind };
        self.recorded.push(access);
        Some(access)
    }

    /// The request writes `key`, which is recorded: whatever it met before was another chunk of that name.
    pub(crate) fn mark_inserted(&mut self, key: &OffloadKey) {
        if let Some(&index) = self.index.get(key) {
            self.recorded[index].kind = AccessKind::Inserted;
        }
    }

    /// What was recorded, head to tail: by position if every key has one, else in the order of recording. Keys of
    /// equal position keep that order.
    pub(crate) fn into_head_to_tail(mut self) -> Vec<KeyAccess> {
        if self.recorded.iter().all(|access| access.end_token.is_some()) {
            self.recorded.sort_by_key(|access| access.end_token);
        }
        self.recorded
    }
}

#[cfg(test)]
mod tests {
    use kvo_core::{BlockHash, GroupIdx, SlotId};

    use super::*;

    fn chunk(n: u64, end_token: Option<u32>) -> TierChunk {
        TierChunk { key: OffloadKey::new(BlockHash::from_u64(n), GroupIdx(0)), slot: SlotId(0), end_token }
    }

    #[track_caller]
    fn check(recorded: &[TierChunk], expected: &[u64]) {
        let mut accesses = RequestAccesses::default();
        for chunk in recorded {
            accesses.record(chunk, AccessKind::Reused);
        }
        let keys: Vec<_> = accesses.into_head_to_tail().iter().map(|access| access.key).collect();
        assert_eq!(keys, expected.iter().map(|&n| chunk(n, None).key).collect::<Vec<_>>());
    }

    #[test]
    fn positions_order_the_keys_if_all_are_known() {
        check(&[chunk(3, Some(48)), chunk(1, Some(16)), chunk(2, Some(32))], &[1, 2, 3]);
        check(&[chunk(3, Some(48)), chunk(1, None), chunk(2, Some(32))], &[3, 1, 2]);
        check(&[chunk(3, Some(48)), chunk(1, None), chunk(1, Some(16))], &[1, 3]);
    }

    #[test]
    fn a_key_counts_once_and_an_insertion_stays_one() {
        let mut accesses = RequestAccesses::default();
        assert!(accesses.record(&chunk(1, None), AccessKind::Inserted).is_some());
        assert!(accesses.record(&chunk(1, None), AccessKind::Reused).is_none());
        assert!(accesses.record(&chunk(2, None), AccessKind::Reused).is_some());
        accesses.mark_inserted(&chunk(2, None).key);
        let kinds: Vec<_> = accesses.into_head_to_tail().iter().map(|access| access.kind).collect();
        assert_eq!(kinds, [AccessKind::Inserted, AccessKind::Inserted]);
    }
}
