//! What a reset finds on its way into the primary tier.

use std::collections::BTreeSet;

use kvo_connector::{
    BlockHasher, Connector, ConnectorOptions, EventDetail, GroupOptions, PrefixMatch, RequestParams,
    StepInput,
};
use kvo_core::{
    EventKind, JobRejected, ManualClock, Medium, OffloadKey, RequestId, SecondaryTier, TierCompletion,
    TierJob, TierLookup,
};
use kvo_cpu::{CpuManager, CpuOptions};
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

/// The manager collects what tiers have reported at the beginning of a reset, and that makes events.
#[test]
fn block_events_do_not_tell_of_a_chunk_that_arrived_with_the_reset_that_dropped_it() {
    let options = CpuOptions { record_events: true, ..CpuOptions::new(8) };
    let primary = CpuManager::new(options, Lru::new(8)).unwrap();
    let tiers: Vec<Box<dyn SecondaryTier>> = vec![Box::new(HasAll(Vec::new()))];
    let clock = Box::new(ManualClock::default());
    let manager = TieringManager::new(primary, tiers, TieringOptions::new(1), clock).unwrap();
    let options = ConnectorOptions {
        events: Some(EventDetail::Parents),
        ..ConnectorOptions::new(vec![GroupOptions::full(CHUNK)], CHUNK)
    };
    let mut connector = Connector::new(options, manager, Box::new(ManualClock::default())).unwrap();
    let tokens: Vec<u32> = (0..2 * CHUNK).collect();
    connector.new_request(RequestId(1), 2 * CHUNK, RequestParams::default()).unwrap();
    let hashes = BlockHasher::new(b"").blocks(CHUNK as usize, &tokens);
    connector.add_hashes(RequestId(1), 2 * CHUNK, &hashes).unwrap();
    assert_eq!(connector.match_prefix(RequestId(1), 0), Ok(PrefixMatch::AskAgain));
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
