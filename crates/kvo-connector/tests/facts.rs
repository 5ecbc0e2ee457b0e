//! Facts about a connector on a CPU tier, one by one. No bytes are moved here.

use std::time::Duration;

use kvo_connector::{
    BlockHasher, Connector, ConnectorError, ConnectorOptions, CopyId, CopyOutcome, CopyResult, Finish,
    GroupKind, GroupOptions, PrefixMatch, RequestParams, Scheduled, StepInput, StepPlan,
};
use kvo_core::{BlockId, ManualClock, OffloadManager, RequestError, RequestId, SlotId};
use kvo_cpu::{CpuManager, CpuOptions};
use kvo_policies::Lru;

const CHUNK: u32 = 16;

struct Bench {
    connector: Connector<CpuManager<Lru>>,
    clock: ManualClock,
    next_block: u32,
}

/// Nothing but a full-attention group with one block a chunk, unless `change` says otherwise.
fn bench_with(num_slots: u32, change: impl FnOnce(&mut ConnectorOptions)) -> Bench {
    let mut options = ConnectorOptions::new(vec![GroupOptions::full(CHUNK)], CHUNK);
    change(&mut options);
    let manager = CpuManager::new(CpuOptions::new(num_slots), Lru::new(num_slots)).unwrap();
    let clock = ManualClock::default();
    let connector = Connector::new(options, manager, Box::new(clock.clone())).unwrap();
    Bench { connector, clock, next_block: 0 }
}

fn bench(num_slots: u32) -> Bench {
    bench_with(num_slots, |_| ())
}

/// A prompt of `chunks` chunks, all of one document.
fn tokens(document: u32, num: u32) -> Vec<u32> {
    (0..num).map(|nth| document * 1_000_000 + nth).collect()
}

impl Bench {
    fn begin(&mut self, id: u64, tokens: &[u32], params: RequestParams) {
        let num = u32::try_from(tokens.len()).unwrap();
        self.connector.new_request(RequestId(id), num, params).unwrap();
        let hashes = BlockHasher::new(b"facts").blocks(CHUNK as usize, tokens);
        self.connector.add_hashes(RequestId(id), num, &hashes).unwrap();
    }

    fn blocks(&mut self, num: u32) -> Vec<Option<BlockId>> {
        self.next_block += num;
        (self.next_block - num..self.next_block).map(|block| Some(BlockId(block))).collect()
    }

    /// Computes up to `settled` in blocks that nobody else has.
    fn compute(&mut self, id: u64, computed: u32, settled: u32) -> StepPlan {
        let num = settled.div_ceil(CHUNK) - computed.div_ceil(CHUNK);
        let blocks = self.blocks(num);
        self.compute_in(id, &blocks, computed, settled)
    }

    fn compute_in(&mut self, id: u64, blocks: &[Option<BlockId>], computed: u32, settled: u32) -> StepPlan {
        let new_blocks = [blocks];
        let scheduled = [Scheduled {
            request: RequestId(id),
            kept_blocks: &[],
            new_blocks: &new_blocks,
            computed,
            settled,
        }];
        self.connector.build_step(&StepInput { preempted: &[], scheduled: &scheduled }).unwrap()
    }

    fn idle(&mut self) -> StepPlan {
        self.connector.build_step(&StepInput::default()).unwrap()
    }

    fn report(&mut self, copy: CopyId, result: CopyResult) -> CopyOutcome {
        self.connector.copy_reported(copy, 0, result).unwrap()
    }

    fn done(&mut self, plan: &StepPlan) {
        for copy in plan.loads.iter().chain(&plan.stores) {
            self.report(copy.copy, CopyResult::Done);
        }
    }

    /// A request that computes a prompt, stores what it can, and finishes.
    fn serve(&mut self, id: u64, tokens: &[u32]) {
        self.begin(id, tokens, RequestParams::default());
        let plan = self.compute(id, 0, u32::try_from(tokens.len()).unwrap());
        self.done(&plan);
        assert_eq!(self.connector.request_finished(RequestId(id)), Ok(Finish::Settled));
    }

    fn loadable(&mut self, id: u64, computed: u32) -> u32 {
        match self.connector.match_prefix(RequestId(id), computed).unwrap() {
            PrefixMatch::Loadable(tokens) => tokens,
            PrefixMatch::AskAgain => panic!("request {id} is to ask again"),
        }
    }

    /// Loads what is found into new blocks; the plan has it.
    fn load(&mut self, id: u64, tokens: u32) -> CopyId {
        let blocks = self.blocks(tokens.div_ceil(CHUNK));
        self.connector.blocks_allocated(RequestId(id), &[&blocks]).unwrap()
    }
}

fn num_chunks(plan: &StepPlan) -> usize {
    plan.stores.iter().map(|store| store.chunks().len()).sum()
}

/// The reference's end-to-end experiment: of 64 chunks the last 16 were replaced.
#[test]
fn what_later_traffic_has_left_can_be_loaded() {
    let mut bench = bench(64);
    let prompt = tokens(1, 64 * CHUNK + 1);
    bench.serve(1, &prompt);
    bench.serve(2, &tokens(2, 16 * CHUNK));
    bench.begin(3, &prompt, RequestParams::default());
    assert_eq!(bench.loadable(3, 0), 768);
    let copy = bench.load(3, 768);
    let plan = bench.idle();
    assert_eq!((plan.loads.len(), plan.loads[0].copy, plan.loads[0].chunks().len()), (1, copy, 48));
    let outcome = bench.report(copy, CopyResult::Done);
    assert_eq!(outcome, CopyOutcome::Loaded { request: RequestId(3), computed: 768 });
    assert_eq!(bench.connector.counts().pinned, 0);
}

