//! `kvo-bench policies`: eviction policies on a trace, without bytes.

use std::{
    io::{Write, stdout},
    time::Instant,
};

use anyhow::bail;
use clap::Args;
use comfy_table::{Cell, Table};
use kvo_bench::{
    Capacity, Contender, ContenderList, Interrupt, PolicyResult, Report, Trace, golden::Golden, kvo_synth,
    new_table, number_cell, progress_bar, run_cells,
};
use serde::Serialize;

use crate::{
    Outcome,
    args::{TraceArgs, TraceSummary},
};

/// Counts hits, inserts and evictions of eviction policies on a trace.
///
/// One request after the other: its hits are its leading blocks that are resident; then it stores its blocks and
/// finishes, as one access. The policies and the CPU tier are the shipping ones; no bytes move. A chunk is stranded if
/// it is resident and one before it in its prefix is not: the worst of samples every 200 requests.
#[derive(Debug, Args)]
#[expect(clippy::struct_excessive_bools, reason = "they are flags of a command line")]
pub(crate) struct PoliciesArgs {
    #[command(flatten)]
    trace: TraceArgs,
    /// Policies to run: lru, arc, arc:ghost-hits=t2, arc:canonical, slru, slru:protected=50, aslru, s3fifo,
    /// s3fifo:small=30,threshold=1,leaf-only=false, fifo; opt is the most that any policy could have
    #[arg(long, value_name = "NAME,...", default_value = "lru,arc")]
    policy: Vec<ContenderList>,
    /// Capacities: chunks, or percentages of the trace's different blocks
    #[arg(long, value_name = "N|P%,...", value_delimiter = ',', default_value = "1%,5%,10%,20%,50%")]
    capacity: Vec<Capacity>,
    /// Compare with the published figures and fail if one differs, or if there are none
    #[arg(long)]
    check: bool,
    /// A short run against rot: 400 generated requests, three policies
    #[arg(long, group = "preset", conflicts_with_all = ["trace", "policy", "capacity"])]
    smoke: bool,
    /// Every policy on 4000 generated requests
    #[arg(long, group = "preset", conflicts_with_all = ["trace", "policy", "capacity"])]
    quick: bool,
    /// Every policy on 20000 generated requests, at more capacities
    #[arg(long, group = "preset", conflicts_with_all = ["trace", "policy", "capacity"])]
    full: bool,
}

#[derive(Debug, Serialize)]
struct Results<'a> {
    traces: [OnTrace<'a>; 1],
}

/// What was counted on one trace.
#[derive(Debug, Serialize)]
struct OnTrace<'a> {
    trace: TraceSummary,
    cells: &'a [PolicyResult],
}

impl PoliciesArgs {
    /// What its file of results is called.
    pub(crate) fn report_name(&self) -> &'static str {
        if self.smoke { "policies-smoke" } else { "policies" }
    }

    /// The trace, the policies and the capacities of the preset or of the flags.
    fn work(&self) -> anyhow::Result<(Trace, Vec<ContenderList>, Vec<Capacity>)> {
        const EVERY: &str = "lru,arc,arc:ghost-hits=t2,slru,aslru,s3fifo,fifo,opt";
        let (trace, policies, capacities) = match (self.smoke, self.quick, self.full) {
            (true, _, _) => (kvo_synth(400, 7), "lru,aslru,opt", "32,128,512"),
            (_, true, _) => (kvo_synth(4000, 42), EVERY, "1%,5%,10%,20%,50%"),
            (_, _, true) => (kvo_synth(20_000, 42), EVERY, "1%,2%,5%,10%,20%,30%,50%"),
            _ => return Ok((self.trace.load()?, self.policy.clone(), self.capacity.clone())),
        };
        let capacities = capacities.split(',').map(str::parse).collect::<Result<_, _>>()?;
        Ok((trace, vec![policies.parse()?], capacities))
    }
}

