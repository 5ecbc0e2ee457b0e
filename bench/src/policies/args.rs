//! What to run: the command line, and what follows from it for each trace.

use anyhow::{Context, bail};
use clap::{Args, Parser, value_parser};
use kvo_bench::{
    Capacity, CapacityError, Contender, ContenderList, Fill, Refused, SampleRate, ServiceTime, TierSizes,
    Trace, VirtualTime, curve_capacities,
};
use kvo_policies::PolicyKind;

use super::run::{Plan, Sampling, Work};
use crate::args::TracesArgs;

/// Counts hits, inserts and evictions of eviction policies on traces.
///
/// One request after the other: its hits are its leading blocks that are resident; then it stores its blocks and
/// finishes, as one access. The policies and the CPU tier are the shipping ones; no bytes move. A chunk is stranded if
/// it is resident and one before it in its prefix is not: the worst of samples every 200 requests. The time is CPU
/// time of the tier's calls, and rough: `micro` is exact. All else is a simulation; docs/POLICIES.md defines it.
#[derive(Debug, Args)]
pub(crate) struct PoliciesArgs {
    #[command(flatten)]
    traces: TracesArgs,
    /// Policies to run: lru, arc, arc:ghost-hits=t2, arc:canonical, slru, slru:protected=50, aslru, ylru, s3fifo,
    /// s3fifo:small=30,threshold=1,leaf-only=false, fifo; opt is the most that any policy could have
    #[arg(long, value_name = "NAME,...", default_value = "lru,arc")]
    policy: Vec<ContenderList>,
    /// Capacities: chunks, or percentages of the trace's different blocks
    #[arg(long, value_name = "N|P%,...", value_delimiter = ',', default_value = "1%,5%,10%,20%,50%")]
    capacity: Vec<Capacity>,
    /// Compare with the published figures and fail if one differs, or if there are none of a trace
    #[arg(long)]
    pub(super) check: bool,
    #[command(flatten)]
    overlap: OverlapArgs,
    /// Also run a tier of the GPU, of LRU, above the CPU tier: sizes of both, in blocks or percentages of the trace's
    /// different blocks. The CPU tier is filled in three ways: inclusive, inclusive-all and victim
    #[arg(long, value_name = "GPU+CPU,...", value_delimiter = ',')]
    two_tiers: Vec<TierSizes>,
    #[command(flatten)]
    curve: CurveArgs,
    #[command(flatten)]
    preset: PresetArgs,
}

/// Runs of every mode on generated traffic.
#[derive(Debug, Args)]
#[group(id = "preset", multiple = false, conflicts_with_all = PRESET_DECIDES)]
struct PresetArgs {
    /// A short run of every mode on generated traffic, against rot; the figures mean nothing
    #[arg(long)]
    smoke: bool,
    /// Every mode and policy on 4000 generated requests
    #[arg(long)]
    quick: bool,
    /// Every mode and policy on 20000 generated requests, at more capacities
    #[arg(long)]
    full: bool,
}

/// What a preset decides, and so goes with none.
const PRESET_DECIDES: [&str; 6] = ["trace", "policy", "capacity", "overlap", "two_tiers", "curve"];

/// Requests that overlap.
#[derive(Debug, Args)]
struct OverlapArgs {
    /// Also run requests as they overlap, in virtual time: blocks are looked up and pinned at the arrival, stored and
    /// committed at the finish
    #[arg(long)]
    overlap: bool,
    /// How long every request runs
    #[arg(
        long,
        value_name = "MS",
        default_value = "500",
        requires = "overlap",
        allow_negative_numbers = true
    )]
    overlap_base_ms: VirtualTime,
    /// How much longer for each token of the input that was not hit
    #[arg(
        long,
        value_name = "MS",
        default_value = "0.05",
        requires = "overlap",
        allow_negative_numbers = true
    )]
    overlap_uncached_token_ms: VirtualTime,
    /// How much longer for each token of the output
    #[arg(
        long,
        value_name = "MS",
        default_value = "20",
        requires = "overlap",
        allow_negative_numbers = true
    )]
    overlap_output_token_ms: VirtualTime,
    /// What the engine does when pins leave too little room for its offer: store nothing, or offer ever shorter heads
    #[arg(long, value_name = "WHAT", default_value = "drop", requires = "overlap")]
    overlap_refused: Refused,
}

/// Hits against capacity.
#[derive(Debug, Args)]
struct CurveArgs {
    /// Also find hit ratios at capacities from the longest request to all blocks: lru exactly, in one pass, and every
    /// policy from samples, with their error
    #[arg(long)]
    curve: bool,
    /// The share of the blocks in a sample
    #[arg(long, value_name = "SHARE", default_value_t, requires = "curve")]
    sample_rate: SampleRate,
    /// How many samples to take; their spread is the error that is shown
    #[arg(long, value_name = "N", default_value_t = 4, requires = "curve", value_parser = value_parser!(u32).range(2..=1000))]
    samples: u32,
}

