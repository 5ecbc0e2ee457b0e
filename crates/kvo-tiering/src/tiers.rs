//! The secondary tiers and the jobs they have.

use std::time::Duration;

use hashbrown::{HashMap, HashSet};
use kvo_core::{
    EdgeStats, JobId, OffloadKey, ReleasedSlot, SecondaryTier, SlotId, TierChunk, TierCompletion,
    TierDirection, TierJob, TierOutcome, TransferResult,
};
use kvo_cpu::TierHold;

use crate::{TierStats, request::Owner};

/// A tier and what is counted of it.
pub(crate) struct Tier {
    pub(crate) inner: Box<dyn SecondaryTier>,
    pub(crate) inflight_writes: u32,
    pub(crate) stats: TierStats,
}

/// A job that a tier has. It owns the holds on the job's slots.
#[derive(Debug)]
pub(crate) struct OpenJob {
    pub(crate) tier: usize,
    pub(crate) of: Owner,
    pub(crate) direction: TierDirection,
    pub(crate) holds: Vec<TierHold>,
    submitted: Duration,
    span: tracing::Span,
}

/// A job that a tier has reported.
pub(crate) struct EndedJob {
    pub(crate) id: JobId,
    pub(crate) job: OpenJob,
    /// The keys of a partial failure are in ascending order.
    pub(crate) outcome: TierOutcome,
    /// Slots of the job that the tier may still touch, in ascending order.
    held: Vec<SlotId>,
}

/// A job that a tier has reported, and some of whose slots it may still touch.
#[derive(Debug)]
struct LateJob {
    tier: usize,
    direction: TierDirection,
    /// The holds by slot: a cascade has several on a slot that it names more than once.
    holds: HashMap<SlotId, Vec<TierHold>>,
    span: tracing::Span,
}

impl EndedJob {
    fn new(job: OpenJob, report: TierCompletion) -> Self {
        let TierCompletion { job: id, mut outcome, mut held } = report;
        if let TierOutcome::Partial { failed } = &mut outcome {
            failed.sort_unstable();
        }
        held.sort_unstable();
        Self { id, job, outcome, held }
    }

    /// Whether the tier may still touch this slot of the job.
    pub(crate) fn is_held(&self, slot: SlotId) -> bool {
        self.held.binary_search(&slot).is_ok()
    }

    pub(crate) fn result(&self, key: &OffloadKey) -> TransferResult {
        let failed = match &self.outcome {
            TierOutcome::Done => false,
            TierOutcome::Partial { failed } => failed.binary_search(key).is_ok(),
            TierOutcome::Failed => true,
        };
        if failed { TransferResult::Failed } else { TransferResult::Done }
    }

    /// Whether the report fits the job: every key and every slot that it names is of the job, and the chunks of held
    /// slots have failed.
    ///
    /// # Errors
    /// What does not fit.
    fn check(&self) -> Result<(), &'static str> {
        let holds = &self.job.holds;
        if let TierOutcome::Partial { failed } = &self.outcome {
            let keys: HashSet<OffloadKey> = holds.iter().map(TierHold::key).collect();
            if !failed.iter().all(|key| keys.contains(key)) {
                return Err("a key that its job does not have");
            }
        }
        if self.held.is_empty() {
            return Ok(());
        }
        let slots = self.slots();
        if !self.held.iter().all(|slot| slots.contains(slot)) {
            return Err("a slot as held that its job does not have");
        }
        let mut held = holds.iter().filter(|hold| self.is_held(hold.slot()));
        if held.any(|hold| self.result(&hold.key()) == TransferResult::Done) {
            return Err("a slot as held whose chunk it did not report as failed");
        }
        Ok(())
    }

    /// The job counts as failed as a whole. Of its slots the tier may still touch those that it named.
    fn fail(&mut self) {
        self.outcome = TierOutcome::Failed;
        let slots = self.slots();
        self.held.retain(|slot| slots.contains(slot));
    }

    fn slots(&self) -> HashSet<SlotId> {
        self.job.holds.iter().map(TierHold::slot).collect()
    }
}

