//! Weights that change under requests that run.

use std::time::Duration;

use kvo_connector::{
    ConnectorError, CopyOutcome, CopyResult, EventDetail, Namespace, PrefixMatch, RequestParams, StepInput,
    StepPlan, VoidLoad,
};
use kvo_core::{EventKind, RequestId};

use crate::rig::{Bench, CHUNK, NAMESPACE, bench, bench_with, num_chunks, tokens};

/// All of a request is computed anew.
fn begin_anew(bench: &mut Bench, id: u64, settled: u32) -> StepPlan {
    let preempted = [RequestId(id)];
    bench.connector.build_step(&StepInput { preempted: &preempted, scheduled: &[] }).unwrap();
    bench.compute(id, 0, settled)
}

#[test]
fn the_epoch_of_now_is_no_new_one() {
    let mut bench = bench(4);
    bench.serve(1, &tokens(1, 2 * CHUNK));
    assert_eq!(bench.connector.reset_to(1), Err(ConnectorError::SameEpoch { epoch: 1 }));
    bench.begin(2, &tokens(1, 3 * CHUNK), RequestParams::default());
    assert_eq!(bench.loadable(2, 0), 2 * CHUNK);
}

#[test]
fn what_a_request_computes_on_top_of_former_weights_is_not_stored_before_it_begins_anew() {
    let mut bench = bench(16);
    bench.begin(1, &tokens(1, 4 * CHUNK), RequestParams::default());
    let plan = bench.compute(1, 0, CHUNK);
    bench.done(&plan);
    let flush = bench.connector.reset_to(2).unwrap();
    assert_eq!((flush.epoch, flush.outdated), (2, vec![RequestId(1)]));
    // All of the second chunk is of the new weights, and attends to what is not.
    assert_eq!(num_chunks(&bench.compute(1, CHUNK, 3 * CHUNK)), 0);
    bench.begin(2, &tokens(1, 4 * CHUNK), RequestParams::default());
    assert_eq!(bench.loadable(2, 0), 0);
    let plan = begin_anew(&mut bench, 1, 3 * CHUNK);
    assert_eq!(num_chunks(&plan), 3);
    bench.done(&plan);
    assert_eq!(bench.loadable(2, 0), 3 * CHUNK);
}

#[test]
fn a_request_with_data_of_former_weights_loads_nothing_before_it_begins_anew() {
    let mut bench = bench(16);
    bench.begin(
        1,
        &tokens(1, 4 * CHUNK),
        RequestParams { store_tokens_max: Some(0), ..RequestParams::default() },
    );
    bench.compute(1, 0, CHUNK);
    bench.connector.reset_to(2).unwrap();
    bench.serve(2, &tokens(1, 3 * CHUNK));
    assert_eq!(bench.loadable(1, CHUNK), 0);
    // It has blocks still, whatever it says.
    assert_eq!(bench.loadable(1, 0), 0);
    let preempted = [RequestId(1)];
    bench.connector.build_step(&StepInput { preempted: &preempted, scheduled: &[] }).unwrap();
    assert_eq!(bench.loadable(1, 0), 3 * CHUNK);
}

#[test]
fn a_request_that_has_not_begun_is_served_as_if_it_came_after_the_change() {
    let mut bench = bench(16);
    bench.begin(1, &tokens(1, 3 * CHUNK), RequestParams::default());
    assert_eq!(bench.loadable(1, 0), 0);
    assert_eq!(bench.connector.reset_to(2).unwrap().outdated, []);
    let plan = bench.compute(1, 0, 3 * CHUNK);
    assert_eq!(num_chunks(&plan), 3);
    bench.done(&plan);
    bench.begin(2, &tokens(1, 4 * CHUNK), RequestParams::default());
    assert_eq!(bench.loadable(2, 0), 3 * CHUNK);
}

/// What it has waited for is gone, and it waits for something else.
#[test]
fn patience_begins_anew_behind_a_reset() {
    for epoch in [1, 2] {
        let mut bench = bench(16);
        bench.begin(1, &tokens(1, CHUNK), RequestParams::default());
        let store = bench.compute(1, 0, CHUNK).stores[0].copy;
        bench.begin(2, &tokens(1, 2 * CHUNK), RequestParams::default());
        let asks = |bench: &mut Bench| bench.connector.match_prefix(RequestId(2), 0).unwrap();
        assert_eq!(asks(&mut bench), PrefixMatch::AskAgain);
        bench.clock.advance(Duration::from_millis(900));
        if epoch == 1 {
            bench.connector.reset();
        } else {
            bench.connector.reset_to(epoch).unwrap();
        }
        bench.report(store, CopyResult::Done);
        bench.begin(3, &tokens(1, CHUNK), RequestParams::default());
        assert_eq!(num_chunks(&bench.compute(3, 0, CHUNK)), 1);
        bench.clock.advance(Duration::from_millis(200));
        assert_eq!(asks(&mut bench), PrefixMatch::AskAgain, "epoch {epoch}");
    }
}

