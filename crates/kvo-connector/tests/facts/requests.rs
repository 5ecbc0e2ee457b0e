//! Requests, workers and resets.

use std::{collections::BTreeMap, time::Duration};

use kvo_connector::{
    Connector, ConnectorError, ConnectorOptions, CopyOutcome, CopyResult, EventDetail, Finish, GroupOptions,
    RequestParams, Scheduled, StepInput, StepPlan,
};
use kvo_core::{BlockHash, EventKind, ManualClock, OffloadManager, RequestId, SlotId};
use kvo_cpu::{CpuManager, CpuOptions};
use kvo_policies::Lru;

use crate::rig::{Bench, CHUNK, NAMESPACE, bench, bench_with, tokens};

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
fn a_load_that_no_worker_was_told_of_is_not_late() {
    let mut bench = bench(4);
    bench.serve(1, &tokens(1, 2 * CHUNK));
    bench.begin(2, &tokens(1, 3 * CHUNK), RequestParams::default());
    bench.loadable(2, 0);
    let load = bench.load(2, 2 * CHUNK);
    let mut late = Vec::new();
    bench.clock.advance(Duration::from_mins(1));
    bench.connector.take_late(&mut late);
    assert_eq!(late, []);
    assert_eq!(bench.idle().loads[0].copy, load);
    // From then on it has its time.
    bench.clock.advance(Duration::from_secs(59));
    bench.connector.take_late(&mut late);
    assert_eq!(late, []);
    bench.clock.advance(Duration::from_secs(1));
    bench.connector.take_late(&mut late);
    assert_eq!(late, [CopyOutcome::LoadFailed { request: RequestId(2), computed: 0 }]);
}

#[test]
fn copies_without_any_time_are_refused() {
    let groups = vec![GroupOptions::full(CHUNK)];
    let options =
        ConnectorOptions { copy_patience: Duration::ZERO, ..ConnectorOptions::new(NAMESPACE, groups, CHUNK) };
    check_refused(options, "copy_patience must be at least 1");
}

/// A boundary needs no chunk there: a match of it was a load of none, and ended the process.
#[test]
fn groups_whose_tokens_see_only_themselves_are_refused() {
    let groups = vec![GroupOptions::window(CHUNK, 1), GroupOptions::window(2 * CHUNK, 1)];
    let options = ConnectorOptions::new(NAMESPACE, groups.clone(), CHUNK);
    check_refused(options, "groups: no token attends to one before it, so there is nothing to load");
    // Beside others they are none's trouble.
    let mut bench = bench_with(8, |options| {
        options.groups = vec![groups[0], GroupOptions::full(CHUNK)];
        options.recompute_last = false;
    });
    for (id, wanted) in [(1, 0), (2, 2 * CHUNK)] {
        bench.begin(id, &tokens(1, 2 * CHUNK), RequestParams::default());
        assert_eq!(bench.loadable(id, 0), wanted);
        let tables = [bench.blocks(2), bench.blocks(2)];
        if wanted == 0 {
            let plan = bench.compute_tables(id, [&tables[0], &tables[1]], 0, 2 * CHUNK);
            bench.done(&plan);
        } else {
            bench.connector.blocks_allocated(RequestId(id), &[&tables[0], &tables[1]]).unwrap();
            assert_eq!(bench.idle().loads[0].chunks().len(), 2, "those of the second group");
        }
    }
}