#[test]
fn a_match_can_be_loaded_in_its_step_whatever_others_store() {
    let mut bench = bench(2);
    bench.serve(1, &tokens(1, 2 * CHUNK));
    bench.begin(2, &tokens(1, 3 * CHUNK), RequestParams::default());
    bench.begin(3, &tokens(3, CHUNK), RequestParams::default());
    assert_eq!(bench.loadable(2, 0), 2 * CHUNK);
    // The other one's store comes first, and finds no room.
    let blocks = bench.blocks(2);
    let copy = bench.connector.blocks_allocated(RequestId(2), &[&blocks]).unwrap();
    let plan = bench.compute(3, 0, CHUNK);
    assert_eq!((plan.loads[0].copy, plan.stores.len()), (copy, 0));
    bench.done(&plan);
    // It is offered again, and now there is room.
    let plan = bench.compute_in(3, &[], CHUNK, CHUNK);
    assert_eq!(num_chunks(&plan), 1);
}

#[test]
fn a_match_that_is_not_taken_up_is_gone_with_its_step() {
    let mut bench = bench(4);
    bench.serve(1, &tokens(1, 2 * CHUNK));
    bench.begin(2, &tokens(1, 3 * CHUNK), RequestParams::default());
    assert_eq!(bench.loadable(2, 0), 2 * CHUNK);
    assert_eq!(bench.connector.counts().pinned, 2);
    bench.idle();
    assert_eq!(bench.connector.counts().pinned, 0);
    let blocks = bench.blocks(2);
    let error = bench.connector.blocks_allocated(RequestId(2), &[&blocks]).unwrap_err();
    assert_eq!(error, ConnectorError::NoMatch { req: RequestId(2) });
}

#[test]
fn a_table_that_is_too_short_changes_nothing() {
    let mut bench = bench(4);
    bench.serve(1, &tokens(1, 2 * CHUNK));
    bench.begin(2, &tokens(1, 3 * CHUNK), RequestParams::default());
    bench.loadable(2, 0);
    let blocks = bench.blocks(1);
    let error = bench.connector.blocks_allocated(RequestId(2), &[&blocks]).unwrap_err();
    assert!(matches!(error, ConnectorError::NoBlock { block: 1, .. }), "{error}");
    let error = bench.connector.blocks_allocated(RequestId(2), &[]).unwrap_err();
    assert!(matches!(error, ConnectorError::WrongNumberOfTables { given: 0, groups: 1, .. }), "{error}");
    bench.load(2, 2 * CHUNK);
}

#[test]
fn whoever_finds_a_chunk_on_its_way_asks_again_until_its_patience_ends() {
    let mut bench = bench(4);
    bench.begin(1, &tokens(1, 2 * CHUNK), RequestParams::default());
    let plan = bench.compute(1, 0, 2 * CHUNK);
    bench.begin(2, &tokens(1, 3 * CHUNK), RequestParams::default());
    assert_eq!(bench.connector.match_prefix(RequestId(2), 0), Ok(PrefixMatch::AskAgain));
    bench.clock.advance(Duration::from_secs(1));
    assert_eq!(bench.loadable(2, 0), 0);
    assert_eq!(bench.connector.stats().patience_ended, 1);
    // What is there without them is good.
    bench.done(&plan);
    assert_eq!(bench.loadable(2, 0), 2 * CHUNK);
}

#[test]
fn what_could_not_be_stored_is_offered_again_from_its_first_chunk() {
    let mut bench = bench(8);
    bench.begin(1, &tokens(1, 10 * CHUNK), RequestParams::default());
    let plan = bench.compute(1, 0, 2 * CHUNK);
    assert_eq!(num_chunks(&plan), 2);
    assert_eq!(
        bench.report(plan.stores[0].copy, CopyResult::Failed),
        CopyOutcome::StoreFailed { request: RequestId(1) }
    );
    let plan = bench.compute(1, 2 * CHUNK, 3 * CHUNK);
    assert_eq!(num_chunks(&plan), 3, "the two that failed, and the next");
    bench.done(&plan);
    assert_eq!(bench.connector.counts().evictable, 3);
}

#[test]
fn a_request_whose_stores_go_on_failing_stores_no_more() {
    let mut bench = bench(8);
    bench.begin(1, &tokens(1, 10 * CHUNK), RequestParams::default());
    let mut plan = bench.compute(1, 0, CHUNK);
    for _ in 0..4 {
        assert_eq!(num_chunks(&plan), 1);
        bench.report(plan.stores[0].copy, CopyResult::Failed);
        plan = bench.compute_in(1, &[], CHUNK, CHUNK);
    }
    assert_eq!(num_chunks(&plan), 0);
    assert_eq!(bench.connector.counts().free, 8);
}

#[test]
fn of_an_offer_that_does_not_fit_the_head_is_stored() {
    let mut bench = bench(3);
    bench.begin(1, &tokens(1, 5 * CHUNK), RequestParams::default());
    let plan = bench.compute(1, 0, 5 * CHUNK);
    assert_eq!(num_chunks(&plan), 3);
    bench.done(&plan);
    assert_eq!(bench.connector.request_finished(RequestId(1)), Ok(Finish::Settled));
    bench.begin(2, &tokens(1, 5 * CHUNK), RequestParams::default());
    // The tail may have pushed out what came before it, but never the head.
    assert!(bench.loadable(2, 0) > 0);
}

