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

use kvo_bench::{CellHits, Interrupt, summarise};

pub(crate) use self::args::PoliciesArgs;
use self::{
    json::{Results, TraceResults},
    run::Ran,
};
use crate::{Outcome, args::TraceSummary, write_report};

pub(crate) fn run(args: &PoliciesArgs, interrupt: &Interrupt) -> anyhow::Result<Outcome> {
    let mut out = stdout();
    let (preset, name) = (args.preset(), args.report_name());
    let args = preset.as_ref().unwrap_or(args);
    let plans = args.plans()?;
    for plan in &plans {
        writeln!(out, "{}", TraceSummary::of(&plan.trace))?;
    }
    let started = Instant::now();
    let ran = run::run(plans, interrupt)?;
    let complete = ran.iter().all(Ran::is_complete);
    // Parts of traces are not compared.
    let whole = if complete { &ran[..] } else { &[] };
    let summary = summarise(&hits(whole, |ran| &ran.results));
    let overlap_summary = summarise(&hits(whole, |ran| &ran.overlap));

    print(&mut out, &ran)?;
    if complete && summary.is_empty() {
        writeln!(out, "\nno summary: lru, to compare with, is not among the policies")?;
    }
    for (of, summary) in [("", &summary), (", overlapping requests", &overlap_summary)] {
        if !summary.is_empty() {
            writeln!(out, "\nall traces and capacities{of}, by hits\n{}", table::summary(summary))?;
        }
    }
    let cells = ran.iter().map(|ran| ran.results.len()).sum::<usize>();
    writeln!(out, "\n{cells} cells in {:.1} s", started.elapsed().as_secs_f64())?;
    let results = Results { traces: ran.iter().map(TraceResults::of).collect(), summary, overlap_summary };
    write_report(&mut out, results, name, complete)?;
    if !complete {
        say_what_is_left(&mut out, &ran, cells)?;
        return Ok(Outcome::Interrupted);
    }
    if args.check { check::check(&ran) } else { Ok(Outcome::Passed) }
}

/// Says how much of a run was done when it was stopped.
fn say_what_is_left(out: &mut impl Write, ran: &[Ran], cells: usize) -> anyhow::Result<()> {
    let whole_cells = ran.iter().map(Ran::whole_cells).sum::<usize>();
    writeln!(out, "stopped: {whole_cells} of {cells} cells cover the whole trace")?;
    let (pieces, whole) = ran.iter().map(Ran::pieces).fold((0, 0), |sum, ran| (sum.0 + ran.0, sum.1 + ran.1));
    let others = pieces - cells;
    if others > 0 {
        let left_out = others - (whole - whole_cells);
        writeln!(out, "of {others} other runs {left_out} do not, and are left out")?;
    }
    Ok(())
}

fn print(out: &mut impl Write, ran: &[Ran]) -> anyhow::Result<()> {
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
    Ok(())
}

/// What is to be summarised of each trace.
fn hits<'a, R: 'a>(ran: &'a [Ran], results: impl Fn(&'a Ran) -> &'a [R]) -> Vec<(&'a str, Vec<CellHits<'a>>)>
where
    &'a R: Into<CellHits<'a>>,
{
    ran.iter().map(|ran| (ran.name(), results(ran).iter().map(Into::into).collect())).collect()
}