/// All secondary tiers, in lookup order, and their jobs: open ones, and late ones, of which slots are still held.
pub(crate) struct Tiers {
    pub(crate) all: Vec<Tier>,
    pub(crate) open: HashMap<JobId, OpenJob>,
    late: HashMap<JobId, LateJob>,
    next_job: u64,
    chunk_bytes: u64,
    /// What the last poll brought, with the tier that each release is from.
    reports: Vec<TierCompletion>,
    releases: Vec<(usize, ReleasedSlot)>,
}

impl Tiers {
    pub(crate) fn new(tiers: Vec<Box<dyn SecondaryTier>>, chunk_bytes: u64) -> Self {
        let all = tiers
            .into_iter()
            .map(|tier| Tier {
                stats: TierStats { name: tier.name().to_owned(), ..TierStats::default() },
                inflight_writes: 0,
                inner: tier,
            })
            .collect();
        Self {
            all,
            open: HashMap::new(),
            late: HashMap::new(),
            next_job: 0,
            chunk_bytes,
            reports: Vec::new(),
            releases: Vec::new(),
        }
    }

    /// Gives `tier` a job; hands the holds back if it does not take it.
    pub(crate) fn submit(
        &mut self,
        tier: usize,
        of: Owner,
        direction: TierDirection,
        holds: Vec<(TierHold, Option<u32>)>,
        now: Duration,
    ) -> Result<(), Vec<TierHold>> {
        let id = JobId(self.next_job);
        self.next_job += 1;
        let req = of.req;
        let chunks = holds
            .iter()
            .map(|(hold, end_token)| TierChunk { key: hold.key(), slot: hold.slot(), end_token: *end_token })
            .collect();
        let holds: Vec<TierHold> = holds.into_iter().map(|(hold, _)| hold).collect();
        let Tier { inner: to, inflight_writes, stats } = &mut self.all[tier];
        let num_chunks = holds.len();
        let bytes = num_chunks as u64 * self.chunk_bytes;
        let span = match direction {
            TierDirection::Write => {
                tracing::debug_span!(
                    "kvo.tiering.cascade",
                    job = id.0,
                    tier = to.name(),
                    req = req.0,
                    num_chunks,
                    bytes
                )
            }
            TierDirection::Read => {
                tracing::debug_span!(
                    "kvo.tiering.promote",
                    job = id.0,
                    tier = to.name(),
                    req = req.0,
                    num_chunks,
                    bytes
                )
            }
        };
        let submitted = span.in_scope(|| to.submit(TierJob { id, req, direction, chunks }));
        if let Err(rejected) = submitted {
            stats.jobs_rejected += 1;
            span.in_scope(|| tracing::debug!(reason = %rejected.reason, "the tier did not take the job"));
            return Err(holds);
        }
        if direction == TierDirection::Write {
            *inflight_writes += 1;
        }
        self.open.insert(id, OpenJob { tier, of, direction, holds, submitted: now, span });
        Ok(())
    }

    /// Collects what the tiers report, tier by tier. The slots that they let go are taken
    /// [thereafter](Self::take_released): some may be of these very jobs.
    pub(crate) fn poll(&mut self, now: Duration) -> Vec<EndedJob> {
        let mut ended = Vec::new();
        let mut reports = std::mem::take(&mut self.reports);
        let mut released = Vec::new();
        for index in 0..self.all.len() {
            let tier = &mut self.all[index].inner;
            tier.poll(&mut reports);
            tier.take_released(&mut released);
            self.releases.extend(released.drain(..).map(|released| (index, released)));
            for report in reports.drain(..) {
                ended.extend(self.end(index, report, now));
            }
        }
        self.reports = reports;
        ended
    }

    /// Keeps the holds on the slots that the tier of a reported job may still touch.
    pub(crate) fn keep(&mut self, ended: EndedJob, holds: Vec<TierHold>) {
        let OpenJob { tier, direction, span, .. } = ended.job;
        let mut by_slot: HashMap<SlotId, Vec<TierHold>> = HashMap::new();
        for hold in holds {
            by_slot.entry(hold.slot()).or_default().push(hold);
        }
        self.late.insert(ended.id, LateJob { tier, direction, holds: by_slot, span });
    }

