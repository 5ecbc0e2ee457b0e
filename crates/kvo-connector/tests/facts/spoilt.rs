//! Loads that failed or were void: what a request has still, and where it goes on.

use kvo_connector::{
    ConnectorError, CopyOutcome, CopyResult, Finish, GroupKind, GroupOptions, RequestParams, Scheduled,
    StepInput, VoidLoad,
};
use kvo_core::{BlockId, RequestId};

use crate::rig::{Bench, CHUNK, bench_with, num_chunks, tokens};

/// A group of that kind, and a request 2 that has computed so many tokens of its three chunks, two of which are stored.
fn computed_of(kind: GroupKind, computed: u32) -> (Bench, Vec<Option<BlockId>>) {
    let mut bench = bench_with(8, |options| options.groups[0].kind = kind);
    bench.serve(1, &tokens(1, 2 * CHUNK));
    bench.begin(2, &tokens(1, 3 * CHUNK), RequestParams::default());
    let blocks = bench.blocks(2);
    let plan = bench.compute_in(2, &blocks, 0, computed);
    bench.done(&plan);
    (bench, blocks)
}

/// Where a request goes on that has computed so many tokens, and whose load of the rest of the second chunk fails.
#[track_caller]
fn check_failed(kind: GroupKind, computed: u32, is_head_gone: bool, good: u32) {
    let (mut bench, mut blocks) = computed_of(kind, computed);
    assert_eq!(bench.loadable(2, computed), 2 * CHUNK - computed);
    if is_head_gone {
        blocks[0] = None;
    }
    let load = bench.connector.blocks_allocated(RequestId(2), &[&blocks]).unwrap();
    bench.idle();
    let outcome = bench.report(load, CopyResult::Failed);
    assert_eq!(outcome, CopyOutcome::LoadFailed { request: RequestId(2), computed: good });
}

#[test]
fn a_request_whose_window_is_gone_begins_anew_when_its_load_fails() {
    let window = GroupKind::Window { tokens: CHUNK };
    check_failed(window, 2 * CHUNK - 1, true, 0);
    // The token behind what it has attends to the first block, so that is there.
    check_failed(window, 2 * CHUNK - 4, false, CHUNK);
    check_failed(window, CHUNK, false, CHUNK);
}

#[test]
fn a_request_whose_state_is_gone_begins_anew_when_its_load_fails() {
    check_failed(GroupKind::State, CHUNK + 4, true, 0);
    check_failed(GroupKind::State, CHUNK, false, CHUNK);
}

/// What computes behind the layers of a load needs no window in front of it, and may have given that back.
#[test]
fn a_request_that_has_left_its_window_behind_begins_anew_when_its_load_fails() {
    for kind in [GroupKind::Window { tokens: CHUNK }, GroupKind::State] {
        let (mut bench, blocks) = computed_of(kind, CHUNK);
        bench.loadable(2, CHUNK);
        let load = bench.connector.blocks_allocated(RequestId(2), &[&blocks]).unwrap();
        bench.compute(2, 2 * CHUNK, 3 * CHUNK);
        let outcome = bench.report(load, CopyResult::Failed);
        assert_eq!(outcome, CopyOutcome::LoadFailed { request: RequestId(2), computed: 0 }, "{kind:?}");
    }
}

#[test]
fn of_several_groups_the_one_that_has_least_says_where_a_request_goes_on() {
    let mut bench = bench_with(16, |options| {
        options.groups = vec![GroupOptions::full(CHUNK), GroupOptions::window(CHUNK, CHUNK)];
    });
    let step = |bench: &mut Bench, id: u64, settled: u32| {
        let tables = [bench.blocks(2), bench.blocks(2)];
        let plan = bench.compute_tables(id, [&tables[0], &tables[1]], 0, settled);
        bench.done(&plan);
        tables
    };
    bench.begin(1, &tokens(1, 2 * CHUNK), RequestParams::default());
    step(&mut bench, 1, 2 * CHUNK);
    bench.begin(2, &tokens(1, 3 * CHUNK), RequestParams::default());
    let [full, mut window] = step(&mut bench, 2, 2 * CHUNK - 1);
    assert_eq!(bench.loadable(2, 2 * CHUNK - 1), 1);
    window[0] = None;
    let load = bench.connector.blocks_allocated(RequestId(2), &[&full, &window]).unwrap();
    bench.idle();
    let outcome = bench.report(load, CopyResult::Failed);
    assert_eq!(outcome, CopyOutcome::LoadFailed { request: RequestId(2), computed: 0 });
}