#[test]
fn what_was_found_on_the_gpu_before_the_change_counts_as_of_before() {
    let mut bench = bench(16);
    bench.begin(1, &tokens(1, 3 * CHUNK), RequestParams::default());
    assert_eq!(bench.loadable(1, CHUNK), 0);
    assert_eq!(bench.connector.reset_to(2).unwrap().outdated, [RequestId(1)]);
    assert_eq!(num_chunks(&bench.compute(1, CHUNK, 3 * CHUNK)), 0);
    // Another one asks again, and the engine has forgotten what it had.
    bench.begin(2, &tokens(2, 3 * CHUNK), RequestParams::default());
    assert_eq!(bench.loadable(2, CHUNK), 0);
    bench.connector.reset_to(3).unwrap();
    assert_eq!(bench.loadable(2, 0), 0);
    assert_eq!(num_chunks(&bench.compute(2, 0, 3 * CHUNK)), 3);
}

#[test]
fn a_load_of_former_weights_is_void() {
    let mut bench = bench(16);
    bench.serve(1, &tokens(1, 2 * CHUNK));
    bench.begin(2, &tokens(1, 3 * CHUNK), RequestParams::default());
    assert_eq!(bench.loadable(2, 0), 2 * CHUNK);
    let load = bench.load(2, 2 * CHUNK);
    bench.idle();
    let flush = bench.connector.reset_to(2).unwrap();
    assert_eq!(
        (flush.loads_void, flush.copies_open),
        (vec![VoidLoad { request: RequestId(2), computed: 0 }], 1)
    );
    assert_eq!(flush.outdated, [], "nothing of it had come");
    assert_eq!(bench.report(load, CopyResult::Done), CopyOutcome::Void);
    assert_eq!(num_chunks(&begin_anew(&mut bench, 2, 3 * CHUNK)), 3);
}

#[test]
fn what_a_load_had_brought_before_the_change_is_of_former_weights() {
    for last in [CopyResult::Done, CopyResult::Failed] {
        let mut bench = bench_with(16, |options| options.load_chunks_max = 1);
        bench.serve(1, &tokens(1, 2 * CHUNK));
        bench.begin(2, &tokens(1, 3 * CHUNK), RequestParams::default());
        assert_eq!(bench.loadable(2, 0), 2 * CHUNK);
        bench.load(2, 2 * CHUNK);
        let loads: Vec<_> = bench.idle().loads.iter().map(|load| load.copy).collect();
        bench.report(loads[0], CopyResult::Done);
        bench.report(loads[1], last);
        assert_eq!(bench.connector.reset_to(2).unwrap().outdated, [RequestId(2)], "{last:?}");
        let computed = if last == CopyResult::Done { 2 * CHUNK } else { CHUNK };
        assert_eq!(num_chunks(&bench.compute(2, computed, 3 * CHUNK)), 0);
    }
}

#[test]
fn weights_that_come_again_do_not_make_mixed_data_good() {
    let mut bench = bench(16);
    bench.begin(1, &tokens(1, 4 * CHUNK), RequestParams::default());
    let plan = bench.compute(1, 0, CHUNK);
    bench.done(&plan);
    bench.connector.reset_to(2).unwrap();
    bench.compute(1, CHUNK, 2 * CHUNK);
    assert_eq!(bench.connector.reset_to(1).unwrap().outdated, [RequestId(1)]);
    assert_eq!(num_chunks(&bench.compute(1, 2 * CHUNK, 4 * CHUNK)), 0);
}

#[test]
fn routers_are_told_of_names_that_they_can_make_and_of_what_new_weights_make_useless() {
    let mut bench = bench_with(8, |options| options.events = Some(EventDetail::Parents));
    let (adapter, salt) = (Some([5; 32]), Some([6; 32]));
    let params = RequestParams { adapter, salt, ..RequestParams::default() };
    bench.begin(1, &tokens(1, 2 * CHUNK), params);
    let plan = bench.compute(1, 0, 2 * CHUNK);
    bench.done(&plan);
    let told = |bench: &mut Bench| {
        let mut events = Vec::new();
        bench.connector.take_block_events(&mut events);
        events
    };
    let hashes = Bench::hashes(&tokens(1, 2 * CHUNK));
    let names = |namespace: Namespace| {
        let names = namespace.names(adapter.as_ref(), salt.as_ref());
        hashes.iter().map(|hash| names.name(*hash)).collect::<Vec<_>>()
    };
    let events = told(&mut bench);
    assert_eq!(events.iter().map(|event| event.block).collect::<Vec<_>>(), names(NAMESPACE));
    let detail = events[1].detail.as_ref().unwrap();
    assert_eq!((detail.hash, detail.adapter, detail.is_salted), (hashes[1], adapter, true));
    assert_eq!(detail.parent, Some(events[0].block));
    // The request stores the same again, by other weights.
    bench.connector.reset_to(2).unwrap();
    let gone = told(&mut bench);
    assert!(gone.iter().all(|event| event.kind == EventKind::Removed));
    let mut blocks: Vec<_> = gone.iter().map(|event| event.block).collect();
    blocks.sort_unstable();
    let mut before = names(NAMESPACE);
    before.sort_unstable();
    assert_eq!(blocks, before);
    let plan = begin_anew(&mut bench, 1, 2 * CHUNK);
    bench.done(&plan);
    let events = told(&mut bench);
    let after = names(Namespace { epoch: 2, ..NAMESPACE });
    assert_eq!(events.iter().map(|event| event.block).collect::<Vec<_>>(), after);
    assert_eq!(events[1].detail.as_ref().unwrap().parent, Some(after[0]));
    let _ = bench.connector.request_finished(RequestId(1));
    assert_eq!(bench.connector.stats().chunks_known, 2, "of now");
}