#[test]
fn compute_waits_for_the_stores_of_blocks_that_it_writes() {
    let mut bench = bench(8);
    bench.begin(1, &tokens(1, 2 * CHUNK), RequestParams::default());
    let blocks = bench.blocks(2);
    let stores = bench.compute_in(1, &blocks, 0, 2 * CHUNK).stores;
    assert_eq!(bench.connector.request_finished(RequestId(1)), Ok(Finish::CopiesOpen(1)));
    bench.begin(2, &tokens(2, 2 * CHUNK), RequestParams::default());
    let plan = bench.compute_in(2, &blocks[1..], 0, CHUNK);
    assert_eq!(plan.wait_for, [stores[0].copy]);
    assert_eq!(bench.report(stores[0].copy, CopyResult::Done), CopyOutcome::Void);
    let mut settled = Vec::new();
    bench.connector.take_settled(&mut settled);
    assert_eq!(settled, [RequestId(1)]);
    bench.connector.take_settled(&mut settled);
    assert_eq!(settled.len(), 1, "once");
    assert!(bench.compute_in(2, &blocks[..1], CHUNK, 2 * CHUNK).wait_for.is_empty());
    // The chunks are there, though their request was over.
    bench.begin(3, &tokens(1, 3 * CHUNK), RequestParams::default());
    assert_eq!(bench.loadable(3, 0), 2 * CHUNK);
}

#[test]
fn a_load_waits_for_the_stores_of_blocks_that_it_writes() {
    let mut bench = bench(8);
    bench.serve(1, &tokens(1, 2 * CHUNK));
    bench.begin(2, &tokens(2, CHUNK), RequestParams::default());
    let blocks = bench.blocks(1);
    let store = bench.compute_in(2, &blocks, 0, CHUNK).stores[0].copy;
    bench.begin(3, &tokens(1, 3 * CHUNK), RequestParams::default());
    assert_eq!(bench.loadable(3, 0), 2 * CHUNK);
    let table = [bench.blocks(1)[0], blocks[0]];
    bench.connector.blocks_allocated(RequestId(3), &[&table]).unwrap();
    assert_eq!(bench.idle().loads[0].after, [store]);
}

#[test]
fn blocks_that_were_found_on_the_gpu_are_waited_for_by_nobody() {
    let mut bench = bench(8);
    bench.begin(1, &tokens(1, CHUNK), RequestParams::default());
    let blocks = bench.blocks(1);
    assert_eq!(bench.compute_in(1, &blocks, 0, CHUNK).stores.len(), 1);
    // Another request shares the block and computes behind it.
    bench.begin(2, &tokens(1, 2 * CHUNK), RequestParams::default());
    let table = [blocks[0], bench.blocks(1)[0]];
    assert!(bench.compute_in(2, &table, CHUNK, 2 * CHUNK).wait_for.is_empty());
}

#[test]
fn a_load_that_fails_is_not_tried_again() {
    let mut bench = bench(8);
    bench.serve(1, &tokens(1, 2 * CHUNK));
    bench.begin(2, &tokens(1, 3 * CHUNK), RequestParams::default());
    assert_eq!(bench.loadable(2, 0), 2 * CHUNK);
    let copy = bench.load(2, 2 * CHUNK);
    bench.idle();
    let error = bench.connector.match_prefix(RequestId(2), 0).unwrap_err();
    assert_eq!(error, ConnectorError::Loading { req: RequestId(2) });
    let outcome = bench.report(copy, CopyResult::Failed);
    assert_eq!(outcome, CopyOutcome::LoadFailed { request: RequestId(2), computed: 0 });
    assert_eq!(bench.loadable(2, 0), 0);
    assert_eq!(bench.connector.counts().pinned, 0);
}

/// B10: the first of several workers to finish let go of what others still read.
#[test]
fn a_load_is_over_when_every_worker_has_reported_it() {
    let mut bench = bench_with(8, |options| options.num_workers = 3);
    bench.begin(1, &tokens(1, 2 * CHUNK), RequestParams::default());
    let store = bench.compute(1, 0, 2 * CHUNK).stores[0].copy;
    for worker in [2, 0] {
        assert_eq!(bench.connector.copy_reported(store, worker, CopyResult::Done), Ok(CopyOutcome::Open));
        assert_eq!(bench.connector.counts().pending, 2);
    }
    let again = bench.connector.copy_reported(store, 0, CopyResult::Done).unwrap_err();
    assert_eq!(again, ConnectorError::NotOpen { copy: store, worker: 0 });
    assert!(bench.connector.copy_reported(store, 3, CopyResult::Done).is_err());
    let stored = bench.connector.copy_reported(store, 1, CopyResult::Done).unwrap();
    assert_eq!(stored, CopyOutcome::Stored { request: RequestId(1) });
    assert!(bench.connector.copy_reported(store, 1, CopyResult::Done).is_err());

    bench.begin(2, &tokens(1, 3 * CHUNK), RequestParams::default());
    bench.loadable(2, 0);
    let load = bench.load(2, 2 * CHUNK);
    bench.idle();
    bench.connector.copy_reported(load, 0, CopyResult::Failed).unwrap();
    bench.connector.copy_reported(load, 1, CopyResult::Done).unwrap();
    assert_eq!(bench.connector.counts().pinned, 2);
    let outcome = bench.connector.copy_reported(load, 2, CopyResult::Done).unwrap();
    assert_eq!(outcome, CopyOutcome::LoadFailed { request: RequestId(2), computed: 0 });
    assert_eq!(bench.connector.counts().pinned, 0);
}

