//! kvo's store beside foyer's disk cache and a file per chunk.

use std::{
    io::{Write, stdout},
    path::Path,
};

use clap::Args;
use kvo_bench::{
    Interrupt, Report,
    micro::Preset,
    nvme::{
        Bound, Direction, Floor, HostChunks, NvmeBenchOptions, NvmePlan, NvmeRunResults, Place, Point, Ratio,
        SlotFile, StoreKind, StoreRun, Subject, ratios, subject_dir,
    },
};

use crate::{Outcome, file_per_chunk::FilePerChunk, foyer_cache::FoyerCache};

/// What kvo's store is called here.
const KVO: &str = "kvo";

/// Measures kvo's store as it is by default beside foyer 0.22's disk cache and a file per chunk.
///
/// All of them in the same rounds, in an order of each round's own, between the same host memory and the same file
/// system, beside plain I/O. The figures go to target/bench/compare-nvme.json too.
#[derive(Debug, Args)]
pub(crate) struct NvmeArgs {
    #[command(flatten)]
    options: NvmeBenchOptions,
}

pub(crate) fn run(args: &NvmeArgs) -> anyhow::Result<Outcome> {
    let interrupt = Interrupt::on_ctrl_c()?;
    let mut out = stdout();
    let plan = args.options.plan_beside_others();
    let mut place = Place::new(args.options.dir.as_deref())?;
    place.announce(&mut out)?;
    let cases = place.run(&plan, 4, |dir, host| subjects(dir, host, &plan), &interrupt)?;
    place.surroundings.end();

    let mut results =
        NvmeRunResults::new(&plan, place.surroundings.clone(), Floor::NAME, notes(&plan), cases);
    judge(&mut results);
    writeln!(out, "{}", results.table())?;
    writeln!(out, "{}", results.ratios_table())?;
    if plan.preset != Preset::Smoke {
        writeln!(out, "{}", results.points_table())?;
    }
    for note in &results.notes {
        writeln!(out, "{note}")?;
    }
    let (verified_bytes, mismatches) = (results.verified_bytes, results.mismatches);
    writeln!(
        out,
        "{} MiB that were read compared byte by byte, {mismatches} chunks differ",
        verified_bytes >> 20
    )?;
    let name = if plan.preset == Preset::Smoke { "compare-nvme-smoke" } else { "compare-nvme" };
    let file = Report::new(results, !interrupt.is_set()).write(name)?;
    writeln!(out, "as JSON: {}", file.display())?;
    Ok(match (mismatches, interrupt.is_set()) {
        (1.., _) => Outcome::Failed,
        (0, true) => Outcome::Interrupted,
        (0, false) => Outcome::Passed,
    })
}

fn subjects(dir: &Path, host: &HostChunks, plan: &NvmePlan) -> anyhow::Result<Vec<Box<dyn Subject>>> {
    let below = |name| subject_dir(dir, name);
    let slots = SlotFile::make(&below(KVO)?, host)?;
    Ok(vec![
        Box::new(Floor::new(&slots, host, plan.floor_threads, 0)?),
        Box::new(StoreRun::new(StoreKind::Full, &slots, host, 1).named(KVO)),
        Box::new(FoyerCache::new(&below(FoyerCache::NAME)?, host, 2)?),
        Box::new(FilePerChunk::new(&below(FilePerChunk::NAME)?, host, 3)?),
    ])
}

fn notes(plan: &NvmePlan) -> Vec<String> {
    vec![
        format!("floor: positional I/O by {} threads, without checksum or index", plan.floor_threads),
        "kvo: the store as it is by default; a write ends with the file synced, a read in the chunk's slot"
            .to_owned(),
        format!("foyer: {}", FoyerCache::ABOUT),
        format!("file per chunk: {}", FilePerChunk::ABOUT),
    ]
}

/// Divides kvo's figures by each of the others', and holds what comes out against what is asked.
fn judge(results: &mut NvmeRunResults) {
    let over = |name: &str| ratios(&results.cases, KVO, name);
    let (floor, foyer, files) = (over(Floor::NAME), over(FoyerCache::NAME), over(FilePerChunk::NAME));
    let others = [FoyerCache::NAME, FilePerChunk::NAME].map(|name| ratios(&results.cases, name, Floor::NAME));
    let foyer_rate = |ratio: &Ratio| {
        Bound::AtLeast(match ratio.direction {
            Direction::Write => 2.0,
            Direction::Read => 1.8,
        })
    };
    results.points.extend(foyer.iter().map(|ratio| Point::of_rate(ratio, foyer_rate(ratio))));
    results.points.extend(foyer.iter().filter_map(|ratio| Point::of_cpu(ratio, Bound::AtMost(0.25))));
    let writes = files.iter().filter(|ratio| ratio.direction == Direction::Write);
    results.points.extend(writes.map(|ratio| Point::of_rate(ratio, Bound::AtLeast(2.5))));
    results.ratios.extend(foyer.into_iter().chain(files).chain(floor));
    results.ratios.extend(others.into_iter().flatten());
}
