//! `kvo-bench policies`: eviction policies on traces, without bytes.

mod check;
mod json;
mod table;

use std::{
    io::{Write, stdout},
    time::Instant,
};

use anyhow::Context;
use clap::Args;
use kvo_bench::{
    Capacity, Contender, ContenderList, Interrupt, PolicyResult, Report, Ticker, Trace, progress_bar,
    run_cell, run_parallel, summarise,
};

use self::json::{Results, TraceResults};
use crate::{
    Outcome,
    args::{TraceSummary, TracesArgs},
};

/// Counts hits, inserts and evictions of eviction policies on traces.
///
/// One request after the other: its hits are its leading blocks that are resident; then it stores its blocks and
/// finishes, as one access. The policies and the CPU tier are the shipping ones; no bytes move. A chunk is stranded if
/// it is resident and one before it in its prefix is not: the worst of samples every 200 requests. The time is CPU
/// time of the tier's calls, and rough: `micro` is exact.
#[derive(Debug, Args)]
pub(crate) struct PoliciesArgs {
    #[command(flatten)]
    traces: TracesArgs,
    /// Policies to run: lru, arc, arc:ghost-hits=t2, arc:canonical, slru, slru:protected=50, aslru, s3fifo,
    /// s3fifo:small=30,threshold=1,leaf-only=false, fifo; opt is the most that any policy could have
    #[arg(long, value_name = "NAME,...", default_value = "lru,arc")]
    policy: Vec<ContenderList>,
    /// Capacities: chunks, or percentages of the trace's different blocks
    #[arg(long, value_name = "N|P%,...", value_delimiter = ',', default_value = "1%,5%,10%,20%,50%")]
    capacity: Vec<Capacity>,
    /// Compare with the published figures and fail if one differs, or if there are none of a trace
    #[arg(long)]
    check: bool,
}

/// One trace, and what is to be run on it.
struct Plan {
    trace: Trace,
    cells: Vec<(Contender, u32)>,
}

/// A trace with what came out.
pub(crate) struct Ran {
    trace: Trace,
    cells: Vec<(Contender, u32)>,
    results: Vec<PolicyResult>,
}

pub(crate) fn run(args: &PoliciesArgs, interrupt: &Interrupt) -> anyhow::Result<Outcome> {
    let mut out = stdout();
    let plans = plans(args)?;
    for plan in &plans {
        writeln!(out, "{}", TraceSummary::of(&plan.trace))?;
    }
    let started = Instant::now();
    let ran = run_plans(plans, interrupt)?;
    let summary = summarise(&ran.iter().map(|ran| (&*ran.trace.name, &*ran.results)).collect::<Vec<_>>());

    for ran in &ran {
        writeln!(out, "\n{}\n{}", ran.trace.name, table::cells(&ran.trace, &ran.results))?;
    }
    if summary.is_empty() {
        writeln!(out, "\nno summary: lru, to compare with, is not among the policies")?;
    } else {
        writeln!(out, "\nall traces and capacities, by hits\n{}", table::summary(&summary))?;
    }
    let cells = ran.iter().map(|ran| ran.results.len()).sum::<usize>();
    writeln!(out, "\n{cells} cells in {:.1} s", started.elapsed().as_secs_f64())?;
    let is_complete =
        |ran: &Ran| ran.results.iter().filter(|r| r.requests == ran.trace.requests.len()).count();
    let whole = ran.iter().map(is_complete).sum::<usize>();
    let results = Results { traces: ran.iter().map(TraceResults::of).collect(), summary };
    let file = Report::new(results, whole == cells).write("policies")?;
    writeln!(out, "as JSON: {}", file.display())?;
    if whole < cells {
        writeln!(out, "stopped: {whole} of {cells} cells cover the whole trace")?;
        return Ok(Outcome::Interrupted);
    }
    if args.check { check::check(&ran) } else { Ok(Outcome::Passed) }
}

/// Every policy at every capacity, on every trace.
fn plans(args: &PoliciesArgs) -> anyhow::Result<Vec<Plan>> {
    let plan = |trace: Trace| {
        let mut cells = Vec::new();
        for capacity in &args.capacity {
            let chunks = capacity.chunks(trace.num_unique).with_context(|| trace.name.clone())?;
            cells.extend(args.policy.iter().flat_map(|list| &list.0).map(|&policy| (policy, chunks)));
        }
        Ok(Plan { trace, cells })
    };
    args.traces.load()?.into_iter().map(plan).collect()
}

fn run_plans(plans: Vec<Plan>, interrupt: &Interrupt) -> anyhow::Result<Vec<Ran>> {
    let jobs: Vec<_> =
        plans.iter().flat_map(|plan| plan.cells.iter().map(|cell| (&plan.trace, *cell))).collect();
    let requests = jobs.iter().map(|(trace, _)| trace.requests.len() as u64).sum();
    let progress = progress_bar(requests, "requests");
    let done = run_parallel(&jobs, |(trace, (policy, capacity))| {
        run_cell(trace, *policy, *capacity, Ticker::new(interrupt, &progress))
    });
    progress.finish_and_clear();
    let mut done = done.into_iter();
    let ran = |Plan { trace, cells }: Plan| {
        let results = done.by_ref().take(cells.len()).collect::<Result<_, _>>()?;
        Ok(Ran { trace, cells, results })
    };
    plans.into_iter().map(ran).collect()
}
