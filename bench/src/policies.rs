//! `kvo-bench policies`: eviction policies on traces, without bytes.

mod args;
mod check;
mod json;
mod run;
mod table;

use std::{
    io::{Write, stdout},
    time::Instant,
};

use kvo_bench::{Interrupt, PolicySummary, Report, summarise};

pub(crate) use self::args::PoliciesArgs;
use self::{
    json::{Results, TraceResults},
    run::Ran,
};
use crate::{Outcome, args::TraceSummary};

pub(crate) fn run(args: &PoliciesArgs, interrupt: &Interrupt) -> anyhow::Result<Outcome> {
    let mut out = stdout();
    let smoke = args.is_smoke().then(PoliciesArgs::smoke);
    let (args, name) = smoke.as_ref().map_or((args, "policies"), |smoke| (smoke, "policies-smoke"));
    let plans = args.plans()?;
    for plan in &plans {
        writeln!(out, "{}", TraceSummary::of(&plan.trace))?;
    }
    let started = Instant::now();
    let ran = run::run(plans, interrupt)?;
    let summary = summarise(&ran.iter().map(|ran| (ran.name(), &*ran.results)).collect::<Vec<_>>());

    print(&mut out, &ran, &summary)?;
    let cells = ran.iter().map(|ran| ran.results.len()).sum::<usize>();
    writeln!(out, "\n{cells} cells in {:.1} s", started.elapsed().as_secs_f64())?;
    let complete = ran.iter().all(Ran::is_complete);
    let results = Results { traces: ran.iter().map(TraceResults::of).collect(), summary };
    let file = Report::new(results, complete).write(name)?;
    writeln!(out, "as JSON: {}", file.display())?;
    if !complete {
        let whole = ran.iter().map(Ran::whole_cells).sum::<usize>();
        writeln!(out, "stopped: {whole} of {cells} cells cover the whole trace")?;
        return Ok(Outcome::Interrupted);
    }
    if args.check { check::check(&ran) } else { Ok(Outcome::Passed) }
}

fn print(out: &mut impl Write, ran: &[Ran], summary: &[PolicySummary]) -> anyhow::Result<()> {
    for ran in ran {
        writeln!(out, "\n{}\n{}", ran.name(), table::cells(&ran.plan.trace, &ran.results))?;
        if !ran.overlap.is_empty() {
            writeln!(out, "\n{}: overlapping requests\n{}", ran.name(), table::overlap(&ran.overlap))?;
        }
        if !ran.two_tiers.is_empty() {
            let table = table::two_tiers(&ran.plan.trace, &ran.two_tiers);
            writeln!(out, "\n{}: an LRU tier of the GPU above the CPU tier\n{table}", ran.name())?;
        }
        if !ran.curves.is_empty() {
            let table = table::curves(&ran.curves);
            writeln!(out, "\n{}: hit % against capacity, sampled ones +- their standard error", ran.name())?;
            writeln!(out, "{table}\n{}", table::curve_errors(&ran.curves))?;
        }
    }
    if summary.is_empty() {
        writeln!(out, "\nno summary: lru, to compare with, is not among the policies")?;
    } else {
        writeln!(out, "\nall traces and capacities, by hits\n{}", table::summary(summary))?;
    }
    Ok(())
}
