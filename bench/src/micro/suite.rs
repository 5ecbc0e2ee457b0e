//! Interleaved rounds over several subjects, and their figures.

use std::{
    io::{self, Write},
    time::Instant,
};

use kvo_core::OffloadKey;
use serde::Serialize;

use super::{CHAIN, Job, MicroError, MicroOptions, Preset, Size, Sweep, Unit, chains, keys::some_of};
use crate::{Interrupt, new_table, number_cell};

/// Chains that are made at a time to warm up, so that their keys take little of the caches.
const WARM_UP_CHAINS: usize = 16;
/// Absent chains; each is looked up again and again.
const MISSES: usize = 64;

/// Time that some units took.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sample {
    ns: u64,
    units: usize,
}

impl Sample {
    /// `ns` for `units`.
    pub fn new(ns: u64, units: usize) -> Self {
        Self { ns, units }
    }

    /// Adds `ns` for `units` more.
    pub fn add(&mut self, ns: u64, units: usize) {
        self.ns += ns;
        self.units += units;
    }

    /// Adds the wall-clock time since `started` for `units` more.
    pub fn add_wall(&mut self, started: Instant, units: usize) {
        self.add(u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX), units);
    }

    fn ns_per_unit(self) -> f64 {
        self.ns as f64 / self.units.max(1) as f64
    }
}

/// What the jobs run on.
pub trait Subject {
    /// What to call it.
    fn name(&self) -> &str;

    /// Whether it takes part in a job. One that takes fresh chains is to be run by all.
    fn has(&self, job: Job) -> bool;

    /// Whether the time of a job that it takes part in means anything.
    fn is_timed(&self, job: Job) -> bool {
        self.has(job)
    }

    /// Puts the slots of an empty subject out of order, as an old one's are.
    fn scatter(&mut self) -> Result<(), MicroError>;

    /// Runs a job on whole chains, and times it.
    fn run(&mut self, job: Job, keys: &[OffloadKey], sweep: &mut Sweep) -> Result<Sample, MicroError>;

    /// A hash of all that it has evicted, in order: [`fold_victim`](super::fold_victim) of each.
    fn victims(&self) -> Option<u64> {
        None
    }

    /// Checks that nothing is in flight, and that the subject is as full as it ever gets.
    fn check_at_rest(&self) -> Result<(), MicroError> {
        Ok(())
    }
}

/// The measurement at one size.
pub struct Suite {
    size: Size,
    preset: Preset,
    /// With their rounds.
    pub(super) jobs: Vec<(Job, usize)>,
    pub(super) subjects: Vec<Box<dyn Subject>>,
    pub(super) sweep: Sweep,
    /// Chains that were stored so far; the last `resident` of them are there.
    pub(super) stored: u64,
    pub(super) resident: u64,
    round: u64,
}

/// What was measured at one size.
#[derive(Clone, Debug, Serialize)]
pub struct SuiteResults {
    /// The size.
    pub size: Size,
    /// By subject.
    pub subjects: Vec<SubjectResult>,
    /// By job, then by subject.
    pub figures: Vec<Figure>,
}

/// A subject's part in it.
#[derive(Clone, Debug, Serialize)]
pub struct SubjectResult {
    /// Its name.
    pub name: String,
    /// A hash of all that it evicted in the warm cycles, in order: equal for equal behaviour.
    pub victims: Option<String>,
    /// Memory a chunk, where that was measured.
    pub bytes_per_chunk: Option<f64>,
}

/// One job of one subject.
#[derive(Clone, Debug, Serialize)]
pub struct Figure {
    /// The job.
    pub job: Job,
    /// The subject.
    pub subject: String,
    /// Of what the nanoseconds are.
    pub unit: Unit,
    /// The median of the rounds.
    pub ns: f64,
    /// From the first quartile to the third, as part of the median.
    pub spread: f64,
    /// The least.
    pub ns_min: f64,
    /// What it is to cost at most.
    pub target_ns: Option<f64>,
    /// At best.
    pub stretch_ns: Option<f64>,
    /// The rounds, in order.
    pub rounds_ns: Vec<f64>,
}