#[test]
fn what_a_device_holds_stays_until_it_lets_go() {
    let mut bench = bench(2);
    bench.begin(1, &tokens(1, 2 * CHUNK), RequestParams::default());
    let blocks = bench.blocks(2);
    let store = bench.compute_in(1, &blocks, 0, 2 * CHUNK).stores[0].copy;
    let outcome = bench.report(store, CopyResult::FailedAndHeld);
    assert_eq!(outcome, CopyOutcome::StoreFailed { request: RequestId(1) });
    assert_eq!(bench.connector.counts().pending, 2);
    assert_eq!(bench.connector.request_finished(RequestId(1)), Ok(Finish::CopiesOpen(1)));
    bench.begin(2, &tokens(2, CHUNK), RequestParams::default());
    assert_eq!(bench.compute_in(2, &blocks[..1], 0, CHUNK).wait_for, [store]);
    bench.connector.copy_released(store, 0).unwrap();
    assert_eq!(bench.connector.counts().free, 2);
    assert!(bench.connector.copy_released(store, 0).is_err());
}

#[test]
fn a_copy_that_a_worker_never_reports_fails_in_time_and_keeps_what_it_may_touch() {
    let mut bench = bench_with(8, |options| options.num_workers = 2);
    bench.begin(1, &tokens(1, 2 * CHUNK), RequestParams::default());
    let blocks = bench.blocks(2);
    let store = bench.compute_in(1, &blocks, 0, 2 * CHUNK).stores[0].copy;
    bench.connector.copy_reported(store, 0, CopyResult::Done).unwrap();
    let mut late = Vec::new();
    bench.clock.advance(Duration::from_secs(59));
    bench.connector.take_late(&mut late);
    assert_eq!(late, []);
    bench.clock.advance(Duration::from_secs(1));
    bench.connector.take_late(&mut late);
    bench.connector.take_late(&mut late);
    assert_eq!(late, [CopyOutcome::StoreFailed { request: RequestId(1) }]);
    assert_eq!(bench.connector.counts().pending, 2);
    bench.begin(2, &tokens(2, CHUNK), RequestParams::default());
    assert_eq!(bench.compute_in(2, &blocks[..1], 0, CHUNK).wait_for, [store]);
    // It comes after all, and is nobody's any more.
    assert_eq!(bench.connector.copy_reported(store, 1, CopyResult::FailedAndHeld), Ok(CopyOutcome::Open));
    bench.connector.copy_released(store, 1).unwrap();
    assert_eq!((bench.connector.counts().pending, bench.connector.stats().copies_late), (1, 1));
}

#[test]
fn an_abort_before_a_plan_leaves_nothing_to_copy() {
    let mut bench = bench(4);
    bench.serve(1, &tokens(1, 2 * CHUNK));
    bench.begin(2, &tokens(1, 3 * CHUNK), RequestParams::default());
    bench.loadable(2, 0);
    bench.load(2, 2 * CHUNK);
    assert_eq!(bench.connector.request_finished(RequestId(2)), Ok(Finish::Settled));
    let plan = bench.idle();
    assert_eq!(plan, StepPlan::default());
    assert_eq!(bench.connector.counts().pinned, 0);
    assert!(!bench.connector.has_pending_work());
}

#[test]
fn a_number_that_is_used_again_has_nothing_of_before() {
    let mut bench = bench(8);
    bench.begin(1, &tokens(1, 2 * CHUNK), RequestParams::default());
    let store = bench.compute(1, 0, 2 * CHUNK).stores[0].copy;
    assert_eq!(bench.connector.request_finished(RequestId(1)), Ok(Finish::CopiesOpen(1)));
    bench.begin(1, &tokens(2, 2 * CHUNK), RequestParams::default());
    assert_eq!(bench.report(store, CopyResult::Failed), CopyOutcome::Void);
    let plan = bench.compute(1, 0, 2 * CHUNK);
    assert_eq!(num_chunks(&plan), 2);
    bench.done(&plan);
    assert_eq!(bench.connector.request_finished(RequestId(1)), Ok(Finish::Settled));
}

#[test]
fn a_preempted_request_begins_anew_and_offers_all_its_chunks_again() {
    let mut bench = bench(8);
    bench.begin(1, &tokens(1, 4 * CHUNK), RequestParams::default());
    let store = bench.compute(1, 0, 2 * CHUNK).stores[0].copy;
    bench.connector.build_step(&StepInput { preempted: &[RequestId(1)], scheduled: &[] }).unwrap();
    // B25: as far as the copies went well the chunks are those of before.
    assert_eq!(bench.report(store, CopyResult::Failed), CopyOutcome::Void);
    assert_eq!(bench.connector.counts().free, 8);
    let plan = bench.compute(1, 0, 3 * CHUNK);
    assert_eq!(num_chunks(&plan), 3);
}

