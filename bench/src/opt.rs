//! The optimum: what a policy that knows the rest of the trace would hit.

use std::{collections::BinaryHeap, ops::ControlFlow};

use crate::{Contender, PolicyResult, Trace};

/// No use to come.
const NEVER: u64 = u64::MAX;

/// Belady's MIN with bypass over `trace` with `capacity` slots.
///
/// Blocks are taken one by one in the order of the trace. A missing block is stored if there is room, or if a resident
/// block is used again later than it: then the one used last of all goes. A block with no use to come is not stored.
///
/// No policy has more hits block by block. If equal blocks mean equal prefixes, it has no fewer prefix hits either: a
/// parent is always used again no later than its child, so what is resident is closed under prefixes. Hence a ceiling
/// for prefix hits. A policy under [model R](crate::run_model_r) has to store what it is offered, so part of the
/// distance is out of its reach. Tokens are another matter: where a request's last block is partial, a policy that has
/// fewer blocks may have more tokens, by less than a block a request.
///
/// `before_request` is called before every request and may stop the run; the result then covers what was served.
///
/// L. A. Belady, "A study of replacement algorithms for a virtual-storage computer", IBM Systems Journal 5(2), 1966.
pub fn run_opt(
    trace: &Trace,
    capacity: u32,
    mut before_request: impl FnMut() -> ControlFlow<()>,
) -> PolicyResult {
    let next_uses = next_uses(trace);
    let mut tier = Tier {
        room: capacity as usize,
        next_use: vec![None; trace.num_unique as usize],
        by_next_use: BinaryHeap::new(),
    };
    let mut result = PolicyResult::empty(Contender::Opt, capacity);
    let mut at = 0;
    for request in &trace.requests {
        if before_request().is_break() {
            break;
        }
        let (mut hits, mut is_prefix) = (0, true);
        for &block in &request.blocks {
            is_prefix &= tier.access(block, next_uses[at], &mut result);
            hits += usize::from(is_prefix);
            at += 1;
        }
        result.take_request(request, hits, trace.block_tokens);
    }
    result
}

/// Of each access of the trace, when its block is accessed next.
fn next_uses(trace: &Trace) -> Vec<u64> {
    let mut next_of = vec![NEVER; trace.num_unique as usize];
    let accesses: Vec<u32> =
        trace.requests.iter().flat_map(|request| request.blocks.iter().copied()).collect();
    let mut next_uses = vec![NEVER; accesses.len()];
    for (at, &block) in accesses.iter().enumerate().rev() {
        next_uses[at] = std::mem::replace(&mut next_of[block as usize], at as u64);
    }
    next_uses
}

struct Tier {
    room: usize,
    /// Of each block, when it is used next, if it is resident.
    next_use: Vec<Option<u64>>,
    /// Every resident block at its next use, among others that are out of date.
    by_next_use: BinaryHeap<(u64, u32)>,
}

impl Tier {
    /// Takes one access, after which the block's next use is `next`; returns whether it is a hit.
    fn access(&mut self, block: u32, next: u64, result: &mut PolicyResult) -> bool {
        let is_hit = self.next_use[block as usize].take().is_some();
        self.room += usize::from(is_hit);
        let is_of_use = next != NEVER && (self.room > 0 || self.make_room(next, result));
        if is_of_use {
            self.room -= 1;
            self.next_use[block as usize] = Some(next);
            self.by_next_use.push((next, block));
        }
        result.inserts += u64::from(is_of_use && !is_hit);
        result.evictions += u64::from(is_hit && !is_of_use);
        if is_hit && !is_of_use {
            result.eviction_order.push(block);
        }
        is_hit
    }

    /// Evicts the block that is used last of all, unless that is before `next`.
    fn make_room(&mut self, next: u64, result: &mut PolicyResult) -> bool {
        while let Some(&(last, block)) = self.by_next_use.peek() {
            if self.next_use[block as usize] != Some(last) {
                self.by_next_use.pop();
                continue;
            }
            if last < next {
                return false;
            }
            self.by_next_use.pop();
            self.next_use[block as usize] = None;
            self.room += 1;
            result.evictions += 1;
            result.eviction_order.push(block);
            return true;
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use kvo_policies::PolicyKind;

    use super::*;
    use crate::{TraceRequest, kvo_synth, run_model_r};

    fn run(requests: &[&[u32]], capacity: u32) -> PolicyResult {
        let num_unique = requests.iter().flat_map(|blocks| *blocks).max().map_or(0, |max| max + 1);
        let request = |blocks: &&[u32]| TraceRequest { blocks: blocks.to_vec(), ..TraceRequest::default() };
        let requests = requests.iter().map(request).collect();
        let trace = Trace { name: "test".to_owned(), block_tokens: 512, requests, num_unique };
        run_opt(&trace, capacity, || ControlFlow::Continue(()))
    }

    #[test]
    fn what_is_used_last_goes_and_what_is_never_used_is_not_stored() {
        // 0 and 1 are kept for the last request, 2 is bypassed, 3 is never used.
        let result = run(&[&[0, 1, 2], &[3], &[0, 1, 2]], 2);
        assert_eq!((result.hits, result.inserts), (2, 2));
        // 0 makes way for 1, which comes back sooner.
        let result = run(&[&[0], &[1], &[1], &[0]], 1);
        assert_eq!((result.hits, result.inserts), (1, 2));
    }

    #[test]
    fn with_room_for_all_every_reuse_is_a_hit() {
        let trace = kvo_synth(100, 5);
        let result = run_opt(&trace, trace.num_unique, || ControlFlow::Continue(()));
        assert_eq!(result.hits, trace.num_accesses() - u64::from(trace.num_unique));
    }

    #[test]
    fn no_policy_has_more_hits() {
        for seed in 0..4 {
            let trace = kvo_synth(150, seed);
            for capacity in [1, 10, 50, 200] {
                let opt = run_opt(&trace, capacity, || ControlFlow::Continue(())).hits;
                for name in ["lru", "arc", "arc:canonical", "slru", "aslru", "ylru", "s3fifo", "fifo"] {
                    let policy: PolicyKind = name.parse().unwrap();
                    let result = run_model_r(&trace, policy, capacity, || ControlFlow::Continue(())).unwrap();
                    assert!(result.hits <= opt, "{name} on seed {seed} at {capacity}");
                }
            }
        }
    }
}
