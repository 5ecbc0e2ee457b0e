//! `kvo-bench overhead`: what offloading costs where nothing comes back.

use std::io::{Write, stdout};

use clap::Args;
use kvo_bench::{
    Interrupt, new_table, number_cell,
    nvme::points_table,
    overhead::{OverheadPlan, OverheadResults, measure, model},
    progress_bar,
};

use crate::{Outcome, finish};

/// What offloading costs the mini-engine where no prompt comes back: pairs of runs, one with a CPU tier and one without,
/// which give the same answers. The device is host memory, so copies take processor time that a GPU's would not.
#[derive(Debug, Args)]
pub(crate) struct OverheadArgs {
    /// Very short run against rot; the figures mean nothing
    #[arg(long, group = "preset")]
    smoke: bool,
    /// Half a minute; this is the default
    #[arg(long, group = "preset")]
    quick: bool,
    /// For figures to quote
    #[arg(long, group = "preset")]
    full: bool,
}

impl OverheadArgs {
    pub(crate) fn report_name(&self) -> &'static str {
        if self.smoke { "overhead-smoke" } else { "overhead" }
    }

    fn plan(&self) -> OverheadPlan {
        let (rounds, requests) = match (self.smoke, self.full) {
            (true, _) => (1, 4),
            (_, true) => (31, 16),
            _ => (9, 16),
        };
        OverheadPlan { rounds, requests, prompt_tokens: 250, answer_tokens: 38, cpu_chunks: 128 }
    }
}

pub(crate) fn run(args: &OverheadArgs, interrupt: &Interrupt) -> anyhow::Result<Outcome> {
    let plan = args.plan();
    let mut results = OverheadResults {
        plan,
        plain_tokens_per_s: Vec::new(),
        offloaded_tokens_per_s: Vec::new(),
        scheduler_share: Vec::new(),
        chunks_stored: 0,
    };
    let model = model(args.smoke)?;
    let progress = progress_bar(plan.rounds.into(), "rounds");
    for round in (0..plan.rounds).take_while(|_| !interrupt.is_set()) {
        measure(&mut results, &model, round)?;
        progress.inc(1);
    }
    progress.finish_and_clear();
    print(&mut stdout(), &results)?;
    finish(&mut stdout(), results, args.report_name(), interrupt)
}

fn print(out: &mut impl Write, results: &OverheadResults) -> anyhow::Result<()> {
    let mut table = new_table(["tokens/s without", "with", "costs", "scheduler's share"]);
    let runs = results.plain_tokens_per_s.iter().zip(&results.offloaded_tokens_per_s);
    for ((plain, offloaded), share) in runs.zip(&results.scheduler_share) {
        table.add_row([
            number_cell(format!("{plain:.0}")),
            number_cell(format!("{offloaded:.0}")),
            number_cell(format!("{:.2} %", 100.0 * (plain / offloaded - 1.0))),
            number_cell(format!("{:.3} %", 100.0 * share)),
        ]);
    }
    let OverheadPlan { requests, prompt_tokens, answer_tokens, .. } = results.plan;
    writeln!(
        out,
        "{requests} requests of {prompt_tokens} and {answer_tokens} tokens that share nothing; {} chunks are stored:\n{table}",
        results.chunks_stored
    )?;
    if !results.scheduler_share.is_empty() {
        writeln!(out, "{}", points_table(&results.points()))?;
    }
    Ok(())
}
