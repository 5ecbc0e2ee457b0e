//! Runs what is planned, all of it at once.

use kvo_bench::{
    BlockSample, Contender, Curve, CurveMethod, Fill, Interrupt, LruCurve, ModelError, OverlapResult,
    PolicyResult, Refused, SampleRate, ServiceTime, Ticker, Trace, TwoTierResult, progress_bar, run_cell,
    run_overlap, run_parallel, run_two_tiers,
};
use kvo_policies::PolicyKind;

/// One trace, and what is to be run on it.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) trace: Trace,
    pub(crate) cells: Vec<(Contender, u32)>,
    pub(super) work: Vec<Work>,
    pub(super) sampling: Option<Sampling>,
}

/// One piece of it, for one thread.
#[derive(Clone, Copy, Debug)]
pub(super) enum Work {
    Cell { policy: Contender, capacity: u32 },
    Overlap { policy: PolicyKind, capacity: u32, service: ServiceTime, refused: Refused },
    TwoTiers { policy: PolicyKind, capacities: (u32, u32), fill: Fill },
    LruCurve,
    Sample { policy: Contender, number: u32 },
}

/// How to find the curves.
#[derive(Debug)]
pub(super) struct Sampling {
    pub(super) capacities: Vec<u32>,
    pub(super) rate: SampleRate,
}

/// What came out of a piece. Curves of runs that were stopped say nothing, so there are none.
enum Done {
    Cell(PolicyResult),
    Overlap(OverlapResult),
    TwoTiers(TwoTierResult),
    LruCurve(Option<LruCurve>),
    Sample(Contender, Option<Vec<f64>>),
}

/// A trace with what came out. Cells are as they were when the run was stopped; of the other results only those that
/// cover the whole trace are here.
pub(crate) struct Ran {
    pub(crate) plan: Plan,
    pub(crate) results: Vec<PolicyResult>,
    pub(crate) overlap: Vec<OverlapResult>,
    pub(crate) two_tiers: Vec<TwoTierResult>,
    pub(crate) curves: Vec<Curve>,
    /// Pieces that cover the whole trace.
    whole: usize,
}

/// Runs every piece of every plan.
pub(super) fn run(plans: Vec<Plan>, interrupt: &Interrupt) -> Result<Vec<Ran>, ModelError> {
    let work: Vec<_> =
        plans.iter().flat_map(|plan| plan.work.iter().map(move |work| (plan, *work))).collect();
    let progress = progress_bar(work.iter().map(|(plan, work)| work.requests(plan)).sum(), "requests");
    let done = run_parallel(&work, |(plan, work)| work.run(plan, Ticker::new(interrupt, &progress)));
    progress.finish_and_clear();
    let mut done = done.into_iter();
    let ran = |plan: Plan| {
        let done = done.by_ref().take(plan.work.len()).collect::<Result<_, _>>()?;
        Ok(Ran::of(plan, done))
    };
    plans.into_iter().map(ran).collect()
}

impl Work {
    /// How many times a request is served.
    fn requests(self, plan: &Plan) -> u64 {
        let passes = match (self, &plan.sampling) {
            (Self::Sample { policy, .. }, Some(sampling)) if !BlockSample::has_distances(policy) => {
                sampling.capacities.len()
            }
            _ => 1,
        };
        (plan.trace.requests.len() * passes) as u64
    }

    fn run(self, plan: &Plan, mut ticker: Ticker<'_>) -> Result<Done, ModelError> {
        let trace = &plan.trace;
        Ok(match self {
            Self::Cell { policy, capacity } => Done::Cell(run_cell(trace, policy, capacity, ticker)?),
            Self::Overlap { policy, capacity, service, refused } => {
                Done::Overlap(run_overlap(trace, policy, capacity, service, refused, || ticker.tick())?)
            }
            Self::TwoTiers { policy, capacities, fill } => {
                Done::TwoTiers(run_two_tiers(trace, policy, capacities, fill, || ticker.tick()))
            }
            Self::LruCurve => Done::LruCurve(LruCurve::of(trace, || ticker.tick())),
            Self::Sample { policy, number } => {
                let ratios =
                    plan.sampling.as_ref().map(|sampling| sampling.run(trace, policy, number, ticker));
                Done::Sample(policy, ratios.transpose()?.flatten())
            }
        })
    }
}