#[test]
fn nothing_is_loaded_or_stored_before_the_copies_of_before_a_reset_are_over() {
    let mut bench = bench(8);
    bench.serve(1, &tokens(1, 2 * CHUNK));
    bench.begin(2, &tokens(2, 2 * CHUNK), RequestParams::default());
    let store = bench.compute(2, 0, CHUNK).stores[0].copy;
    bench.begin(3, &tokens(1, 3 * CHUNK), RequestParams::default());
    bench.loadable(3, 0);
    let load = bench.load(3, 2 * CHUNK);
    bench.idle();
    let flush = bench.connector.reset();
    assert_eq!((flush.loads_void, flush.copies_open), (vec![RequestId(3)], 2));
    assert_eq!(bench.connector.counts().free, 8);
    assert_eq!(num_chunks(&bench.compute(2, CHUNK, 2 * CHUNK)), 0);
    assert_eq!(bench.loadable(3, 0), 0);
    assert_eq!(bench.report(load, CopyResult::Done), CopyOutcome::Void);
    assert_eq!(num_chunks(&bench.compute_in(2, &[], 2 * CHUNK, 2 * CHUNK)), 0);
    assert_eq!(bench.report(store, CopyResult::Done), CopyOutcome::Void);
    assert_eq!(bench.connector.counts().free, 8, "what was stored before the reset is not there after it");
    assert_eq!(num_chunks(&bench.compute_in(2, &[], 2 * CHUNK, 2 * CHUNK)), 2, "offered again");
}

#[test]
fn parameters_say_what_is_read_and_what_is_stored() {
    let mut bench = bench(64);
    let prompt = tokens(1, 4 * CHUNK + 1);
    let with = |change: fn(&mut RequestParams)| {
        let mut params = RequestParams::default();
        change(&mut params);
        params
    };
    bench.begin(1, &prompt, with(|params| params.store_tokens_max = Some(2 * CHUNK + 3)));
    let plan = bench.compute(1, 0, 4 * CHUNK);
    assert_eq!(num_chunks(&plan), 2);
    bench.done(&plan);
    bench.begin(2, &prompt, with(|params| params.load_tokens_max = Some(CHUNK + 5)));
    assert_eq!(bench.loadable(2, 0), CHUNK);
    bench.begin(3, &prompt, with(|params| params.skip_reading = true));
    assert_eq!(bench.loadable(3, 0), 0);
    bench.begin(4, &prompt, with(|params| params.salt = Some([1; 32])));
    assert_eq!(bench.loadable(4, 0), 0);
    bench.begin(5, &prompt, RequestParams::default());
    assert_eq!(bench.loadable(5, 0), 2 * CHUNK);

    // Of the 8 chunks that it comes to have only those of the prompt.
    bench.begin(6, &tokens(6, 4 * CHUNK), with(|params| params.prompt_only = true));
    let all = BlockHasher::new(b"facts").blocks(CHUNK as usize, &tokens(6, 8 * CHUNK));
    bench.connector.add_hashes(RequestId(6), 8 * CHUNK, &all[4..]).unwrap();
    assert_eq!(num_chunks(&bench.compute(6, 0, 8 * CHUNK)), 4);
    // A class of loads it must be.
    let params = with(|params| params.load_class = kvo_core::TransferClass::Store);
    let error = bench.connector.new_request(RequestId(7), 1, params).unwrap_err();
    assert!(matches!(error, ConnectorError::NoLoadClass { .. }), "{error}");
}

#[test]
fn what_may_be_computed_again_is_not_stored() {
    let mut bench = bench(8);
    bench.begin(1, &tokens(1, 4 * CHUNK), RequestParams::default());
    let blocks = bench.blocks(3);
    // A draft model has gone to the end of the third block, and only one is final.
    assert_eq!(num_chunks(&bench.compute_in(1, &blocks, 0, CHUNK + 7)), 1);
    assert_eq!(num_chunks(&bench.compute_in(1, &[], CHUNK + 7, 3 * CHUNK)), 2);
}

#[test]
fn a_block_that_was_taken_back_is_not_stored() {
    let mut bench = bench(8);
    bench.begin(1, &tokens(1, 4 * CHUNK), RequestParams::default());
    let blocks = bench.blocks(3);
    // Two blocks for a draft, of which one is given back, and another one comes in its place.
    bench.compute_in(1, &blocks, 0, CHUNK);
    let other = bench.blocks(2);
    let step = |kept: usize, new_blocks: &[&[Option<BlockId>]], bench: &mut Bench| {
        let scheduled = [Scheduled {
            request: RequestId(1),
            kept_blocks: &[kept],
            new_blocks,
            computed: CHUNK,
            settled: 3 * CHUNK,
        }];
        bench.connector.build_step(&StepInput { preempted: &[], scheduled: &scheduled })
    };
    let error = step(4, &[], &mut bench).unwrap_err();
    assert!(matches!(error, ConnectorError::TooManyKept { kept: 4, known: 3, .. }), "{error}");
    let plan = step(2, &[&other], &mut bench).unwrap();
    let stored: Vec<_> = plan.stores[0].chunks().flat_map(|chunk| chunk.blocks.to_vec()).collect();
    assert_eq!(stored, [blocks[1].unwrap(), other[0].unwrap()]);
}

#[test]
fn all_stores_of_a_step_that_fail_are_one_failure() {
    let mut bench = bench_with(64, |options| options.offer_chunks_max = 2);
    bench.begin(1, &tokens(1, 20 * CHUNK), RequestParams::default());
    let plan = bench.compute(1, 0, 20 * CHUNK);
    assert_eq!(plan.stores.len(), 10);
    for store in &plan.stores {
        bench.report(store.copy, CopyResult::Failed);
    }
    assert_eq!(num_chunks(&bench.compute_in(1, &[], 20 * CHUNK, 20 * CHUNK)), 20);
}