/// B25: a block in front of what was loaded is written when all is computed anew.
#[test]
fn compute_after_a_load_behind_layers_waits_for_who_uses_the_blocks_in_front_of_it() {
    for kind in [GroupKind::State, GroupKind::Window { tokens: 2 }] {
        for is_reset in [false, true] {
            let mut bench = bench_with(8, |options| options.groups[0].kind = kind);
            bench.serve(1, &tokens(1, 2 * CHUNK));
            bench.begin(3, &tokens(3, CHUNK), RequestParams::default());
            let used = bench.blocks(1);
            let store = bench.compute_in(3, &used, 0, CHUNK).stores[0].copy;
            assert_eq!(bench.connector.request_finished(RequestId(3)), Ok(Finish::CopiesOpen(1)));
            bench.begin(2, &tokens(1, 3 * CHUNK), RequestParams::default());
            assert_eq!(bench.loadable(2, 0), 2 * CHUNK);
            let table = [used[0], bench.blocks(1)[0]];
            let load = bench.connector.blocks_allocated(RequestId(2), &[&table]).unwrap();
            let plan = bench.compute(2, 2 * CHUNK, 2 * CHUNK + 1);
            assert_eq!((plan.loads[0].chunks().len(), plan.wait_for), (1, vec![]));
            if is_reset {
                let _ = bench.connector.reset();
            }
            bench.report(load, CopyResult::Failed);
            assert_eq!(bench.compute_in(2, &[], 0, 2 * CHUNK).wait_for, [store], "{kind:?}, {is_reset}");
        }
    }
}

/// A request 2 that has computed all but the last 12 tokens of its second chunk, the load of which a reset has met.
fn void_load() -> Bench {
    let (mut bench, blocks) = computed_of(GroupKind::Full, 2 * CHUNK - 12);
    assert_eq!(bench.loadable(2, 2 * CHUNK - 12), 12);
    let load = bench.connector.blocks_allocated(RequestId(2), &[&blocks]).unwrap();
    bench.idle();
    let flush = bench.connector.reset();
    assert_eq!(flush.loads_void, [VoidLoad { request: RequestId(2), computed: CHUNK }]);
    assert_eq!(bench.report(load, CopyResult::Failed), CopyOutcome::Void);
    bench
}

/// B23: nor is what a copy of before the reset may still write taken for good.
#[test]
fn a_request_does_not_go_on_behind_a_block_that_a_void_load_has_spoilt() {
    let mut bench = void_load();
    let one = Scheduled {
        request: RequestId(2),
        kept_blocks: &[],
        new_blocks: &[],
        computed: 2 * CHUNK - 12,
        settled: 2 * CHUNK,
    };
    let spoilt = ConnectorError::Spoilt { req: RequestId(2), computed: 2 * CHUNK - 12, good: CHUNK };
    let step = bench.connector.build_step(&StepInput { preempted: &[], scheduled: &[one] });
    assert_eq!(step, Err(spoilt.clone()));
    assert_eq!(bench.connector.match_prefix(RequestId(2), 2 * CHUNK - 12), Err(spoilt));
    // From there on it computes anew, and then goes on as ever.
    bench.compute_in(2, &[], CHUNK, 2 * CHUNK - 12);
    assert_eq!(num_chunks(&bench.compute_in(2, &[], 2 * CHUNK - 12, 2 * CHUNK)), 1);
}

#[test]
fn a_request_with_a_void_load_may_load_anew_or_begin_anew() {
    for begins_anew in [false, true] {
        let mut bench = void_load();
        bench.serve(3, &tokens(1, 2 * CHUNK));
        if begins_anew {
            bench.connector.build_step(&StepInput { preempted: &[RequestId(2)], scheduled: &[] }).unwrap();
            // Blocks of others, with all of it.
            bench.compute(2, 2 * CHUNK - 12, 2 * CHUNK);
        } else {
            assert_eq!(bench.loadable(2, CHUNK), CHUNK);
            let load = bench.load(2, 2 * CHUNK);
            bench.idle();
            bench.report(load, CopyResult::Done);
            bench.compute(2, 2 * CHUNK, 3 * CHUNK);
        }
    }
}

/// B37: whatever the engine says.
#[test]
fn a_request_does_not_go_on_behind_what_a_failed_load_was_to_bring() {
    let (mut bench, blocks) = computed_of(GroupKind::Full, CHUNK);
    bench.loadable(2, CHUNK);
    let load = bench.connector.blocks_allocated(RequestId(2), &[&blocks]).unwrap();
    bench.idle();
    bench.report(load, CopyResult::Failed);
    let one = Scheduled {
        request: RequestId(2),
        kept_blocks: &[],
        new_blocks: &[],
        computed: 2 * CHUNK,
        settled: 2 * CHUNK,
    };
    let step = bench.connector.build_step(&StepInput { preempted: &[], scheduled: &[one] });
    let spoilt = ConnectorError::Spoilt { req: RequestId(2), computed: 2 * CHUNK, good: CHUNK };
    assert_eq!(step, Err(spoilt));
    bench.compute_in(2, &[], CHUNK, 2 * CHUNK);
}
