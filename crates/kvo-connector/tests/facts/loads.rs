//! What can be loaded, and how a load ends.

use std::time::Duration;

use kvo_connector::{
    ConnectorError, CopyOutcome, CopyResult, Economy, Finish, GroupKind, GroupOptions, PrefixMatch,
    RequestParams, Scheduled, StepInput, VoidLoad,
};
use kvo_core::{LoadError, RequestId};

use crate::rig::{Bench, CHUNK, bench, bench_with, num_chunks, tokens};

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

/// B67: between a match and its load nothing of it goes.
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

/// B67: nor does it stay for one who does not come back.
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

/// B16: nobody waits for ever for what is on its way.
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

/// B37: the request is told to compute what did not come.
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

/// B10: whoever wants the room waits for the last of the workers, and none is done twice.
#[test]
fn a_chunk_that_four_workers_load_stays_until_the_fourth_is_done() {
    let mut bench = bench_with(1, |options| options.num_workers = 4);
    bench.begin(1, &tokens(1, CHUNK), RequestParams::default());
    let store = bench.compute(1, 0, CHUNK).stores[0].copy;
    for worker in 0..4 {
        bench.connector.copy_reported(store, worker, CopyResult::Done).unwrap();
    }
    bench.begin(2, &tokens(1, 2 * CHUNK), RequestParams::default());
    assert_eq!(bench.loadable(2, 0), CHUNK);
    let load = bench.load(2, CHUNK);
    bench.begin(3, &tokens(3, CHUNK), RequestParams::default());
    let plan = bench.compute(3, 0, CHUNK);
    assert_eq!((plan.loads.len(), num_chunks(&plan)), (1, 0));
    for worker in [2, 0, 3] {
        assert_eq!(bench.connector.copy_reported(load, worker, CopyResult::Done), Ok(CopyOutcome::Open));
        let again = bench.connector.copy_reported(load, worker, CopyResult::Done);
        assert_eq!(again, Err(ConnectorError::NotOpen { copy: load, worker }));
        assert_eq!(num_chunks(&bench.compute_in(3, &[], CHUNK, CHUNK)), 0, "others still read the slot");
        assert_eq!(bench.connector.counts().pinned, 1);
    }
    let loaded = CopyOutcome::Loaded { request: RequestId(2), computed: CHUNK };
    assert_eq!(bench.connector.copy_reported(load, 1, CopyResult::Done), Ok(loaded));
    for worker in 0..=4 {
        assert!(bench.connector.copy_reported(load, worker, CopyResult::Done).is_err(), "a fifth");
    }
    assert_eq!(num_chunks(&bench.compute_in(3, &[], CHUNK, CHUNK)), 1);
}

/// B23: nothing of before a reset is left on this side either.
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
    assert_eq!(
        (flush.loads_void, flush.copies_open),
        (vec![VoidLoad { request: RequestId(3), computed: 0 }], 2)
    );
    assert_eq!(bench.connector.counts().free, 8);
    assert_eq!(num_chunks(&bench.compute(2, CHUNK, 2 * CHUNK)), 0);
    assert_eq!(bench.loadable(3, 0), 0);
    assert_eq!(bench.report(load, CopyResult::Done), CopyOutcome::Void);
    assert_eq!(num_chunks(&bench.compute_in(2, &[], 2 * CHUNK, 2 * CHUNK)), 0);
    assert_eq!(bench.report(store, CopyResult::Done), CopyOutcome::Void);
    assert_eq!(bench.connector.counts().free, 8, "what was stored before the reset is not there after it");
    assert_eq!(num_chunks(&bench.compute_in(2, &[], 2 * CHUNK, 2 * CHUNK)), 2, "offered again");
}

/// B08 and B41: what is found and not loaded is pinned no longer than its step, and what is loaded no longer than that.
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
        for _ in 0..2 {
            assert_eq!(bench.loadable(id, skip * CHUNK), (9 - skip) * CHUNK);
            assert_eq!(bench.connector.counts().pinned, 3);
            bench.idle();
            assert_eq!(bench.connector.counts().pinned, 0, "nobody has loaded it");
        }
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
        assert_eq!(bench.connector.counts().evictable, 3);
    }
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
    assert_eq!(bench.connector.reset().loads_void, [VoidLoad { request: RequestId(2), computed: 0 }]);
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
fn a_match_of_before_a_reset_is_none() {
    let mut bench = bench(8);
    bench.serve(1, &tokens(1, 2 * CHUNK));
    bench.begin(2, &tokens(1, 3 * CHUNK), RequestParams::default());
    assert_eq!(bench.loadable(2, 0), 2 * CHUNK);
    let _ = bench.connector.reset();
    let blocks = bench.blocks(2);
    let error = bench.connector.blocks_allocated(RequestId(2), &[&blocks]);
    assert_eq!(error, Err(ConnectorError::NoMatch { req: RequestId(2) }));
}