#[test]
fn whoever_gives_blocks_away_at_once_is_told_of_no_request() {
    let mut bench = bench_with(8, |options| options.keeps_blocks = false);
    bench.begin(1, &tokens(1, CHUNK), RequestParams::default());
    let plan = bench.compute(1, 0, CHUNK);
    assert_eq!(bench.connector.request_finished(RequestId(1)), Ok(Finish::CopiesOpen(1)));
    bench.done(&plan);
    let mut settled = Vec::new();
    bench.connector.take_settled(&mut settled);
    assert_eq!(settled, []);
}

#[test]
fn loads_begin_and_end_inside_chunks() {
    let mut bench = bench_with(8, |options| options.groups[0].blocks_per_chunk = 4);
    let prompt = tokens(1, 12 * CHUNK + 1);
    bench.serve(1, &prompt);
    for skip in 0..4 {
        let id = 10 + u64::from(skip);
        bench.begin(id, &prompt, RequestParams::default());
        let limit = RequestParams { load_tokens_max: Some((9 - skip) * CHUNK), ..RequestParams::default() };
        assert_eq!(bench.connector.request_finished(RequestId(id)), Ok(Finish::Settled));
        bench.begin(id, &prompt, limit);
        assert_eq!(bench.loadable(id, skip * CHUNK), (9 - skip) * CHUNK);
        let blocks = bench.blocks(9);
        bench.connector.blocks_allocated(RequestId(id), &[&blocks]).unwrap();
        let plan = bench.idle();
        let chunks: Vec<_> = plan.loads[0].chunks().map(|chunk| (chunk.skip, chunk.blocks.len())).collect();
        assert_eq!(chunks, [(skip, 4 - skip as usize), (0, 4), (0, 1)]);
        let loaded: Vec<_> = plan.loads[0].chunks().flat_map(|chunk| chunk.blocks.to_vec()).collect();
        let wanted: Vec<_> = blocks[skip as usize..].iter().copied().flatten().collect();
        assert_eq!(loaded, wanted);
        bench.done(&plan);
        assert_eq!(bench.connector.request_finished(RequestId(id)), Ok(Finish::Settled));
    }
}

#[test]
fn a_step_that_does_not_fit_changes_nothing() {
    let mut bench = bench(8);
    bench.begin(1, &tokens(1, 4 * CHUNK), RequestParams::default());
    let plan = bench.compute(1, 0, 2 * CHUNK);
    bench.done(&plan);
    let mut refused = |scheduled: Scheduled<'_>, preempted: &[RequestId]| {
        bench.connector.build_step(&StepInput { preempted, scheduled: &[scheduled] }).unwrap_err()
    };
    let one = Scheduled {
        request: RequestId(1),
        kept_blocks: &[],
        new_blocks: &[],
        computed: 2 * CHUNK,
        settled: 2 * CHUNK,
    };
    let back = Scheduled { settled: CHUNK, ..one };
    assert!(matches!(refused(back, &[]), ConnectorError::TokensTakenBack { before: 32, .. }));
    let beyond = Scheduled { settled: 5 * CHUNK, ..one };
    assert!(matches!(refused(beyond, &[]), ConnectorError::TooManyTokens { num_tokens: 64, .. }));
    let tables: [&[Option<BlockId>]; 2] = [&[], &[]];
    let tables = Scheduled { new_blocks: &tables, ..one };
    assert!(matches!(refused(tables, &[]), ConnectorError::WrongNumberOfTables { given: 2, .. }));
    let unknown = ConnectorError::Request(RequestError::Unknown { req: RequestId(9) });
    assert_eq!(refused(Scheduled { request: RequestId(9), ..one }, &[]), unknown);
    assert_eq!(refused(one, &[RequestId(9)]), unknown);
    assert_eq!(bench.connector.request_finished(RequestId(9)), Err(unknown));
    let known = bench.connector.new_request(RequestId(1), 1, RequestParams::default());
    assert_eq!(known, Err(ConnectorError::Request(RequestError::Known { req: RequestId(1) })));
    assert!(matches!(
        bench.connector.match_prefix(RequestId(1), 5 * CHUNK),
        Err(ConnectorError::TooManyTokens { .. })
    ));
}

#[test]
fn slots_come_in_the_order_of_chunks() {
    let mut bench = bench(4);
    bench.begin(1, &tokens(1, 2 * CHUNK), RequestParams::default());
    let plan = bench.compute(1, 0, 2 * CHUNK);
    let stored: Vec<SlotId> = plan.stores[0].chunks().map(|chunk| chunk.slot).collect();
    bench.done(&plan);
    bench.begin(2, &tokens(1, 3 * CHUNK), RequestParams::default());
    bench.loadable(2, 0);
    bench.load(2, 2 * CHUNK);
    let loaded: Vec<SlotId> = bench.idle().loads[0].chunks().map(|chunk| chunk.slot).collect();
    assert_eq!(loaded, stored);
    assert_eq!(bench.connector.manager().counts().pinned, 2);
}

