//! The secondary tiers and the jobs they have.

use std::{collections::VecDeque, time::Duration};

use hashbrown::{HashMap, HashSet};
use kvo_core::{
    EdgeStats, JobId, OffloadKey, RejectReason, ReleasedSlot, SecondaryTier, SlotId, TierChunk,
    TierCompletion, TierDirection, TierJob, TierOutcome, TransferResult,
};
use kvo_cpu::TierHold;

use crate::{
    PressureOptions, TierStats,
    pressure::{Gate, Gauge},
    request::Owner,
};

/// How many ended jobs a list of open ones may have beside as many as are open.
const ENDED_MAX: usize = 64;

/// A tier and what is counted of it.
pub(crate) struct Tier {
    pub(crate) inner: Box<dyn SecondaryTier>,
    writes: Way,
    reads: Way,
    pub(crate) stats: TierStats,
}

/// One way of a tier: to it, or from it.
struct Way {
    gate: Gate,
    gauge: Gauge,
    /// Jobs by when they were submitted, but for those that are overdue. Some have ended since.
    begun: VecDeque<(Duration, JobId)>,
    /// Jobs that were not reported, or of which slots are held.
    jobs: u32,
    /// Their chunks that are not let go.
    chunks: usize,
    /// Of them, those of jobs that are overdue, and those that are held: nobody knows whether they ever come back.
    stuck: usize,
    /// Chunks that are to be in a job at the end of the step, and whose the last of them is.
    queued: usize,
    queued_for: Option<Owner>,
}

impl Way {
    /// What the oldest open job has to move, and its age.
    fn oldest(
        &mut self,
        open: &HashMap<JobId, OpenJob>,
        chunk_bytes: u64,
        now: Duration,
    ) -> Option<(u64, Duration)> {
        while let Some((submitted, id)) = self.begun.front() {
            if let Some(job) = open.get(id) {
                return Some((job.holds.len() as u64 * chunk_bytes, now.saturating_sub(*submitted)));
            }
            self.begun.pop_front();
        }
        None
    }

    /// Takes a job that has been open since `since` or longer, each once.
    fn take_overdue(&mut self, open: &HashMap<JobId, OpenJob>, since: Duration) -> Option<JobId> {
        while let Some((submitted, id)) = self.begun.front().copied() {
            let is_open = open.contains_key(&id);
            if is_open && submitted > since {
                return None;
            }
            self.begun.pop_front();
            if is_open {
                return Some(id);
            }
        }
        None
    }

    fn begin(&mut self, id: JobId, num_chunks: usize, open: &HashMap<JobId, OpenJob>, now: Duration) {
        if self.begun.len() > 2 * open.len() + ENDED_MAX {
            self.begun.retain(|(_, id)| open.contains_key(id));
        }
        self.begun.push_back((now, id));
        self.gate.on_taken(id);
        self.jobs += 1;
        self.chunks += num_chunks;
    }
}

impl Tier {
    fn way(&mut self, direction: TierDirection) -> &mut Way {
        match direction {
            TierDirection::Write => &mut self.writes,
            TierDirection::Read => &mut self.reads,
        }
    }
}

/// A job that a tier has. It owns the holds on the job's slots.
#[derive(Debug)]
pub(crate) struct OpenJob {
    pub(crate) tier: usize,
    pub(crate) of: Owner,
    pub(crate) direction: TierDirection,
    pub(crate) holds: Vec<TierHold>,
    /// Whether it has gone unreported for too long: then nothing that it was to bring is waited for.
    pub(crate) is_overdue: bool,
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
    /// Chunks that were copied, if not all that arrived.
    copied: Option<usize>,
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
        let TierCompletion { job: id, mut outcome, mut held, copied } = report;
        if let TierOutcome::Partial { failed } = &mut outcome {
            failed.sort_unstable();
        }
        held.sort_unstable();
        Self { id, job, outcome, held, copied }
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

    /// Whether the report fits the job: every key and every slot that it names is of the job, the chunks of held slots
    /// have failed, and no more was copied than there is.
    ///
    /// # Errors
    /// What does not fit.
    fn check(&self) -> Result<(), &'static str> {
        let holds = &self.job.holds;
        if self.copied.is_some_and(|copied| copied > holds.len()) {
            return Err("more copies than its job has chunks");
        }
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
    /// Open jobs that are overdue.
    num_overdue: usize,
    next_job: u64,
    chunk_bytes: u64,
    job_deadline: Option<Duration>,
    /// Chunks that cascades to one tier may pin, if that is bounded.
    cascade_chunks_max: Option<usize>,
    /// What the last poll brought, with the tier that each release is from.
    reports: Vec<TierCompletion>,
    releases: Vec<(usize, ReleasedSlot)>,
}