#[test]
fn two_chunks_of_one_name_are_not_loaded() {
    let mut bench = bench(8);
    bench.serve(1, &tokens(1, CHUNK));
    bench.connector.new_request(RequestId(2), 3 * CHUNK, RequestParams::default()).unwrap();
    let [hash] = Bench::hashes(&tokens(1, CHUNK))[..] else { panic!("one chunk, one hash") };
    bench.connector.add_hashes(RequestId(2), 3 * CHUNK, &[hash, hash]).unwrap();
    assert_eq!(bench.loadable(2, 0), 2 * CHUNK);
    let blocks = bench.blocks(2);
    let error = bench.connector.blocks_allocated(RequestId(2), &[&blocks]).unwrap_err();
    assert!(matches!(error, ConnectorError::Gone { error: LoadError::Repeated { .. }, .. }), "{error}");
    bench.idle();
    assert_eq!(bench.connector.counts().pinned, 0);
}

/// B07: what is of no use to a request is not pinned for it.
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
fn a_match_ends_where_loading_stops_being_worth_it() {
    let economy = Economy {
        prefill_tokens_per_s: 1000.0,
        context_tokens: f64::INFINITY,
        load_tokens_per_s: 10_000.0,
        promote_tokens_per_s: 100.0,
        load_latency: Duration::from_millis(1),
    };
    let mut bench = bench(16);
    bench.connector.set_economy(Some(economy)).unwrap();
    bench.serve(1, &tokens(1, 4 * CHUNK));
    // Chunks 4 and 5 are on their way, which takes longer than computing them would.
    bench.begin(2, &tokens(1, 6 * CHUNK), RequestParams::default());
    let plan = bench.compute(2, 0, 6 * CHUNK);
    bench.begin(3, &tokens(1, 8 * CHUNK), RequestParams::default());
    assert_eq!(bench.loadable(3, 0), 4 * CHUNK);
    assert_eq!(bench.load(3, 4 * CHUNK), bench.idle().loads[0].copy);
    bench.begin(4, &tokens(1, 8 * CHUNK), RequestParams::default());
    bench.connector.set_economy(Some(Economy { promote_tokens_per_s: 1e6, ..economy })).unwrap();
    assert_eq!(bench.connector.match_prefix(RequestId(4), 0), Ok(PrefixMatch::AskAgain));
    bench.done(&plan);
    assert_eq!(bench.loadable(4, 0), 6 * CHUNK);
    // With a link that is slower than compute nothing is loaded.
    bench.connector.set_economy(Some(Economy { load_tokens_per_s: 900.0, ..economy })).unwrap();
    assert_eq!(bench.loadable(4, 0), 0);
    let no_rate = Economy { prefill_tokens_per_s: 0.0, ..economy };
    let error = bench.connector.set_economy(Some(no_rate)).unwrap_err();
    assert_eq!(error.to_string(), "economy.prefill_tokens_per_s must be above 0");
    bench.connector.set_economy(None).unwrap();
    assert_eq!(bench.loadable(4, 0), 6 * CHUNK);
}

#[test]
fn what_was_loaded_in_front_of_the_copy_that_failed_need_not_be_computed() {
    let mut bench = bench_with(8, |options| options.load_chunks_max = 1);
    bench.serve(1, &tokens(1, 4 * CHUNK));
    bench.begin(2, &tokens(1, 5 * CHUNK), RequestParams::default());
    assert_eq!(bench.loadable(2, 0), 4 * CHUNK);
    let first = bench.load(2, 4 * CHUNK);
    let loads: Vec<_> = bench.idle().loads.iter().map(|load| load.copy).collect();
    assert_eq!((loads.len(), loads[0]), (4, first));
    // In whatever order they end.
    assert_eq!(bench.report(loads[3], CopyResult::Failed), CopyOutcome::Open);
    assert_eq!(bench.report(loads[0], CopyResult::Done), CopyOutcome::Open);
    assert_eq!(bench.report(loads[2], CopyResult::Failed), CopyOutcome::Open);
    let error = bench.connector.match_prefix(RequestId(2), 0).unwrap_err();
    assert_eq!(error, ConnectorError::Loading { req: RequestId(2) });
    let outcome = bench.report(loads[1], CopyResult::Done);
    assert_eq!(outcome, CopyOutcome::LoadFailed { request: RequestId(2), computed: 2 * CHUNK });
    assert_eq!(bench.connector.counts().pinned, 0);
    assert_eq!(bench.loadable(2, 2 * CHUNK), 0);
    // Its third and fourth chunk are offered, and are there.
    let plan = bench.compute_in(2, &[], 2 * CHUNK, 4 * CHUNK);
    assert_eq!(num_chunks(&plan), 0);
    let plan = bench.compute(2, 4 * CHUNK, 5 * CHUNK);
    assert_eq!(num_chunks(&plan), 1);
    bench.done(&plan);
    assert_eq!(bench.connector.request_finished(RequestId(2)), Ok(Finish::Settled));
}