/// Blocks in front of a gap in a table: the engine has given them back, and they are others' now.
#[test]
fn a_block_left_behind_by_a_window_is_never_stored() {
    let mut bench = bench_with(8, |options| options.groups[0] = GroupOptions::window(CHUNK, CHUNK + 1));
    let prompt = tokens(1, 8 * CHUNK + 1);
    bench.begin(1, &prompt, RequestParams::default());
    let mut blocks = bench.blocks(8);
    blocks[..4].fill(None);
    let plan = bench.compute_in(1, &blocks, 0, 8 * CHUNK);
    assert_eq!(num_chunks(&plan), 4, "not those of the head");
    bench.done(&plan);

    bench.begin(2, &prompt, RequestParams::default());
    assert_eq!(bench.loadable(2, 2 * CHUNK), 6 * CHUNK);
    let mut table = bench.blocks(8);
    table[2..7].fill(None);
    let copy = bench.connector.blocks_allocated(RequestId(2), &[&table]).unwrap();
    bench.idle();
    bench.report(copy, CopyResult::Done);
    // The first two are out of the window, and another request's from this step on.
    let blocks = bench.blocks(1);
    let plan = bench.compute_in(2, &blocks, 8 * CHUNK, 8 * CHUNK + 1);
    assert_eq!(num_chunks(&plan), 0);
}

#[test]
fn a_block_for_a_state_that_was_not_loaded_is_never_stored() {
    let mut bench = bench_with(8, |options| options.groups[0].kind = GroupKind::State);
    let prompt = tokens(1, 2 * CHUNK + 1);
    bench.begin(1, &prompt, RequestParams::default());
    let blocks = [None, bench.blocks(1)[0]];
    let plan = bench.compute_in(1, &blocks, 0, 2 * CHUNK);
    assert_eq!(num_chunks(&plan), 1, "that of the second block");
    bench.done(&plan);
    bench.begin(2, &prompt, RequestParams::default());
    assert_eq!(bench.loadable(2, 0), 2 * CHUNK);
    let copy = bench.load(2, 2 * CHUNK);
    assert_eq!(bench.idle().loads[0].chunks().len(), 1);
    bench.report(copy, CopyResult::Done);
    let blocks = bench.blocks(1);
    let plan = bench.compute_in(2, &blocks, 2 * CHUNK, 2 * CHUNK + 1);
    assert_eq!(num_chunks(&plan), 0, "nothing was ever written into the first block");
}

#[test]
fn a_failed_load_has_spoilt_the_block_in_which_it_began() {
    let mut bench = bench(8);
    bench.serve(1, &tokens(1, 2 * CHUNK));
    bench.begin(2, &tokens(1, 3 * CHUNK), RequestParams::default());
    assert_eq!(bench.loadable(2, CHUNK + 4), CHUNK - 4);
    let copy = bench.load(2, 2 * CHUNK);
    assert_eq!(
        bench.idle().loads[0].chunks().map(|chunk| (chunk.skip, chunk.blocks.len())).collect::<Vec<_>>(),
        [(0, 1)]
    );
    let outcome = bench.report(copy, CopyResult::Failed);
    assert_eq!(outcome, CopyOutcome::LoadFailed { request: RequestId(2), computed: CHUNK });
}

#[test]
fn a_token_that_comes_after_a_match_does_not_narrow_what_is_loaded() {
    let mut bench = bench_with(8, |options| options.groups[0] = GroupOptions::window(CHUNK, CHUNK + 1));
    bench.serve(1, &tokens(1, 2 * CHUNK));
    bench.begin(2, &tokens(1, 2 * CHUNK), RequestParams::default());
    assert_eq!(bench.loadable(2, 0), 2 * CHUNK - 1);
    bench.connector.add_hashes(RequestId(2), 2 * CHUNK + 1, &[]).unwrap();
    bench.load(2, 2 * CHUNK);
    assert_eq!(
        bench.idle().loads[0].chunks().len(),
        2,
        "the last token attends to the end of the first block"
    );
}

#[test]
fn a_reset_takes_back_what_was_computed_behind_the_layers_of_a_load() {
    let mut bench = bench(8);
    bench.serve(1, &tokens(1, 2 * CHUNK));
    bench.begin(2, &tokens(1, 3 * CHUNK), RequestParams::default());
    bench.loadable(2, 0);
    let copy = bench.load(2, 2 * CHUNK);
    bench.compute(2, 2 * CHUNK, 3 * CHUNK);
    assert_eq!(bench.connector.reset().loads_void, [RequestId(2)]);
    assert_eq!(bench.report(copy, CopyResult::Failed), CopyOutcome::Void);
    let scheduled =
        [Scheduled { request: RequestId(2), kept_blocks: &[], new_blocks: &[], computed: 0, settled: CHUNK }];
    let plan = bench.connector.build_step(&StepInput { preempted: &[], scheduled: &scheduled });
    assert_eq!(plan.as_ref().map(num_chunks), Ok(1), "it computes, as it was told");
}

#[test]
fn a_report_of_a_load_that_no_worker_was_told_of_changes_nothing() {
    let mut bench = bench(8);
    bench.serve(1, &tokens(1, 2 * CHUNK));
    bench.begin(2, &tokens(1, 3 * CHUNK), RequestParams::default());
    bench.loadable(2, 0);
    let copy = bench.load(2, 2 * CHUNK);
    let error = bench.connector.copy_reported(copy, 0, CopyResult::Done);
    assert_eq!(error, Err(ConnectorError::NotOpen { copy, worker: 0 }));
    assert_eq!(bench.connector.request_finished(RequestId(2)), Ok(Finish::Settled));
}

