//! `kvo-bench device`: what plans and a device cost beside the copies themselves.

use std::io::{Write, stdout};

use clap::Args;
use kvo_bench::{
    Interrupt,
    device::{DevicePlan, DeviceResults, Scatter, compare_copies, cpu_per_copy, plan},
    new_table, number_cell,
    nvme::points_table,
    progress_bar,
};

use crate::{Outcome, finish};

/// Chunk sizes that are copied.
const CHUNK_BYTES: [u64; 4] = [64 << 10, 256 << 10, 1 << 20, 4 << 20];
/// Blocks a chunk that are planned.
const BLOCKS_PER_CHUNK: [u32; 2] = [1, 16];

/// What it costs to plan copies, and to run them through a device whose memory is host memory: beside plain copies of
/// the same bytes, in the same rounds. It is a model of a device, and says nothing of a link or a GPU.
#[derive(Debug, Args)]
pub(crate) struct DeviceArgs {
    /// Very short run against rot; the figures mean nothing
    #[arg(long, group = "preset")]
    smoke: bool,
    /// Some seconds; this is the default
    #[arg(long, group = "preset")]
    quick: bool,
    /// For figures to quote
    #[arg(long, group = "preset")]
    full: bool,
    /// Interleaved rounds, after one that does not count [default: 15; --full: 51; --smoke: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    rounds: Option<u16>,
}

impl DeviceArgs {
    pub(crate) fn report_name(&self) -> &'static str {
        if self.smoke { "device-smoke" } else { "device" }
    }

    fn plan(&self) -> DevicePlan {
        let (rounds, round_bytes, num_blocks) = match (self.smoke, self.full) {
            (true, _) => (1, 8 << 20, 64),
            (_, true) => (51, 256 << 20, 2048),
            _ => (15, 128 << 20, 2048),
        };
        DevicePlan { rounds: self.rounds.unwrap_or(rounds), round_bytes, num_blocks }
    }
}

pub(crate) fn run(args: &DeviceArgs, interrupt: &Interrupt) -> anyhow::Result<Outcome> {
    let plan = args.plan();
    let mut results = DeviceResults { plan, plans: Vec::new(), copies: Vec::new(), cpu_per_copy_ns: 0.0 };
    let steps =
        [Scatter::Adjacent, Scatter::Scattered].map(|scatter| BLOCKS_PER_CHUNK.map(|per| (scatter, per)));
    let cases = CHUNK_BYTES.map(|bytes| [(bytes, true), (bytes, false)]);
    let progress =
        progress_bar((steps.as_flattened().len() + cases.as_flattened().len() + 1) as u64, "cases");
    for &(scatter, per_chunk) in steps.as_flattened().iter().take_while(|_| !interrupt.is_set()) {
        results.plans.push(self::plan(scatter, plan.num_blocks, per_chunk, plan.rounds)?);
        progress.inc(1);
    }
    for &(bytes, is_store) in cases.as_flattened().iter().take_while(|_| !interrupt.is_set()) {
        results.copies.push(compare_copies(&plan, bytes, is_store)?);
        progress.inc(1);
    }
    if !interrupt.is_set() {
        results.cpu_per_copy_ns = cpu_per_copy(plan.rounds)?;
    }
    progress.finish_and_clear();
    print(&mut stdout(), &results, interrupt.is_set())?;
    finish(&mut stdout(), results, args.report_name(), interrupt)
}

fn print(out: &mut impl Write, results: &DeviceResults, is_cut: bool) -> anyhow::Result<()> {
    let mut table = new_table(["blocks", "blocks a chunk", "pages", "copies", "ns a page", "ns a copy"]);
    for plan in &results.plans {
        table.add_row([
            number_cell(plan.scatter),
            number_cell(plan.blocks_per_chunk),
            number_cell(plan.num_pages),
            number_cell(plan.num_ops),
            number_cell(format!("{:.2}", plan.ns_per_page)),
            number_cell(format!("{:.2}", plan.ns_per_op)),
        ]);
    }
    writeln!(out, "plans of a load, 32 layers of K and V:\n{table}")?;
    let mut table = new_table(["chunk KiB", "", "plain GB/s", "device GB/s (model)", "of plain"]);
    for copies in &results.copies {
        table.add_row([
            number_cell(copies.chunk_bytes >> 10),
            number_cell(copies.class),
            number_cell(format!("{:.2}", copies.plain_gbps)),
            number_cell(format!("{:.2}", copies.device_gbps)),
            number_cell(format!("{:.2}", copies.ratio)),
        ]);
    }
    writeln!(out, "copies through a device in host memory, a model, beside plain ones:\n{table}")?;
    if is_cut {
        return Ok(());
    }
    writeln!(out, "{}", points_table(&results.points()))?;
    Ok(())
}
