//! `kvo-bench connector`: what a connector costs an engine's scheduler.

use std::io::{Write, stdout};

use anyhow::Context;
use clap::Args;
use kvo_bench::{
    Interrupt,
    connector::{BelowRun, ConnectorPlan, ConnectorResults, run_below, run_connector},
    new_table, number_cell,
    nvme::points_table,
    progress_bar,
};

use crate::{Outcome, finish};

/// What a connector costs an engine's scheduler: requests that decode beside each other, each on a long context, and
/// requests that find all their tokens. No bytes are moved.
#[derive(Debug, Args)]
pub(crate) struct ConnectorArgs {
    /// Very short run against rot; the figures mean nothing
    #[arg(long, group = "preset")]
    smoke: bool,
    /// 256 requests of 32,768 tokens; this is the default
    #[arg(long, group = "preset")]
    quick: bool,
    /// The same for more steps
    #[arg(long, group = "preset")]
    full: bool,
}

impl ConnectorArgs {
    pub(crate) fn report_name(&self) -> &'static str {
        if self.smoke { "connector-smoke" } else { "connector" }
    }

    fn plan(&self) -> ConnectorPlan {
        match (self.smoke, self.full) {
            (true, _) => ConnectorPlan { requests: 8, tokens: 1024, steps: 64, finished: 100 },
            (_, true) => ConnectorPlan { requests: 256, tokens: 32_768, steps: 4096, finished: 100_000 },
            _ => ConnectorPlan { requests: 256, tokens: 32_768, steps: 1024, finished: 50_000 },
        }
    }

    /// With a store, which writes all chunks.
    fn plan_below(&self) -> ConnectorPlan {
        let ConnectorPlan { requests, tokens, .. } = self.plan();
        ConnectorPlan {
            requests: requests.min(32),
            tokens,
            steps: if self.full { 1024 } else { 256 },
            finished: 0,
        }
    }
}

pub(crate) fn run(args: &ConnectorArgs, interrupt: &Interrupt) -> anyhow::Result<Outcome> {
    let plan = args.plan();
    let mut results = ConnectorResults { plan, runs: Vec::new(), below: Vec::new() };
    let progress = progress_bar(4, "runs");
    for finished in [0, plan.finished].into_iter().take_while(|_| !interrupt.is_set()) {
        results.runs.push(run_connector(&plan, finished)?);
        progress.inc(1);
    }
    for has_store in [false, true].into_iter().take_while(|_| !interrupt.is_set()) {
        let dir = tempfile::tempdir().context("there is no directory for a store")?;
        results.below.push(run_below(&args.plan_below(), has_store.then_some(dir.path()))?);
        progress.inc(1);
    }
    progress.finish_and_clear();
    print(&mut stdout(), &results)?;
    finish(&mut stdout(), results, args.report_name(), interrupt)
}

fn print(out: &mut impl Write, results: &ConnectorResults) -> anyhow::Result<()> {
    let ConnectorPlan { requests, tokens, steps, .. } = results.plan;
    let mut table = new_table([
        "finished before",
        "step, us",
        "median step",
        "all store",
        "name its chunks, us",
        "match a request, us",
        "plan its load, us",
    ]);
    for run in &results.runs {
        let of = |us: f64| number_cell(format!("{us:.1}"));
        table.add_row([
            number_cell(run.finished),
            of(run.step_us),
            of(run.median_step_us),
            of(run.storing_step_us),
            of(run.name_us),
            of(run.match_us),
            of(run.load_us),
        ]);
    }
    writeln!(out, "{requests} requests of {tokens} tokens decode for {steps} steps:\n{table}")?;
    print_below(out, &results.below)?;
    writeln!(out, "{}", points_table(&results.points()))?;
    Ok(())
}

fn print_below(out: &mut impl Write, runs: &[BelowRun]) -> anyhow::Result<()> {
    let Some(first) = runs.first() else { return Ok(()) };
    let mut table = new_table([
        "below",
        "step, us",
        "all store",
        "name, match, plan a load, us",
        "the step behind it",
        "chunks given",
    ]);
    for run in runs {
        let of = |us: f64| number_cell(format!("{us:.1}"));
        table.add_row([
            if run.has_store { "a store" } else { "nothing" }.into(),
            of(run.step_us),
            of(run.storing_step_us),
            of(run.load_us),
            of(run.first_step_us),
            number_cell(run.chunks_given),
        ]);
    }
    writeln!(out, "{} requests, and below the CPU tier nothing or a store:\n{table}", first.requests)?;
    Ok(())
}
