//! The secondary tiers and the jobs they have.

use std::time::Duration;

use hashbrown::HashMap;
use kvo_core::{
    EdgeStats, JobId, OffloadKey, SecondaryTier, TierChunk, TierCompletion, TierDirection, TierJob,
    TierOutcome, TransferResult,
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
    pub(crate) job: OpenJob,
    pub(crate) outcome: TierOutcome,
}

impl EndedJob {
    pub(crate) fn result(&self, key: &OffloadKey) -> TransferResult {
        let failed = match &self.outcome {
            TierOutcome::Done => false,
            TierOutcome::Partial { failed } => failed.contains(key),
            TierOutcome::Failed => true,
        };
        if failed { TransferResult::Failed } else { TransferResult::Done }
    }
}

/// All secondary tiers, in lookup order, and their open jobs.
pub(crate) struct Tiers {
    pub(crate) all: Vec<Tier>,
    pub(crate) open: HashMap<JobId, OpenJob>,
    next_job: u64,
    chunk_bytes: u64,
    reports: Vec<TierCompletion>,
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
        Self { all, open: HashMap::new(), next_job: 0, chunk_bytes, reports: Vec::new() }
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

    /// Collects what the tiers report, tier by tier.
    pub(crate) fn poll(&mut self, now: Duration) -> Vec<EndedJob> {
        let mut ended = Vec::new();
        let mut reports = std::mem::take(&mut self.reports);
        for index in 0..self.all.len() {
            self.all[index].inner.poll(&mut reports);
            for report in reports.drain(..) {
                ended.extend(self.end(index, report, now));
            }
        }
        self.reports = reports;
        ended
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
        let job = self.open.remove(&report.job)?;
        let mut ended = EndedJob { job, outcome: report.outcome };
        let holds = &ended.job.holds;
        if let TierOutcome::Partial { failed } = &ended.outcome
            && let Some(key) = failed.iter().find(|key| holds.iter().all(|hold| hold.key() != **key))
        {
            stats.invalid_reports += 1;
            ended.job.span.in_scope(|| {
                tracing::warn!(
                    %key,
                    invalid_reports = stats.invalid_reports,
                    "a tier reported a key that its job does not have; the job counts as failed"
                );
            });
            ended.outcome = TierOutcome::Failed;
        }
        let job = &ended.job;
        let num_failed =
            job.holds.iter().filter(|hold| ended.result(&hold.key()) == TransferResult::Failed).count();
        let edge = match job.direction {
            TierDirection::Write => {
                *inflight_writes -= 1;
                &mut stats.written
            }
            TierDirection::Read => &mut stats.read,
        };
        count(edge, job.holds.len(), num_failed, self.chunk_bytes, now.saturating_sub(job.submitted));
        job.span.in_scope(|| tracing::debug!(num_failed, "ended"));
        Some(ended)
    }

    pub(crate) fn stats(&self) -> Vec<TierStats> {
        let mut stats: Vec<TierStats> = self.all.iter().map(|tier| tier.stats.clone()).collect();
        for job in self.open.values() {
            stats[job.tier].active_jobs += 1;
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
