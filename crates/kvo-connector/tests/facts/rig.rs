//! A connector on a CPU tier, and an engine's calls of it.

use kvo_connector::{
    BlockHasher, Connector, ConnectorOptions, CopyId, CopyOutcome, CopyResult, Finish, GroupOptions,
    Namespace, PrefixMatch, RequestParams, Scheduled, StepInput, StepPlan,
};
use kvo_core::{BlockHash, BlockId, ManualClock, RequestId};
use kvo_cpu::{CpuManager, CpuOptions};
use kvo_cuda::Fingerprint;
use kvo_policies::Lru;

pub(crate) const CHUNK: u32 = 16;
pub(crate) const NAMESPACE: Namespace = Namespace { fingerprint: Fingerprint([1; 32]), epoch: 1 };

pub(crate) struct Bench {
    pub(crate) connector: Connector<CpuManager<Lru>>,
    pub(crate) clock: ManualClock,
    pub(crate) next_block: u32,
}

/// Nothing but a full-attention group with one block a chunk, unless `change` says otherwise.
pub(crate) fn bench_with(num_slots: u32, change: impl FnOnce(&mut ConnectorOptions)) -> Bench {
    let mut options = ConnectorOptions::new(NAMESPACE, vec![GroupOptions::full(CHUNK)], CHUNK);
    change(&mut options);
    let manager = CpuManager::new(
        CpuOptions { record_events: options.events.is_some(), ..CpuOptions::new(num_slots) },
        Lru::new(num_slots),
    )
    .unwrap();
    let clock = ManualClock::default();
    let connector = Connector::new(options, manager, Box::new(clock.clone())).unwrap();
    Bench { connector, clock, next_block: 0 }
}

pub(crate) fn bench(num_slots: u32) -> Bench {
    bench_with(num_slots, |_| ())
}

/// A prompt of `chunks` chunks, all of one document.
pub(crate) fn tokens(document: u32, num: u32) -> Vec<u32> {
    (0..num).map(|nth| document * 1_000_000 + nth).collect()
}

impl Bench {
    pub(crate) fn begin(&mut self, id: u64, tokens: &[u32], params: RequestParams) {
        let num = u32::try_from(tokens.len()).unwrap();
        self.connector.new_request(RequestId(id), num, params).unwrap();
        self.connector.add_hashes(RequestId(id), num, &Self::hashes(tokens)).unwrap();
    }

    pub(crate) fn hashes(tokens: &[u32]) -> Vec<BlockHash> {
        BlockHasher::new(b"facts").blocks(CHUNK as usize, tokens)
    }

    /// What tiers call chunks of requests without adapter and salt.
    pub(crate) fn names(tokens: &[u32]) -> Vec<BlockHash> {
        let names = NAMESPACE.names(None, None);
        Self::hashes(tokens).into_iter().map(|hash| names.name(hash)).collect()
    }

    pub(crate) fn blocks(&mut self, num: u32) -> Vec<Option<BlockId>> {
        self.next_block += num;
        (self.next_block - num..self.next_block).map(|block| Some(BlockId(block))).collect()
    }

    /// Computes up to `settled` in blocks that nobody else has.
    pub(crate) fn compute(&mut self, id: u64, computed: u32, settled: u32) -> StepPlan {
        let num = settled.div_ceil(CHUNK) - computed.div_ceil(CHUNK);
        let blocks = self.blocks(num);
        self.compute_in(id, &blocks, computed, settled)
    }

    pub(crate) fn compute_in(
        &mut self,
        id: u64,
        blocks: &[Option<BlockId>],
        computed: u32,
        settled: u32,
    ) -> StepPlan {
        self.compute_tables(id, [blocks], computed, settled)
    }

    /// The same in several groups.
    pub(crate) fn compute_tables<const GROUPS: usize>(
        &mut self,
        id: u64,
        new_blocks: [&[Option<BlockId>]; GROUPS],
        computed: u32,
        settled: u32,
    ) -> StepPlan {
        let scheduled = [Scheduled {
            request: RequestId(id),
            kept_blocks: &[],
            new_blocks: &new_blocks,
            computed,
            settled,
        }];
        self.connector.build_step(&StepInput { preempted: &[], scheduled: &scheduled }).unwrap()
    }

    pub(crate) fn idle(&mut self) -> StepPlan {
        self.connector.build_step(&StepInput::default()).unwrap()
    }

    pub(crate) fn report(&mut self, copy: CopyId, result: CopyResult) -> CopyOutcome {
        self.connector.copy_reported(copy, 0, result).unwrap()
    }

    pub(crate) fn done(&mut self, plan: &StepPlan) {
        for copy in plan.loads.iter().chain(&plan.stores) {
            self.report(copy.copy, CopyResult::Done);
        }
    }

    /// A request that computes a prompt, stores what it can, and finishes.
    pub(crate) fn serve(&mut self, id: u64, tokens: &[u32]) {
        self.begin(id, tokens, RequestParams::default());
        let plan = self.compute(id, 0, u32::try_from(tokens.len()).unwrap());
        self.done(&plan);
        assert_eq!(self.connector.request_finished(RequestId(id)), Ok(Finish::Settled));
    }

    pub(crate) fn loadable(&mut self, id: u64, computed: u32) -> u32 {
        match self.connector.match_prefix(RequestId(id), computed).unwrap() {
            PrefixMatch::Loadable(tokens) => tokens,
            PrefixMatch::AskAgain => panic!("request {id} is to ask again"),
        }
    }

    /// Loads what is found into new blocks; the plan has it.
    pub(crate) fn load(&mut self, id: u64, tokens: u32) -> CopyId {
        let blocks = self.blocks(tokens.div_ceil(CHUNK));
        self.connector.blocks_allocated(RequestId(id), &[&blocks]).unwrap()
    }
}

pub(crate) fn num_chunks(plan: &StepPlan) -> usize {
    plan.stores.iter().map(|store| store.chunks().len()).sum()
}