impl Suite {
    /// Full subjects, whose slots are in no order and which have turned over once.
    ///
    /// # Errors
    /// If a subject fails.
    pub fn new(
        size: Size,
        options: &MicroOptions,
        mut subjects: Vec<Box<dyn Subject>>,
        interrupt: &Interrupt,
    ) -> Result<Self, MicroError> {
        let mut sweep = Sweep::new();
        let resident = u64::from(size.chunks()) / CHAIN as u64;
        for subject in &mut subjects {
            subject.scatter()?;
            for chain in 0..2 * resident {
                if interrupt.is_set() {
                    break;
                }
                subject.run(Job::Cycle32, &chains([chain]), &mut sweep)?;
            }
        }
        let preset = options.preset();
        let jobs = Self::jobs(size, options).into_iter().map(|job| (job, options.rounds(job))).collect();
        Ok(Self { size, preset, jobs, subjects, sweep, stored: 2 * resident, resident, round: 0 })
    }

    /// Runs all jobs; stops between rounds if it is interrupted. `progress` is called after every round.
    ///
    /// # Errors
    /// If a subject fails.
    pub fn run(mut self, interrupt: &Interrupt, progress: impl Fn()) -> Result<SuiteResults, MicroError> {
        let mut figures = Vec::new();
        let mut victims = vec![None; self.subjects.len()];
        for (job, num_rounds) in self.jobs.clone() {
            let mut rounds: Vec<Vec<f64>> = vec![Vec::new(); self.subjects.len()];
            for _ in 0..num_rounds {
                if interrupt.is_set() {
                    break;
                }
                self.round(job, &mut rounds)?;
                progress();
            }
            // Loads are not the same for all, so they are to come after it.
            if job.takes_fresh() && !job.is_cold() {
                let of = |subject: &dyn Subject| subject.victims().map(|victims| format!("{victims:016x}"));
                victims = self.subjects.iter().map(|subject| of(&**subject)).collect();
            }
            figures.extend(
                self.subjects
                    .iter()
                    .zip(rounds)
                    .filter(|(subject, rounds)| subject.is_timed(job) && !rounds.is_empty())
                    .map(|(subject, rounds)| Figure::new(job, subject.name(), rounds, self.size.chunks())),
            );
        }
        let subjects = self.subjects.iter().zip(victims).map(|(subject, victims)| SubjectResult {
            name: subject.name().to_owned(),
            victims,
            bytes_per_chunk: None,
        });
        Ok(SuiteResults { size: self.size, subjects: subjects.collect(), figures })
    }

    /// Rounds that [`run`](Self::run) makes.
    pub fn num_rounds(size: Size, options: &MicroOptions) -> usize {
        Self::jobs(size, options).into_iter().map(|job| options.rounds(job)).sum()
    }

    /// Cold jobs end at 1M chunks.
    fn jobs(size: Size, options: &MicroOptions) -> Vec<Job> {
        let wanted = |job: &Job| options.jobs.is_empty() || options.jobs.contains(job);
        let fits = |job: &Job| !job.is_cold() || size.chunks() <= 1_100_000;
        Job::ALL.into_iter().filter(|job| wanted(job) && fits(job)).collect()
    }

    /// One round of every subject, each after an untimed one that brings back what the others have put out of the
    /// caches.
    pub(super) fn round(&mut self, job: Job, rounds: &mut [Vec<f64>]) -> Result<(), MicroError> {
        let (warm_up, timed) = self.chains_of_round(job);
        let (warm_up, timed) = (self.numbers(job, warm_up), self.numbers(job, timed));
        for (subject, rounds) in self.subjects.iter_mut().zip(rounds).filter(|(subject, _)| subject.has(job))
        {
            let keys = chains(timed.iter().copied());
            for part in warm_up.chunks(WARM_UP_CHAINS) {
                subject.run(job, &chains(part.iter().copied()), &mut self.sweep)?;
            }
            rounds.push(subject.run(job, &keys, &mut self.sweep)?.ns_per_unit());
        }
        Ok(())
    }

