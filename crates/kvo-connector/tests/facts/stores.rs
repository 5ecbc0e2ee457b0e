//! What is stored, and into which blocks nobody writes meanwhile.

use kvo_connector::{
    BlockHasher, ConnectorError, CopyOutcome, CopyResult, Finish, GroupOptions, RequestParams, Scheduled,
    StepInput,
};
use kvo_core::{BlockId, RequestError, RequestId};

use crate::rig::{Bench, CHUNK, bench, bench_with, num_chunks, tokens};

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
fn a_number_that_is_used_again_has_nothing_of_before() {
    let mut bench = bench_with(8, |options| options.keeps_blocks = false);
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
fn a_number_whose_blocks_are_kept_is_not_used_again() {
    let mut bench = bench(8);
    bench.begin(1, &tokens(1, 2 * CHUNK), RequestParams::default());
    let store = bench.compute(1, 0, 2 * CHUNK).stores[0].copy;
    assert_eq!(bench.connector.request_finished(RequestId(1)), Ok(Finish::CopiesOpen(1)));
    let again = |bench: &mut Bench| bench.connector.new_request(RequestId(1), 1, RequestParams::default());
    let unsettled = ConnectorError::Unsettled { req: RequestId(1) };
    assert_eq!(again(&mut bench), Err(unsettled.clone()));
    bench.report(store, CopyResult::Done);
    // Nobody was told.
    assert_eq!(again(&mut bench), Err(unsettled));
    let mut settled = Vec::new();
    bench.connector.take_settled(&mut settled);
    assert_eq!((settled, again(&mut bench)), (vec![RequestId(1)], Ok(())));
}

/// B25: as far as its copies went well the chunks are those of before, and of the others nothing is left.
#[test]
fn a_preempted_request_begins_anew_and_offers_all_its_chunks_again() {
    let mut bench = bench(8);
    bench.begin(1, &tokens(1, 4 * CHUNK), RequestParams::default());
    let store = bench.compute(1, 0, 2 * CHUNK).stores[0].copy;
    bench.connector.build_step(&StepInput { preempted: &[RequestId(1)], scheduled: &[] }).unwrap();
    assert_eq!(bench.report(store, CopyResult::Failed), CopyOutcome::Void);
    assert_eq!(bench.connector.counts().free, 8);
    let plan = bench.compute(1, 0, 3 * CHUNK);
    assert_eq!(num_chunks(&plan), 3);
}

/// B25: the copy of who had a block before is none of whoever has it next, and waited for by all.
#[test]
fn a_settled_request_may_leave_blocks_to_a_copy_of_who_had_them_before() {
    let mut bench = bench(8);
    bench.begin(1, &tokens(1, 2 * CHUNK), RequestParams::default());
    let blocks = bench.blocks(1);
    let store = bench.compute_in(1, &blocks, 0, CHUNK).stores[0].copy;
    bench.connector.build_step(&StepInput { preempted: &[RequestId(1)], scheduled: &[] }).unwrap();
    bench.begin(2, &tokens(2, CHUNK), RequestParams::default());
    assert_eq!(bench.compute_in(2, &blocks, 0, CHUNK - 1).wait_for, [store]);
    assert_eq!(bench.connector.request_finished(RequestId(2)), Ok(Finish::Settled));
    bench.begin(3, &tokens(3, CHUNK), RequestParams::default());
    assert_eq!(bench.compute_in(3, &blocks, 0, CHUNK - 1).wait_for, [store]);
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

/// Each of them stores what it has computed, and finds that afterwards, and nothing before.
#[test]
fn requests_of_other_salts_and_adapters_find_nothing_of_each_other() {
    let mut bench = bench(64);
    let prompt = tokens(1, 2 * CHUNK + 1);
    let [x, y] = [Some([1; 32]), Some([2; 32])];
    let whose = [(None, None), (x, None), (y, None), (None, x), (None, y), (x, x), (x, y), (y, x), (y, y)];
    for (nth, (adapter, salt)) in (0..).zip(whose) {
        let params = || RequestParams { adapter, salt, ..RequestParams::default() };
        bench.begin(2 * nth, &prompt, params());
        assert_eq!(bench.loadable(2 * nth, 0), 0, "adapter {adapter:?}, salt {salt:?}");
        let plan = bench.compute(2 * nth, 0, 2 * CHUNK);
        bench.done(&plan);
        bench.begin(2 * nth + 1, &prompt, params());
        assert_eq!(bench.loadable(2 * nth + 1, 0), 2 * CHUNK, "adapter {adapter:?}, salt {salt:?}");
    }
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
fn a_step_that_contradicts_itself_changes_nothing() {
    let mut bench = bench(8);
    bench.begin(1, &tokens(1, 4 * CHUNK), RequestParams::default());
    let plan = bench.compute(1, 0, 2 * CHUNK);
    bench.done(&plan);
    let request = RequestId(1);
    let one =
        Scheduled { request, kept_blocks: &[], new_blocks: &[], computed: 2 * CHUNK, settled: 2 * CHUNK };
    let mut refused = |scheduled: &[Scheduled<'_>], preempted: &[RequestId]| {
        bench.connector.build_step(&StepInput { preempted, scheduled }).unwrap_err()
    };
    // Its blocks are taken, and it keeps some.
    let keeps = Scheduled { kept_blocks: &[2], ..one };
    let error = refused(&[keeps], &[request]);
    assert!(matches!(error, ConnectorError::TooManyKept { kept: 2, known: 0, .. }), "{error}");
    // It goes further, and once more from where it was.
    let twice = ConnectorError::ScheduledTwice { req: request };
    assert_eq!(refused(&[Scheduled { settled: 3 * CHUNK, ..one }, one], &[]), twice);
    assert_eq!(refused(&[one, one], &[]), twice);
    assert!(bench.compute_in(1, &[], 2 * CHUNK, 2 * CHUNK).stores.is_empty());
    let plan = bench.compute(1, 2 * CHUNK, 3 * CHUNK);
    assert_eq!(num_chunks(&plan), 1);
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

/// Nobody knows when a device lets go, and a window has use for what comes behind.
#[test]
fn a_chunk_that_a_device_holds_on_to_for_another_request_is_not_waited_for() {
    let mut bench = bench_with(8, |options| options.groups[0] = GroupOptions::window(CHUNK, 4 * CHUNK));
    bench.begin(1, &tokens(1, 2 * CHUNK), RequestParams::default());
    let store = bench.compute(1, 0, CHUNK).stores[0].copy;
    bench.begin(2, &tokens(1, 3 * CHUNK), RequestParams::default());
    assert_eq!(num_chunks(&bench.compute(2, 0, CHUNK)), 0, "it is pending");
    bench.report(store, CopyResult::FailedAndHeld);
    assert_eq!(num_chunks(&bench.compute(2, CHUNK, 2 * CHUNK)), 1, "as of whoever comes now");
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
