//! The end of all tiers: each is told to, with the time that is left, whatever became of the others.

use std::{
    error::Error,
    sync::{Arc, Mutex},
    time::Duration,
};

use kvo_core::{
    BlockHash, EventKind, GroupIdx, JobRejected, LookupResult, ManualClock, Medium, OffloadKey,
    OffloadManager, RejectReason, RequestContext, RequestId, SecondaryTier, StoreOutcome, TierCompletion,
    TierJob, TierLookup, TransferResult,
};
use kvo_cpu::{CpuManager, CpuOptions};
use kvo_policies::Lru;
use kvo_tiering::{TieringManager, TieringOptions};

type Log = Arc<Mutex<Vec<(&'static str, Duration)>>>;

/// Takes jobs, has everything, reports jobs when it is shut down, and takes so long for that.
struct Tier {
    name: &'static str,
    takes: Duration,
    fails: bool,
    clock: ManualClock,
    log: Log,
    jobs: Vec<TierJob>,
    has_ended: bool,
}

impl SecondaryTier for Tier {
    fn name(&self) -> &str {
        self.name
    }

    fn medium(&self) -> Medium {
        Medium::Ssd
    }

    fn lookup(&mut self, _: RequestId, _: &OffloadKey) -> TierLookup {
        assert!(!self.has_ended, "nobody asks a tier that has ended");
        TierLookup::Hit
    }

    fn submit(&mut self, job: TierJob) -> Result<(), JobRejected> {
        if self.has_ended {
            return Err(JobRejected { job, reason: RejectReason::Unavailable });
        }
        self.jobs.push(job);
        Ok(())
    }

    fn poll(&mut self, done: &mut Vec<TierCompletion>) {
        if self.has_ended && !self.fails {
            done.extend(self.jobs.drain(..).map(|job| TierCompletion::done(job.id)));
        }
    }

    fn shut_down(&mut self, timeout: Duration) -> Result<(), Box<dyn Error + Send + Sync>> {
        self.has_ended = true;
        self.log.lock().unwrap().push((self.name, timeout));
        self.clock.advance(self.takes.min(timeout));
        if self.fails { Err("it hangs".into()) } else { Ok(()) }
    }
}

fn key(n: u64) -> OffloadKey {
    OffloadKey::new(BlockHash::from_u64(n), GroupIdx(0))
}

fn manager(fails: [bool; 3]) -> (TieringManager<Lru>, Log) {
    let (clock, log) = (ManualClock::default(), Log::default());
    let tier = |(name, fails)| -> Box<dyn SecondaryTier> {
        let (clock, log, takes) = (clock.clone(), log.clone(), Duration::from_secs(6));
        Box::new(Tier { name, takes, fails, clock, log, jobs: Vec::new(), has_ended: false })
    };
    let tiers = ["a", "b", "c"].into_iter().zip(fails).map(tier).collect();
    let primary = CpuManager::new(CpuOptions::new(8), Lru::new(8)).unwrap();
    (TieringManager::new(primary, tiers, TieringOptions::new(1), Box::new(clock.clone())).unwrap(), log)
}

fn store(manager: &mut TieringManager<Lru>, req: &mut RequestContext, n: u64) {
    let StoreOutcome::Prepared(job) = manager.prepare_store(req, &[key(n)]).unwrap() else {
        panic!("no room")
    };
    manager.complete_store(job.token, TransferResult::Done).unwrap();
}

#[test]
fn every_tier_is_told_to_end_with_the_time_that_is_left() {
    let (mut manager, log) = manager([true, false, true]);
    let left = manager.shut_down(Duration::from_secs(10));
    let seconds = |name, seconds| (name, Duration::from_secs(seconds));
    assert_eq!(*log.lock().unwrap(), [seconds("a", 10), seconds("b", 4), seconds("c", 0)]);
    let failed: Vec<_> = left.tiers_failed.iter().map(|(name, error)| format!("{name}: {error}")).collect();
    assert_eq!(failed, ["a: it hangs", "c: it hangs"]);
}

#[test]
fn what_tiers_report_at_the_end_is_taken_in_and_what_they_do_not_is_counted() {
    let (mut manager, _) = manager([false, true, false]);
    let mut req = RequestContext::new(RequestId(1));
    manager.new_request(&mut req).unwrap();
    store(&mut manager, &mut req, 1); // a cascade to each
    assert_eq!(manager.lookup(&mut req, &key(2)), LookupResult::HitPending); // a promotion, queued
    let left = manager.shut_down(Duration::from_mins(1));
    assert_eq!((left.tiers_failed.len(), left.jobs_open, left.slots_held), (1, 1, 0));
    assert!(!left.is_clean());
    let counts = manager.counts();
    assert_eq!(
        (counts.pending, counts.pinned, counts.evictable),
        (0, 1, 0),
        "the slot of the promotion is free"
    );
}

#[test]
fn a_promotion_that_was_queued_at_the_end_is_discarded() {
    let primary =
        CpuManager::new(CpuOptions { record_events: true, ..CpuOptions::new(8) }, Lru::new(8)).unwrap();
    let (clock, log) = (ManualClock::default(), Log::default());
    let (takes, jobs) = (Duration::ZERO, Vec::new());
    let tier = Tier { name: "a", takes, fails: false, clock: clock.clone(), log, jobs, has_ended: false };
    let options = TieringOptions::new(1);
    let mut manager = TieringManager::new(primary, vec![Box::new(tier)], options, Box::new(clock)).unwrap();
    let mut req = RequestContext::new(RequestId(1));
    manager.new_request(&mut req).unwrap();
    assert_eq!(manager.lookup(&mut req, &key(1)), LookupResult::HitPending);
    manager.shut_down(Duration::from_secs(1));
    let mut events = Vec::new();
    manager.take_events(&mut events);
    let events: Vec<_> = events.into_iter().map(|event| (event.kind, event.keys)).collect();
    assert_eq!(events, [(EventKind::Discarded, vec![key(1)])]);
}

#[test]
fn after_the_end_nothing_goes_below_and_requests_finish() {
    let (mut manager, _) = manager([false; 3]);
    let mut req = RequestContext::new(RequestId(1));
    manager.new_request(&mut req).unwrap();
    assert!(manager.shut_down(Duration::from_mins(1)).is_clean());
    assert_eq!(manager.lookup(&mut req, &key(2)), LookupResult::Miss);
    store(&mut manager, &mut req, 1);
    assert!(!manager.has_pending_work());
    manager.on_schedule_end();
    manager.on_reset_flushed();
    assert_eq!(manager.lookup(&mut req, &key(3)), LookupResult::Miss);
    manager.on_request_finished(&mut req).unwrap();
    assert_eq!(manager.stats().open_requests, 0);
    assert!(manager.shut_down(Duration::ZERO).is_clean());
}