    /// The holds on the slots that the tiers have let go, as of the last poll.
    pub(crate) fn take_released(&mut self) -> Vec<TierHold> {
        let mut holds = Vec::new();
        let mut releases = std::mem::take(&mut self.releases);
        for (tier, released) in releases.drain(..) {
            match self.let_go(tier, released) {
                Some(of_slot) => holds.extend(of_slot),
                None => self.count_invalid_release(tier, released),
            }
        }
        self.releases = releases;
        holds
    }

    /// Takes the holds on one slot of a late job, if the tier held it. With its last slot a job is no longer in flight.
    fn let_go(&mut self, tier: usize, released: ReleasedSlot) -> Option<Vec<TierHold>> {
        let late = self.late.get_mut(&released.job).filter(|late| late.tier == tier)?;
        let holds = late.holds.remove(&released.slot)?;
        if late.holds.is_empty()
            && let Some(LateJob { direction, span, .. }) = self.late.remove(&released.job)
        {
            span.in_scope(|| tracing::debug!("every slot is released"));
            if direction == TierDirection::Write {
                self.all[tier].inflight_writes -= 1;
            }
        }
        Some(holds)
    }

    fn count_invalid_release(&mut self, tier: usize, released: ReleasedSlot) {
        let stats = &mut self.all[tier].stats;
        stats.invalid_releases += 1;
        tracing::warn!(
            tier = stats.name,
            job = released.job.0,
            slot = released.slot.0,
            invalid_releases = stats.invalid_releases,
            "a tier released a slot that it did not hold; the release is ignored"
        );
    }

    fn end(&mut self, tier: usize, report: TierCompletion, now: Duration) -> Option<EndedJob> {
        let Tier { inflight_writes, stats, .. } = &mut self.all[tier];
        if self.open.get(&report.job).is_none_or(|job| job.tier != tier) {
            stats.invalid_reports += 1;
            tracing::warn!(
                tier = stats.name,
                job = report.job.0,
                invalid_reports = stats.invalid_reports,
                "a tier reported a job that it does not have; the report is ignored"
            );
            return None;
        }
        let mut ended = EndedJob::new(self.open.remove(&report.job)?, report);
        if let Err(what) = ended.check() {
            stats.invalid_reports += 1;
            ended.job.span.in_scope(|| {
                tracing::warn!(
                    invalid_reports = stats.invalid_reports,
                    "a tier reported {what}; the job counts as failed"
                );
            });
            ended.fail();
        }
        let job = &ended.job;
        let num_failed =
            job.holds.iter().filter(|hold| ended.result(&hold.key()) == TransferResult::Failed).count();
        let edge = match job.direction {
            TierDirection::Write => &mut stats.written,
            TierDirection::Read => &mut stats.read,
        };
        count(edge, job.holds.len(), num_failed, self.chunk_bytes, now.saturating_sub(job.submitted));
        if ended.held.is_empty() {
            *inflight_writes -= u32::from(job.direction == TierDirection::Write);
            job.span.in_scope(|| tracing::debug!(num_failed, "ended"));
        } else {
            stats.jobs_late += 1;
            let (num_held, jobs_late) = (ended.held.len(), stats.jobs_late);
            job.span.in_scope(|| tracing::warn!(num_failed, num_held, jobs_late, "ended, with slots held"));
        }
        Some(ended)
    }

    pub(crate) fn stats(&self) -> Vec<TierStats> {
        let mut stats: Vec<TierStats> = self.all.iter().map(|tier| tier.stats.clone()).collect();
        for job in self.open.values() {
            stats[job.tier].active_jobs += 1;
        }
        for job in self.late.values() {
            stats[job.tier].held_slots += job.holds.len() as u64;
        }
        stats
    }
}

fn count(edge: &mut EdgeStats, num_chunks: usize, num_failed: usize, chunk_bytes: u64, time: Duration) {
    if num_failed == 0 {
        edge.jobs_done += 1;
    } else {
        edge.jobs_failed += 1;
    }
    let arrived = (num_chunks - num_failed) as u64;
    edge.chunks += arrived;
    edge.bytes += arrived * chunk_bytes;
    edge.time += time;
}