#[test]
fn a_load_in_several_copies_is_there_when_all_are() {
    let mut bench = bench_with(16, |options| {
        options.load_chunks_max = 2;
        options.num_workers = 2;
    });
    bench.begin(1, &tokens(1, 5 * CHUNK), RequestParams::default());
    let plan = bench.compute(1, 0, 5 * CHUNK);
    for worker in 0..2 {
        bench.connector.copy_reported(plan.stores[0].copy, worker, CopyResult::Done).unwrap();
    }
    bench.begin(2, &tokens(1, 6 * CHUNK), RequestParams::default());
    bench.loadable(2, 0);
    bench.load(2, 5 * CHUNK);
    let loads: Vec<_> = bench.idle().loads.iter().map(|load| (load.copy, load.chunks().len())).collect();
    assert_eq!(loads.iter().map(|(_, chunks)| *chunks).collect::<Vec<_>>(), [2, 2, 1]);
    let mut outcomes = Vec::new();
    for (worker, nth) in [(0, 2), (1, 0), (1, 1), (0, 0), (0, 1), (1, 2)] {
        outcomes.push(bench.connector.copy_reported(loads[nth].0, worker, CopyResult::Done).unwrap());
    }
    let loaded = CopyOutcome::Loaded { request: RequestId(2), computed: 5 * CHUNK };
    assert_eq!(outcomes, [[CopyOutcome::Open; 5].as_slice(), &[loaded]].concat());
    assert_eq!(bench.connector.counts().pinned, 0);
}

#[test]
fn copies_of_a_load_that_a_reset_or_an_abort_meets_are_all_void() {
    for is_reset in [true, false] {
        let mut bench = bench_with(8, |options| options.load_chunks_max = 1);
        bench.serve(1, &tokens(1, 3 * CHUNK));
        bench.begin(2, &tokens(1, 4 * CHUNK), RequestParams::default());
        bench.loadable(2, 0);
        bench.load(2, 3 * CHUNK);
        let loads: Vec<_> = bench.idle().loads.iter().map(|load| load.copy).collect();
        assert_eq!(bench.report(loads[1], CopyResult::Failed), CopyOutcome::Open);
        if is_reset {
            assert_eq!(bench.connector.reset().loads_void, [VoidLoad { request: RequestId(2), computed: 0 }]);
        } else {
            assert_eq!(bench.connector.request_finished(RequestId(2)), Ok(Finish::CopiesOpen(2)));
        }
        for copy in [loads[0], loads[2]] {
            assert_eq!(bench.report(copy, CopyResult::Done), CopyOutcome::Void);
        }
        assert_eq!(bench.connector.stats().blocks_in_use, 0);
        assert_eq!(bench.connector.counts().pinned, 0);
        if is_reset {
            // It computes, and what it has computed is stored.
            let plan = bench.compute_in(2, &[], 0, 3 * CHUNK);
            assert_eq!(num_chunks(&plan), 3);
        }
    }
}

#[test]
fn a_window_is_loaded_whole_or_not_at_all_in_however_many_copies() {
    let mut bench = bench_with(16, |options| {
        options.groups = vec![GroupOptions::full(CHUNK), GroupOptions::window(CHUNK, 2 * CHUNK)];
        options.load_chunks_max = 1;
    });
    bench.begin(1, &tokens(1, 4 * CHUNK), RequestParams::default());
    let (full, window) = (bench.blocks(4), bench.blocks(4));
    let new_blocks = [full.as_slice(), &window];
    let request = RequestId(1);
    let scheduled =
        [Scheduled { request, kept_blocks: &[], new_blocks: &new_blocks, computed: 0, settled: 4 * CHUNK }];
    let plan = bench.connector.build_step(&StepInput { preempted: &[], scheduled: &scheduled }).unwrap();
    bench.done(&plan);
    bench.begin(2, &tokens(1, 5 * CHUNK), RequestParams::default());
    assert_eq!(bench.loadable(2, 0), 4 * CHUNK);
    let (full, window) = (bench.blocks(4), bench.blocks(4));
    bench.connector.blocks_allocated(RequestId(2), &[&full, &window]).unwrap();
    let loads: Vec<_> = bench.idle().loads.iter().map(|load| load.copy).collect();
    assert_eq!(loads.len(), 6, "four chunks, and two of the window");
    for copy in &loads[..5] {
        bench.report(*copy, CopyResult::Done);
    }
    let outcome = bench.report(loads[5], CopyResult::Failed);
    assert_eq!(outcome, CopyOutcome::LoadFailed { request: RequestId(2), computed: 0 });
}