impl Tiers {
    pub(crate) fn new(
        tiers: Vec<Box<dyn SecondaryTier>>,
        chunk_bytes: u64,
        pressure: &PressureOptions,
        num_slots: u32,
    ) -> Self {
        let way = |marks| Way {
            gate: Gate::new(pressure),
            gauge: Gauge::new(marks),
            begun: VecDeque::new(),
            jobs: 0,
            chunks: 0,
            stuck: 0,
            queued: 0,
            queued_for: None,
        };
        let cascade_chunks_max = pressure.cascade_share.map(|percent| {
            let chunks = u64::from(num_slots) * u64::from(percent) / 100 / tiers.len().max(1) as u64;
            usize::try_from(chunks).unwrap_or(usize::MAX)
        });
        let all = tiers
            .into_iter()
            .map(|tier| Tier {
                stats: TierStats { name: tier.name().to_owned(), ..TierStats::default() },
                writes: way(pressure.writes),
                reads: way(pressure.reads),
                inner: tier,
            })
            .collect();
        Self {
            all,
            num_overdue: 0,
            job_deadline: pressure.job_deadline,
            cascade_chunks_max,
            open: HashMap::new(),
            late: HashMap::new(),
            next_job: 0,
            chunk_bytes,
            reports: Vec::new(),
            releases: Vec::new(),
        }
    }

    /// Whether cascades to a tier may pin so many chunks more, if they are to be counted.
    pub(crate) fn may_pin(&self, tier: usize, num_chunks: Option<usize>) -> bool {
        let pinned = self.all[tier].writes.chunks;
        let bound = self.cascade_chunks_max.zip(num_chunks);
        bound.is_none_or(|(max, more)| pinned == 0 || pinned.saturating_add(more) <= max)
    }

    /// Whether a cascade is to go to a tier: it is not fenced off, not too slow, and has room for it among the jobs that it
    /// may have in flight and the chunks that it [may pin](Self::may_pin).
    pub(crate) fn may_write(
        &mut self,
        tier: usize,
        num_chunks: Option<usize>,
        jobs_max: u32,
        now: Duration,
    ) -> bool {
        let may_pin = self.may_pin(tier, num_chunks);
        let way = &mut self.all[tier].writes;
        if !may_pin || way.jobs >= jobs_max || !way.gate.lets_through(now) {
            return false;
        }
        let oldest = way.oldest(&self.open, self.chunk_bytes, now);
        !way.gauge.leaves_out(oldest)
    }

    /// Whether a tier may be asked for chunks, as far as it is fenced off.
    pub(crate) fn may_read(&self, tier: usize, now: Duration) -> bool {
        self.all[tier].reads.gate.lets_through(now)
    }

    /// A chunk is to be brought by a tier.
    pub(crate) fn queue(&mut self, tier: usize, of: Owner) {
        let Way { queued, queued_for, .. } = &mut self.all[tier].reads;
        *queued += 1;
        *queued_for = Some(of);
    }

    pub(crate) fn none_queued(&mut self) {
        for Tier { reads, .. } in &mut self.all {
            (reads.queued, reads.queued_for) = (0, None);
        }
    }

    /// Chunks that a tier is to bring, or may be bringing still; and those of them of which nobody knows whether they ever
    /// come back.
    pub(crate) fn being_read(&self, tier: usize) -> (usize, usize) {
        let Way { chunks, stuck, queued, .. } = &self.all[tier].reads;
        (chunks + queued, *stuck)
    }

    /// Whether only one more job may go to fetch chunks from a tier, to try it, and is to be another request's.
    pub(crate) fn is_tried_by_another(&self, tier: usize, of: Owner) -> bool {
        let Way { gate, queued_for, .. } = &self.all[tier].reads;
        gate.is_fenced() && queued_for.is_some_and(|tries| tries != of)
    }

    /// Whether reads from a tier are so slow that the next request is to do without.
    pub(crate) fn leaves_out_reads(&mut self, tier: usize, now: Duration) -> bool {
        let way = &mut self.all[tier].reads;
        let oldest = way.oldest(&self.open, self.chunk_bytes, now);
        way.gauge.leaves_out(oldest)
    }

    /// Jobs that have become overdue. Their tiers are fenced off.
    pub(crate) fn take_overdue(&mut self, now: Duration) -> Vec<JobId> {
        let Some(since) = self.job_deadline.and_then(|deadline| now.checked_sub(deadline)) else {
            return Vec::new();
        };
        let mut overdue = Vec::new();
        for tier in &mut self.all {
            for direction in [TierDirection::Write, TierDirection::Read] {
                while let Some(id) = tier.way(direction).take_overdue(&self.open, since) {
                    tier.way(direction).gauge.failed();
                    // What does not answer one way will not answer the other.
                    tier.writes.gate.on_overdue(id, now);
                    tier.reads.gate.on_overdue(id, now);
                    tier.stats.jobs_overdue += 1;
                    let job = self.open.get_mut(&id).expect("only open jobs are overdue");
                    job.is_overdue = true;
                    tier.way(direction).stuck += job.holds.len();
                    self.num_overdue += 1;
                    let jobs_overdue = tier.stats.jobs_overdue;
                    job.span.in_scope(|| {
                        tracing::warn!(jobs_overdue, "not reported in time; the tier is fenced off");
                    });
                    overdue.push(id);
                }
            }
        }
        overdue
    }