pub(crate) fn run(args: &PoliciesArgs, interrupt: &Interrupt) -> anyhow::Result<Outcome> {
    let mut out = stdout();
    let (trace, policies, capacities) = args.work()?;
    let cells = cells(&policies, &capacities, &trace)?;
    let summary = TraceSummary::of(&trace);
    writeln!(out, "{summary}")?;

    let started = Instant::now();
    let progress = progress_bar(trace.requests.len() as u64 * cells.len() as u64, "requests");
    let results = run_cells(&trace, &cells, interrupt, &progress);
    progress.finish_and_clear();
    let results = results?;
    let is_complete = |result: &PolicyResult| result.requests == trace.requests.len();
    let complete = results.iter().all(is_complete);

    writeln!(out, "{}", table(&results))?;
    writeln!(out, "{} cells in {:.1} s", results.len(), started.elapsed().as_secs_f64())?;
    let results_file =
        Report::new(Results { traces: [OnTrace { trace: summary, cells: &results }] }, complete)
            .write(args.report_name())?;
    writeln!(out, "as JSON: {}", results_file.display())?;
    if !complete {
        let whole = results.iter().filter(|result| is_complete(result)).count();
        writeln!(out, "stopped: {whole} of {} cells cover the whole trace", results.len())?;
        return Ok(Outcome::Interrupted);
    }
    if args.check { check(&trace, &cells, &results) } else { Ok(Outcome::Passed) }
}

/// Every policy at every capacity.
fn cells(
    policies: &[ContenderList],
    capacities: &[Capacity],
    trace: &Trace,
) -> anyhow::Result<Vec<(Contender, u32)>> {
    let mut cells = Vec::new();
    for capacity in capacities {
        let chunks = capacity.chunks(trace.num_unique)?;
        cells.extend(policies.iter().flat_map(|list| &list.0).map(|&policy| (policy, chunks)));
    }
    Ok(cells)
}

fn table(results: &[PolicyResult]) -> Table {
    let mut table = new_table([
        "capacity",
        "policy",
        "requests",
        "accesses",
        "hits",
        "hit %",
        "inserts",
        "evictions",
        "stranded %",
        "eviction order",
    ]);
    // A stopped run has cells that never began.
    for result in results.iter().filter(|result| result.requests > 0) {
        table.add_row([
            number_cell(result.capacity),
            Cell::new(&result.policy),
            number_cell(result.requests),
            number_cell(result.accesses),
            number_cell(result.hits),
            number_cell(format!("{:.2}", 100.0 * result.hit_ratio())),
            number_cell(result.inserts),
            number_cell(result.evictions),
            number_cell(
                result.stranded_worst.map(|worst| format!("{:.2}", worst.percent())).unwrap_or_default(),
            ),
            Cell::new(result.eviction_order.to_string()),
        ]);
    }
    table
}

/// Holds the results against what is published.
fn check(trace: &Trace, cells: &[(Contender, u32)], results: &[PolicyResult]) -> anyhow::Result<Outcome> {
    let fingerprint = trace.fingerprint();
    let mut out = stdout();
    let (mut agree, mut differ) = (0, 0);
    for (&(policy, capacity), result) in cells.iter().zip(results) {
        let Some(golden) = Golden::of(fingerprint, policy, capacity) else { continue };
        if golden.agrees(result) {
            agree += 1;
        } else {
            differ += 1;
            writeln!(out, "DIFFERS: {policy} at {capacity}: published are {}", published(&golden))?;
        }
    }
    if agree + differ == 0 {
        bail!("--check: nothing is published for these policies and capacities on {}", trace.name);
    }
    writeln!(out, "published figures: {agree} cells agree, {differ} differ")?;
    Ok(if differ == 0 { Outcome::Passed } else { Outcome::Failed })
}

fn published(golden: &Golden) -> String {
    let evictions = golden
        .evictions
        .map(|(evictions, order)| format!(" and {evictions} evictions in the order {order:016x}"))
        .unwrap_or_default();
    format!("{} hits{evictions}", golden.hits)
}