#[track_caller]
fn check_refused(options: ConnectorOptions, why: &str) {
    let manager = CpuManager::new(CpuOptions::new(4), Lru::new(4)).unwrap();
    let error = Connector::new(options, manager, Box::new(ManualClock::default()))
        .err()
        .map(|error| error.to_string());
    assert_eq!(error.as_deref(), Some(why));
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
fn a_copy_that_a_device_holds_for_ever_keeps_no_engine_awake() {
    let mut bench = bench(8);
    bench.begin(1, &tokens(1, 2 * CHUNK), RequestParams::default());
    let store = bench.compute(1, 0, 2 * CHUNK).stores[0].copy;
    bench.report(store, CopyResult::FailedAndHeld);
    let _ = bench.connector.request_finished(RequestId(1));
    assert!(!bench.connector.has_pending_work());
}

/// The chunks that a router knows of, by name, with the chunk before each and its tokens.
#[derive(Default)]
struct Router(BTreeMap<BlockHash, (Option<BlockHash>, u32)>);

impl Router {
    /// Follows what has happened since the last time: each chunk comes once, and goes once.
    #[track_caller]
    fn follow(&mut self, bench: &mut Bench) -> usize {
        let mut events = Vec::new();
        bench.connector.take_block_events(&mut events);
        for event in &events {
            let detail = event.detail.as_ref().expect("its request has named it");
            let known = (detail.parent, detail.num_tokens);
            match event.kind {
                EventKind::Stored => assert_eq!(self.0.insert(event.block, known), None, "it was there"),
                _ => assert_eq!(self.0.remove(&event.block), Some(known), "it was not there"),
            }
        }
        events.len()
    }

    /// The tokens of a prompt that it expects to be found.
    fn expected(&self, hashes: &[BlockHash]) -> u32 {
        let (mut parent, mut tokens) = (None, 0);
        while let Some((name, (_, num_tokens))) =
            self.0.iter().find(|(name, (before, _))| *before == parent && hashes.contains(name))
        {
            (parent, tokens) = (Some(*name), tokens + num_tokens);
        }
        tokens
    }
}

/// B58: who goes by what it was told expects no more than a match finds, however chunks come and go and prompts part
/// inside of them.
#[test]
fn a_router_expects_no_more_than_can_be_loaded() {
    let mut bench = bench_with(3, |options| {
        options.groups[0].blocks_per_chunk = 4;
        options.events = Some(EventDetail::Parents);
    });
    // The second parts from the first in the last block of its first chunk, the third in the last block of its second.
    let of = |shared: u32, own: u32| {
        let mut prompt = tokens(1, shared * CHUNK);
        prompt.extend(tokens(own, (8 - shared) * CHUNK + 1));
        prompt
    };
    let prompts = [of(8, 1), of(3, 2), of(7, 3), of(0, 4)];
    let (mut router, mut num_events, mut num_expected) = (Router::default(), 0, 0);
    for id in 0..24_u64 {
        bench.serve(id, &prompts[usize::try_from(id * 5 % 7 % 4).unwrap()]);
        if id % 3 == 2 {
            continue;
        }
        num_events += router.follow(&mut bench);
        assert_eq!(router.follow(&mut bench), 0, "each is told once");
        for (prompt, other) in prompts.iter().zip(100..) {
            bench.begin(other, prompt, RequestParams::default());
            let expected = router.expected(&Bench::names(prompt));
            assert_eq!(bench.loadable(other, 0), expected, "prompt {other} after {id}");
            num_expected += expected;
            bench.idle();
            assert_eq!(bench.connector.request_finished(RequestId(other)), Ok(Finish::Settled));
        }
    }
    assert!(num_events > 20 && num_expected > 20 * CHUNK, "{num_events} events, {num_expected} tokens");
}

#[test]
fn routers_are_told_of_blocks_with_their_parents_and_tokens() {
    let mut bench = bench_with(2, |options| options.events = Some(EventDetail::Tokens));
    let ids = tokens(1, 2 * CHUNK);
    bench.connector.new_request(RequestId(1), 2 * CHUNK, RequestParams::default()).unwrap();
    bench.connector.add_tokens(RequestId(1), &ids).unwrap();
    bench.connector.add_hashes(RequestId(1), 2 * CHUNK, &Bench::hashes(&ids)).unwrap();
    let names = Bench::names(&ids);
    let plan = bench.compute(1, 0, 2 * CHUNK);
    assert_eq!(bench.connector.request_finished(RequestId(1)), Ok(Finish::CopiesOpen(1)));
    bench.done(&plan);
    bench.serve(2, &tokens(2, CHUNK)); // takes the room of the tail
    let _ = bench.connector.reset();

    let mut events = Vec::new();
    bench.connector.take_block_events(&mut events);
    let told: Vec<_> = events.iter().map(|event| (event.kind, event.block)).collect();
    let other = Bench::names(&tokens(2, CHUNK))[0];
    let (stored, removed) = (EventKind::Stored, EventKind::Removed);
    assert_eq!(told[..4], [(stored, names[0]), (stored, names[1]), (removed, names[1]), (stored, other)]);
    let mut gone = told[4..].to_vec();
    gone.sort_by_key(|(_, block)| *block != names[0]);
    assert_eq!(gone, [(removed, names[0]), (removed, other)], "the reset");
    let detail = events[1].detail.as_ref().unwrap();
    assert_eq!((detail.parent, detail.num_tokens), (Some(names[0]), CHUNK));
    assert_eq!(detail.tokens, ids[CHUNK as usize..]);
    assert_eq!(events[0].detail.as_ref().unwrap().parent, None);
    assert_eq!(events[3].detail.as_ref().unwrap().tokens, [], "nobody gave them");
    assert_eq!(bench.connector.stats().chunks_known, 0, "no request names them, no tier has them");
}