    /// The chunks that tiers may still come to have: of writes that are not reported, or whose slots are still held.
    pub(crate) fn cascading(&self) -> Vec<OffloadKey> {
        let open = self.open.values().filter(|job| job.direction == TierDirection::Write);
        let late = self.late.values().filter(|job| job.direction == TierDirection::Write);
        let open = open.flat_map(|job| &job.holds);
        open.chain(late.flat_map(|job| job.holds.values().flatten())).map(TierHold::key).collect()
    }

    /// Whether a report of a job is waited for.
    pub(crate) fn is_waited_for(&self) -> bool {
        self.open.len() > self.num_overdue
    }

    /// Gives `tier` a job; hands the holds back if it is fenced off or does not take it.
    pub(crate) fn submit(
        &mut self,
        tier: usize,
        of: Owner,
        direction: TierDirection,
        holds: Vec<(TierHold, Option<u32>)>,
        now: Duration,
    ) -> Result<(), Vec<TierHold>> {
        let chunks = holds
            .iter()
            .map(|(hold, end_token)| TierChunk { key: hold.key(), slot: hold.slot(), end_token: *end_token })
            .collect();
        let holds: Vec<TierHold> = holds.into_iter().map(|(hold, _)| hold).collect();
        if !self.all[tier].way(direction).gate.lets_through(now) {
            return Err(holds);
        }
        let id = JobId(self.next_job);
        self.next_job += 1;
        let req = of.req;
        let Tier { inner: to, writes, reads, stats } = &mut self.all[tier];
        let way = if direction == TierDirection::Write { writes } else { reads };
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
            if rejected.reason != RejectReason::Invalid {
                way.gauge.failed();
            }
            // A full queue is no failure; that it is slow to empty is seen by its jobs.
            if !matches!(rejected.reason, RejectReason::Busy | RejectReason::Invalid) {
                way.gate.on_rejected(now);
            }
            return Err(holds);
        }
        way.begin(id, num_chunks, &self.open, now);
        self.open.insert(id, OpenJob { tier, of, direction, holds, is_overdue: false, submitted: now, span });
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
        let way = self.all[tier].way(late.direction);
        way.chunks -= holds.len();
        way.stuck -= holds.len();
        if late.holds.is_empty()
            && let Some(LateJob { span, .. }) = self.late.remove(&released.job)
        {
            span.in_scope(|| tracing::debug!("every slot is released"));
            way.jobs -= 1;
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
        let Tier { stats, writes, reads, .. } = &mut self.all[tier];
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
        if ended.job.is_overdue {
            self.num_overdue -= 1;
            if ended.job.direction == TierDirection::Read {
                // Its chunks were given up, and do not come any more.
                ended.fail();
            }
        }
        let job = &ended.job;
        let num_failed =
            job.holds.iter().filter(|hold| ended.result(&hold.key()) == TransferResult::Failed).count();
        let (edge, way) = match job.direction {
            TierDirection::Write => (&mut stats.written, writes),
            TierDirection::Read => (&mut stats.read, reads),
        };
        let time = now.saturating_sub(job.submitted);
        count(edge, job.holds.len(), num_failed, self.chunk_bytes, time);
        if ended.outcome == TierOutcome::Failed {
            way.gate.on_failed(ended.id, now);
            way.gauge.failed();
        } else {
            if way.gate.on_done(ended.id) {
                way.gauge.restart();
            }
            let num_copied = ended.copied.unwrap_or(job.holds.len() - num_failed);
            // That nothing had to be copied says nothing of how fast it would have been.
            if num_copied > 0 {
                way.gauge.took(num_copied as u64 * self.chunk_bytes, time);
            }
        }
        let num_held = job.holds.iter().filter(|hold| ended.is_held(hold.slot())).count();
        way.chunks -= job.holds.len() - num_held;
        way.stuck += num_held;
        if job.is_overdue {
            way.stuck -= job.holds.len();
        }
        if ended.held.is_empty() {
            way.jobs -= 1;
            job.span.in_scope(|| tracing::debug!(num_failed, "ended"));
        } else {
            stats.jobs_late += 1;
            let (num_held, jobs_late) = (ended.held.len(), stats.jobs_late);
            job.span.in_scope(|| tracing::warn!(num_failed, num_held, jobs_late, "ended, with slots held"));
        }
        Some(ended)
    }

    pub(crate) fn stats(&self) -> Vec<TierStats> {
        let of_tier = |tier: &Tier| TierStats {
            is_fenced: tier.writes.gate.is_fenced() || tier.reads.gate.is_fenced(),
            times_fenced: tier.writes.gate.times_shut() + tier.reads.gate.times_shut(),
            write_per_mib: tier.writes.gauge.per_mib(),
            read_per_mib: tier.reads.gauge.per_mib(),
            ..tier.stats.clone()
        };
        let mut stats: Vec<TierStats> = self.all.iter().map(of_tier).collect();
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