#[test]
fn offers_may_be_as_large_as_there_are_numbers() {
    let mut bench = bench_with(8, |options| {
        options.groups.push(GroupOptions { pool: 1, ..GroupOptions::full(CHUNK) });
        options.offer_chunks_max = usize::MAX;
    });
    bench.begin(1, &tokens(1, 2 * CHUNK), RequestParams::default());
    let blocks = bench.blocks(2);
    let new_blocks = [&blocks[..], &blocks[..]];
    let scheduled = [Scheduled {
        request: RequestId(1),
        kept_blocks: &[],
        new_blocks: &new_blocks,
        computed: 0,
        settled: 2 * CHUNK,
    }];
    let plan = bench.connector.build_step(&StepInput { preempted: &[], scheduled: &scheduled }).unwrap();
    assert_eq!(num_chunks(&plan), 4);
}

#[test]
fn a_request_of_as_many_tokens_as_there_are_numbers_is_served() {
    let mut bench = bench_with(8, |options| {
        options.groups[0] = GroupOptions::window(1, 9);
        options.hash_tokens = 1;
        options.recompute_last = false;
    });
    bench.connector.new_request(RequestId(1), u32::MAX, RequestParams::default()).unwrap();
    assert_eq!(bench.loadable(1, u32::MAX - 5), 0);
    let last = Scheduled {
        request: RequestId(1),
        kept_blocks: &[],
        new_blocks: &[],
        computed: u32::MAX,
        settled: u32::MAX,
    };
    bench.connector.build_step(&StepInput { preempted: &[], scheduled: &[last] }).unwrap();
}

#[test]
fn a_match_pins_nothing_beyond_what_can_be_loaded() {
    let mut bench = bench(4);
    bench.serve(1, &tokens(1, 4 * CHUNK));
    let params = RequestParams { load_tokens_max: Some(CHUNK), ..RequestParams::default() };
    bench.begin(2, &tokens(1, 4 * CHUNK + 1), params);
    assert_eq!(bench.loadable(2, 0), CHUNK);
    assert_eq!(bench.connector.counts().pinned, 1);
}

#[test]
fn nobody_waits_for_the_chunks_of_a_store_that_is_given_up() {
    let mut bench = bench(8);
    bench.begin(1, &tokens(1, 2 * CHUNK), RequestParams::default());
    let store = bench.compute(1, 0, 2 * CHUNK).stores[0].copy;
    bench.report(store, CopyResult::FailedAndHeld);
    bench.begin(2, &tokens(1, 3 * CHUNK), RequestParams::default());
    assert_eq!(bench.connector.match_prefix(RequestId(2), 0), Ok(PrefixMatch::Loadable(0)));
}

#[test]
fn chunks_that_were_held_are_offered_again() {
    let mut bench = bench(8);
    bench.begin(1, &tokens(1, 4 * CHUNK), RequestParams::default());
    let store = bench.compute(1, 0, 2 * CHUNK).stores[0].copy;
    bench.report(store, CopyResult::FailedAndHeld);
    let plan = bench.compute(1, 2 * CHUNK, 3 * CHUNK);
    bench.done(&plan);
    bench.connector.copy_released(store, 0).unwrap();
    let plan = bench.compute_in(1, &[], 3 * CHUNK, 3 * CHUNK);
    bench.done(&plan);
    assert_eq!(bench.connector.counts().evictable, 3, "no tail without its head");
}

#[test]
fn patience_begins_anew_when_a_request_does() {
    let mut bench = bench(8);
    bench.begin(1, &tokens(1, 2 * CHUNK), RequestParams::default());
    bench.compute(1, 0, 2 * CHUNK);
    bench.begin(2, &tokens(1, 3 * CHUNK), RequestParams::default());
    assert_eq!(bench.connector.match_prefix(RequestId(2), 0), Ok(PrefixMatch::AskAgain));
    // The engine does not wait.
    bench.compute(2, 0, CHUNK);
    bench.clock.advance(Duration::from_secs(5));
    bench.connector.build_step(&StepInput { preempted: &[RequestId(2)], scheduled: &[] }).unwrap();
    assert_eq!(bench.connector.match_prefix(RequestId(2), 0), Ok(PrefixMatch::AskAgain));
}

#[test]
fn a_copy_that_a_device_holds_for_ever_keeps_no_engine_awake() {
    let mut bench = bench(8);
    bench.begin(1, &tokens(1, 2 * CHUNK), RequestParams::default());
    let store = bench.compute(1, 0, 2 * CHUNK).stores[0].copy;
    bench.report(store, CopyResult::FailedAndHeld);
    let _ = bench.connector.request_finished(RequestId(1));
    assert!(!bench.connector.has_pending_work());
}

#[test]
fn chunks_whose_store_by_another_request_failed_are_offered_again() {
    let mut bench = bench(8);
    bench.begin(1, &tokens(1, 2 * CHUNK), RequestParams::default());
    let store = bench.compute(1, 0, 2 * CHUNK).stores[0].copy;
    bench.begin(2, &tokens(1, 4 * CHUNK), RequestParams::default());
    let plan = bench.compute(2, 0, 3 * CHUNK);
    bench.done(&plan);
    bench.report(store, CopyResult::Failed);
    let plan = bench.compute(2, 3 * CHUNK, 4 * CHUNK);
    bench.done(&plan);
    assert_eq!(bench.connector.counts().evictable, 4, "no tail without its head");
}