    /// Chains of a round: of its untimed part, and of the timed one.
    pub(super) fn chains_of_round(&self, job: Job) -> (usize, usize) {
        if job.is_cold() {
            return (0, 1);
        }
        let warm_up = self.resident.clamp(8, self.preset.warm_up_chains_max());
        (usize::try_from(warm_up).unwrap_or(0), self.preset.chains_per_round())
    }

    /// Numbers of chains that suit a job.
    fn numbers(&mut self, job: Job, count: usize) -> Vec<u64> {
        self.round += 1;
        if job.takes_fresh() {
            let first = self.stored;
            self.stored += count as u64;
            (first..self.stored).collect()
        } else if job == Job::Miss {
            // Never stored.
            (u64::MAX / 1024..).take(count.min(MISSES)).collect()
        } else {
            some_of(self.stored - self.resident..self.stored, count, self.round)
        }
    }
}

impl std::fmt::Debug for Suite {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names: Vec<_> = self.subjects.iter().map(|subject| subject.name()).collect();
        f.debug_struct("Suite").field("size", &self.size).field("subjects", &names).finish_non_exhaustive()
    }
}

impl Figure {
    fn new(job: Job, subject: &str, rounds_ns: Vec<f64>, chunks: u32) -> Self {
        let mut sorted = rounds_ns.clone();
        sorted.sort_by(f64::total_cmp);
        let ns = sorted[sorted.len() / 2];
        let quartiles = sorted[sorted.len() * 3 / 4] - sorted[sorted.len() / 4];
        let is_ours = subject.starts_with("kvo");
        let (target_ns, stretch_ns) = if is_ours { job.targets(chunks) } else { (None, None) };
        Self {
            job,
            subject: subject.to_owned(),
            unit: job.unit(),
            ns,
            spread: if ns > 0.0 { quartiles / ns } else { 0.0 },
            ns_min: sorted[0],
            target_ns,
            stretch_ns,
            rounds_ns,
        }
    }

    /// Whether it costs no more than it is to; nothing where there is no target.
    pub fn is_met(&self) -> Option<bool> {
        self.target_ns.map(|target| self.ns <= target)
    }
}

impl SuiteResults {
    /// The figure of a subject.
    pub fn figure(&self, job: Job, subject: &str) -> Option<&Figure> {
        self.figures.iter().find(|figure| figure.job == job && figure.subject == subject)
    }

    /// How many times the floor's time a figure is, and how many times as long the peer takes.
    fn times(&self, figure: &Figure, peer: Option<&str>) -> String {
        let of = |subject: &str| {
            self.figure(figure.job, subject)
                .filter(|other| other.subject != figure.subject)
                .map(|other| other.ns)
        };
        let floor = of("floor").map(|ns| format!("{:.1} x floor", figure.ns / ns));
        let peer = peer.and_then(|peer| Some(format!("{peer} {:.1} x it", of(peer)? / figure.ns)));
        floor.into_iter().chain(peer).collect::<Vec<_>>().join(", ")
    }
}

/// Prints a table of all figures: each beside its target and the floor, and beside a peer if there is one.
///
/// # Errors
/// If `out` cannot be written.
pub fn print_figures(out: &mut impl Write, results: &[SuiteResults], peer: Option<&str>) -> io::Result<()> {
    let mut table =
        new_table(["size", "job", "subject", "median", "ns a", "spread %", "target", "", "times"]);
    for of_size in results {
        for figure in &of_size.figures {
            let target = figure.target_ns.map_or_else(String::new, |target| format!("{target:.0}"));
            let met = match figure.is_met() {
                Some(true) => "met",
                Some(false) => "missed",
                None => "",
            };
            table.add_row([
                number_cell(of_size.size.to_string()),
                figure.job.to_string().into(),
                figure.subject.as_str().into(),
                number_cell(format!("{:.1}", figure.ns)),
                figure.unit.to_string().into(),
                number_cell(format!("{:.0}", 100.0 * figure.spread)),
                number_cell(target),
                met.into(),
                of_size.times(figure, peer).into(),
            ]);
        }
    }
    writeln!(out, "{table}")
}