/// The command lines that the presets stand for.
const SMOKE: &str = "policies --trace synth:400:7,synth:300:1 --policy lru,aslru,s3fifo,opt --capacity 64,10% \
                     --overlap --overlap-base-ms 800 --two-tiers 80+10% --curve --sample-rate 0.3 --samples 2";
const QUICK: &str = "policies --trace synth:4000:42 --policy lru,arc,arc:ghost-hits=t2,slru,aslru,ylru,s3fifo,fifo,opt \
                     --overlap --two-tiers 1%+5%,2%+10% --curve";
const FULL: &str = "policies --trace synth:20000:42 --policy lru,arc,arc:ghost-hits=t2,slru,aslru,ylru,s3fifo,fifo,opt \
                    --capacity 1%,2%,5%,10%,20%,30%,50% --overlap --two-tiers 1%+5%,2%+10% --curve --samples 8";

#[derive(Debug, Parser)]
struct Preset {
    #[command(flatten)]
    args: PoliciesArgs,
}

impl PoliciesArgs {
    /// What its file of results is called.
    pub(crate) fn report_name(&self) -> &'static str {
        if self.preset.smoke { "policies-smoke" } else { "policies" }
    }

    /// What is to be run in place of this, if it names a preset.
    pub(super) fn preset(&self) -> Option<Self> {
        let PresetArgs { smoke, quick, full } = self.preset;
        let (_, line) =
            [(smoke, SMOKE), (quick, QUICK), (full, FULL)].into_iter().find(|(named, _)| *named)?;
        let args = Preset::parse_from(line.split_whitespace()).args;
        Some(Self { check: self.check, ..args })
    }

    /// Loads the traces, and says what to run on each.
    pub(super) fn plans(&self) -> anyhow::Result<Vec<Plan>> {
        let mut contenders: Vec<Contender> = Vec::new();
        for policy in self.policy.iter().flat_map(|list| &list.0) {
            if !contenders.contains(policy) {
                contenders.push(*policy);
            }
        }
        if (self.overlap.overlap || !self.two_tiers.is_empty()) && policies(&contenders).next().is_none() {
            bail!(
                "--overlap and --two-tiers need a --policy beside opt, which can only serve one request at a time"
            );
        }
        let plan = |trace: Trace| {
            let name = trace.name.clone();
            self.plan(&contenders, trace).context(name)
        };
        self.traces.load()?.into_iter().map(plan).collect()
    }

    fn plan(&self, contenders: &[Contender], trace: Trace) -> Result<Plan, CapacityError> {
        let mut cells = Vec::new();
        for capacity in &self.capacity {
            let chunks = capacity.chunks(trace.num_unique)?;
            for &policy in contenders {
                if !cells.contains(&(policy, chunks)) {
                    cells.push((policy, chunks));
                }
            }
        }
        let mut work: Vec<_> =
            cells.iter().map(|&(policy, capacity)| Work::Cell { policy, capacity }).collect();
        if self.overlap.overlap {
            let (service, refused) = (self.overlap.service(), self.overlap.overlap_refused);
            work.extend(cells.iter().filter_map(|&(policy, capacity)| match policy {
                Contender::Policy(policy) => Some(Work::Overlap { policy, capacity, service, refused }),
                Contender::Opt => None,
            }));
        }
        for sizes in &self.two_tiers {
            let capacities = sizes.blocks(trace.num_unique)?;
            work.extend(
                policies(contenders)
                    .flat_map(|policy| Fill::ALL.map(|fill| Work::TwoTiers { policy, capacities, fill })),
            );
        }
        let sampling = self.curve.curve.then(|| Sampling {
            capacities: curve_capacities(&trace, cells.iter().map(|(_, capacity)| *capacity)),
            rate: self.curve.sample_rate,
        });
        if sampling.is_some() {
            let lru = Contender::Policy(PolicyKind::Lru);
            work.extend(contenders.contains(&lru).then_some(Work::LruCurve));
            let samples =
                |&policy| (0..self.curve.samples).map(move |number| Work::Sample { policy, number });
            work.extend(contenders.iter().flat_map(samples));
        }
        Ok(Plan { trace, cells, work, sampling })
    }
}

impl OverlapArgs {
    fn service(&self) -> ServiceTime {
        ServiceTime {
            base: self.overlap_base_ms,
            uncached_token: self.overlap_uncached_token_ms,
            output_token: self.overlap_output_token_ms,
        }
    }
}

/// The contenders that are policies.
fn policies(contenders: &[Contender]) -> impl Iterator<Item = PolicyKind> {
    contenders.iter().filter_map(|contender| match contender {
        Contender::Policy(policy) => Some(*policy),
        Contender::Opt => None,
    })
}
