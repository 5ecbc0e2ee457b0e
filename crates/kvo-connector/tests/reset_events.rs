//! What a reset finds on its way into the primary tier.

use std::collections::BTreeSet;

use kvo_connector::{
    BlockHasher, Connector, ConnectorOptions, EventDetail, Finish, GroupOptions, Namespace, PrefixMatch,
    RequestParams, StepInput,
};
use kvo_core::{
    EventKind, JobRejected, ManualClock, Medium, OffloadKey, RequestId, SecondaryTier, TierCompletion,
    TierJob, TierLookup,
};
use kvo_cpu::{CpuManager, CpuOptions};
use kvo_cuda::Fingerprint;
use kvo_policies::Lru;
use kvo_tiering::{TieringManager, TieringOptions};

const CHUNK: u32 = 16;

/// Has every chunk, and brings what it is asked for by the next poll.
struct HasAll(Vec<TierCompletion>);

impl SecondaryTier for HasAll {
    fn name(&self) -> &'static str {
        "has all"
    }

    fn medium(&self) -> Medium {
        Medium::Ssd
    }

    fn lookup(&mut self, _: RequestId, _: &OffloadKey) -> TierLookup {
        TierLookup::Hit
    }

    fn submit(&mut self, job: TierJob) -> Result<(), JobRejected> {
        self.0.push(TierCompletion::done(job.id));
        Ok(())
    }

    fn poll(&mut self, done: &mut Vec<TierCompletion>) {
        done.append(&mut self.0);
    }
}

/// A connector that tells of blocks, on a tier that has all of them.
fn connector() -> Connector<TieringManager<Lru>> {
    let options = CpuOptions { record_events: true, ..CpuOptions::new(8) };
    let primary = CpuManager::new(options, Lru::new(8)).unwrap();
    let tiers: Vec<Box<dyn SecondaryTier>> = vec![Box::new(HasAll(Vec::new()))];
    let clock = Box::new(ManualClock::default());
    let manager = TieringManager::new(primary, tiers, TieringOptions::new(1), clock).unwrap();
    let options = ConnectorOptions {
        events: Some(EventDetail::Parents),
        ..ConnectorOptions::new(
            Namespace::new(Fingerprint([0; 32]), 0),
            vec![GroupOptions::full(CHUNK)],
            CHUNK,
        )
    };
    Connector::new(options, manager, Box::new(ManualClock::default())).unwrap()
}

/// A request of two chunks asks for them, and they are to come.
fn ask(connector: &mut Connector<TieringManager<Lru>>) {
    let tokens: Vec<u32> = (0..2 * CHUNK).collect();
    connector.new_request(RequestId(1), 2 * CHUNK, RequestParams::default()).unwrap();
    let hashes = BlockHasher::new(b"").blocks(CHUNK as usize, &tokens);
    connector.add_hashes(RequestId(1), 2 * CHUNK, &hashes).unwrap();
    assert_eq!(connector.match_prefix(RequestId(1), 0), Ok(PrefixMatch::AskAgain));
}

/// The manager collects what tiers have reported at the beginning of a reset, and that makes events.
#[test]
fn block_events_do_not_tell_of_a_chunk_that_arrived_with_the_reset_that_dropped_it() {
    let mut connector = connector();
    ask(&mut connector);
    connector.build_step(&StepInput::default()).unwrap();
    connector.reset();
    let (mut events, mut there) = (Vec::new(), BTreeSet::new());
    connector.take_block_events(&mut events);
    assert!(events.iter().any(|event| event.kind == EventKind::Stored), "the chunks arrived: {events:?}");
    for event in events {
        match event.kind {
            EventKind::Stored => assert!(there.insert(event.block)),
            _ => assert!(there.remove(&event.block)),
        }
    }
    assert_eq!(there, BTreeSet::new());
    assert_eq!(connector.counts().evictable, 0);
}

/// What a request has asked for comes, whether it waits for it or not.
#[test]
fn a_chunk_that_comes_up_for_a_request_that_has_ended_is_told_of_with_all_that_is_known() {
    let mut connector = connector();
    ask(&mut connector);
    assert_eq!(connector.request_finished(RequestId(1)), Ok(Finish::Settled));
    let mut events = Vec::new();
    for _ in 0..2 {
        connector.build_step(&StepInput::default()).unwrap();
    }
    connector.take_block_events(&mut events);
    assert!(events.len() == 2 && events.iter().all(|event| event.kind == EventKind::Stored), "{events:?}");
    assert!(events.iter().all(|event| event.detail.is_some()), "{events:?}");

    events.clear();
    connector.reset();
    connector.take_block_events(&mut events);
    assert!(events.len() == 2 && events.iter().all(|event| event.kind == EventKind::Removed), "{events:?}");
    assert_eq!(connector.stats().chunks_known, 0, "no request names them, no tier has them");
}

/// Nothing is kept of chunks that never came.
#[test]
fn a_reset_forgets_chunks_that_were_on_their_way_for_nobody() {
    let mut connector = connector();
    ask(&mut connector);
    assert_eq!(connector.request_finished(RequestId(1)), Ok(Finish::Settled));
    assert_eq!(connector.stats().chunks_known, 2);
    // They have not set out yet, and no event tells that they never will.
    connector.reset();
    assert_eq!(connector.stats().chunks_known, 0);
}