impl Sampling {
    /// The hit ratios at all capacities that one sample gives.
    fn run(
        &self,
        trace: &Trace,
        policy: Contender,
        number: u32,
        mut ticker: Ticker<'_>,
    ) -> Result<Option<Vec<f64>>, ModelError> {
        let sample = BlockSample::of(trace, self.rate, number.into());
        if BlockSample::has_distances(policy) {
            return Ok(sample.lru_ratios(&self.capacities, || ticker.tick()));
        }
        let ratio = |capacity: &u32| sample.ratio_of(policy, *capacity, || ticker.tick()).transpose();
        self.capacities.iter().map_while(ratio).collect::<Result<Vec<_>, _>>().map(|ratios| {
            let is_whole = ratios.len() == self.capacities.len();
            is_whole.then_some(ratios)
        })
    }

    /// The curves of all contenders, in the order of their work.
    fn curves(
        &self,
        results: &[PolicyResult],
        exact: Option<&LruCurve>,
        samples: &[(Contender, Vec<f64>)],
    ) -> Vec<Curve> {
        let mut curves: Vec<_> =
            exact.map(|exact| Curve::exact_lru(exact, &self.capacities)).into_iter().collect();
        // Samples of one contender lie side by side.
        for samples in samples.chunk_by(|(a, _), (b, _)| a == b) {
            let policy = samples[0].0;
            let (sample_rate, samples) = (self.rate.share(), samples.iter().map(|(_, ratios)| &ratios[..]));
            let samples: Vec<_> = samples.collect();
            let name = policy.to_string();
            let counted = |capacity| {
                let of_cell = |result: &&PolicyResult| result.policy == name && result.capacity == capacity;
                results.iter().find(of_cell).map(PolicyResult::hit_ratio)
            };
            let distances = BlockSample::has_distances(policy);
            let method = if distances {
                CurveMethod::SampledDistances { sample_rate, samples: samples.len() }
            } else {
                CurveMethod::SampledMiniatures { sample_rate, samples: samples.len() }
            };
            let truth = |capacity| match exact {
                Some(exact) if distances => Some(exact.hit_ratio(capacity)),
                _ => counted(capacity),
            };
            curves.push(Curve::of_samples(name.clone(), method, &self.capacities, &samples, truth));
        }
        curves
    }
}

impl Ran {
    fn of(plan: Plan, done: Vec<Done>) -> Self {
        let requests = plan.trace.requests.len();
        let mut ran = Self {
            plan,
            results: Vec::new(),
            overlap: Vec::new(),
            two_tiers: Vec::new(),
            curves: Vec::new(),
            whole: 0,
        };
        let (mut exact, mut samples) = (None, Vec::new());
        for done in done {
            ran.whole += usize::from(done.is_whole(requests));
            match done {
                Done::Cell(result) => ran.results.push(result),
                Done::Overlap(result) if result.requests == requests => ran.overlap.push(result),
                Done::TwoTiers(result) if result.requests == requests => ran.two_tiers.push(result),
                Done::Overlap(_) | Done::TwoTiers(_) => {}
                Done::LruCurve(curve) => exact = curve,
                Done::Sample(policy, ratios) => samples.extend(ratios.map(|ratios| (policy, ratios))),
            }
        }
        if let Some(sampling) = &ran.plan.sampling
            && ran.is_complete()
        {
            ran.curves = sampling.curves(&ran.results, exact.as_ref(), &samples);
        }
        ran
    }

    pub(super) fn name(&self) -> &str {
        &self.plan.trace.name
    }

    /// Whether all that was planned covers the whole trace.
    pub(super) fn is_complete(&self) -> bool {
        self.whole == self.plan.work.len()
    }

    /// Pieces that were planned, and how many of them cover the whole trace.
    pub(super) fn pieces(&self) -> (usize, usize) {
        (self.plan.work.len(), self.whole)
    }

    /// Cells that cover the whole trace.
    pub(super) fn whole_cells(&self) -> usize {
        self.results.iter().filter(|result| result.requests == self.plan.trace.requests.len()).count()
    }
}

impl Done {
    fn is_whole(&self, requests: usize) -> bool {
        match self {
            Self::Cell(result) => result.requests == requests,
            Self::Overlap(result) => result.requests == requests,
            Self::TwoTiers(result) => result.requests == requests,
            Self::LruCurve(curve) => curve.is_some(),
            Self::Sample(_, ratios) => ratios.is_some(),
        }
    }
}
