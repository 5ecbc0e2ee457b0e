//! A tier that wants all chunks of a request is given those that the request loads.

use std::sync::{Arc, Mutex};

use kvo_connector::{
    BlockHasher, Connector, ConnectorOptions, CopyResult, GroupOptions, Namespace, PrefixMatch,
    RequestParams, Scheduled, StepInput,
};
use kvo_core::{
    BlockId, JobRejected, ManualClock, Medium, OffloadKey, OffloadPolicy, RequestContext, RequestId,
    SecondaryTier, TierCompletion, TierJob, TierLookup,
};
use kvo_cpu::{CpuManager, CpuOptions};
use kvo_cuda::Fingerprint;
use kvo_policies::Lru;
use kvo_tiering::{TieringManager, TieringOptions};

const CHUNK: u32 = 16;
const NAMESPACE: Namespace = Namespace { fingerprint: Fingerprint([1; 32]), epoch: 1 };

type Given = Arc<Mutex<Vec<(RequestId, usize)>>>;

/// Takes everything, and has nothing.
struct WantsAll(Given, Vec<TierCompletion>);

impl SecondaryTier for WantsAll {
    fn name(&self) -> &'static str {
        "wants all"
    }

    fn medium(&self) -> Medium {
        Medium::Ssd
    }

    fn on_new_request(&mut self, _: &RequestContext) -> OffloadPolicy {
        OffloadPolicy::RequestLevel
    }

    fn lookup(&mut self, _: RequestId, _: &OffloadKey) -> TierLookup {
        TierLookup::Miss
    }

    fn submit(&mut self, job: TierJob) -> Result<(), JobRejected> {
        self.0.lock().unwrap().push((job.req, job.chunks.len()));
        self.1.push(TierCompletion::done(job.id));
        Ok(())
    }

    fn poll(&mut self, done: &mut Vec<TierCompletion>) {
        done.append(&mut self.1);
    }
}

#[test]
fn a_tier_that_wants_all_chunks_is_given_those_that_are_loaded() {
    let given = Given::default();
    let primary = CpuManager::new(CpuOptions::new(8), Lru::new(8)).unwrap();
    let tiers: Vec<Box<dyn SecondaryTier>> = vec![Box::new(WantsAll(given.clone(), Vec::new()))];
    let clock = Box::new(ManualClock::default());
    let manager = TieringManager::new(primary, tiers, TieringOptions::new(1), clock).unwrap();
    let options = ConnectorOptions::new(NAMESPACE, vec![GroupOptions::full(CHUNK)], CHUNK);
    let mut connector = Connector::new(options, manager, Box::new(ManualClock::default())).unwrap();
    let tokens: Vec<u32> = (0..=2 * CHUNK).collect();
    let blocks = [0, 1, 2].map(|block| Some(BlockId(block)));
    for id in [RequestId(1), RequestId(2)] {
        connector.new_request(id, 2 * CHUNK + 1, RequestParams::default()).unwrap();
        let hashes = BlockHasher::new(b"all").blocks(CHUNK as usize, &tokens);
        connector.add_hashes(id, 2 * CHUNK + 1, &hashes).unwrap();
        let mut computed = 0;
        let mut new_blocks: [&[_]; 1] = [&blocks];
        if connector.match_prefix(id, 0) == Ok(PrefixMatch::Loadable(2 * CHUNK)) {
            let copy = connector.blocks_allocated(id, &new_blocks).unwrap();
            connector.build_step(&StepInput::default()).unwrap();
            connector.copy_reported(copy, 0, CopyResult::Done).unwrap();
            (computed, new_blocks) = (2 * CHUNK, [&blocks[..0]]);
        }
        let scheduled = [Scheduled {
            request: id,
            kept_blocks: &[],
            new_blocks: &new_blocks,
            computed,
            settled: 2 * CHUNK + 1,
        }];
        let plan = connector.build_step(&StepInput { preempted: &[], scheduled: &scheduled }).unwrap();
        for store in &plan.stores {
            connector.copy_reported(store.copy, 0, CopyResult::Done).unwrap();
        }
        let _ = connector.request_finished(id).unwrap();
        connector.build_step(&StepInput::default()).unwrap();
    }
    assert_eq!(*given.lock().unwrap(), [(RequestId(1), 2), (RequestId(2), 2)]);
}
