//! `kvo-bench nvme`: the store beside the fastest plain I/O.

use std::{
    io::{Write, stdout},
    path::Path,
};

use anyhow::Context;
use clap::Args;
use kvo_bench::{
    Interrupt,
    micro::Preset,
    new_table, number_cell,
    nvme::{
        AtRest, Fio, FioRun, Floor, HostChunks, HugePages, MixedResult, NvmeBenchOptions, NvmePlan,
        NvmeRunResults, Place, Point, READ_DEPTH, STORE_JOBS, SlotFile, StoreKind, StoreRun, Subject, Work,
        cpu_points, measure_at_rest, ratios, run_mixed, subject_dir,
    },
};

use crate::{Outcome, write_report};

/// Writes and reads chunks through the NVMe store, every byte compared, beside fio and plain I/O.
///
/// Ratios count: all subjects run in the same rounds, in an order of each round's own, and a ratio is to the floor of
/// its round. `raw` is the store without checksums, `full` as it is by default, `pool` on threads instead of `io_uring`.
/// On a virtual machine the host may have a cache of its own.
#[derive(Debug, Args)]
pub(crate) struct NvmeArgs {
    #[command(flatten)]
    options: NvmeBenchOptions,
    /// Leave fio out, which needs pages of the kernel's pool of huge pages: as root they are added, and taken out again
    #[arg(long)]
    no_fio: bool,
}

impl NvmeArgs {
    /// What its file of results is called.
    pub(crate) fn report_name(&self) -> &'static str {
        if self.options.smoke { "nvme-smoke" } else { "nvme" }
    }
}

pub(crate) fn run(args: &NvmeArgs, interrupt: &Interrupt) -> anyhow::Result<Outcome> {
    let mut out = stdout();
    let plan = args.options.plan();
    let mut place = Place::new(args.options.dir.as_deref())?;
    place.announce(&mut out)?;
    let fio = find_fio(args, &plan, interrupt);
    if let Err(why) = &fio {
        writeln!(out, "SKIPPED fio: {why}")?;
    }
    let denominator = if fio.is_ok() { FioRun::NAME } else { Floor::NAME };
    let make = |dir: &Path, host: &HostChunks| subjects(dir, host, &plan, fio.is_ok());
    let num_subjects = 1 + usize::from(fio.is_ok()) + StoreKind::ALL.len();
    let cases = place.run(&plan, num_subjects, make, interrupt)?;
    let mixed = run_mixed_loads(&place, &plan, interrupt)?;
    let at_rest = look_at_rest(&place, &plan, interrupt)?;
    place.surroundings.end();
    let notes = notes(&plan, fio.as_ref().map(|(fio, _)| fio).map_err(String::as_str));
    drop(fio);

    let mut results = NvmeRunResults::new(&plan, place.surroundings.clone(), denominator, notes, cases);
    judge(&mut results);
    for mixed in mixed {
        results.add_mixed(mixed);
    }
    if let Some(at_rest) = at_rest {
        for what in &at_rest.skipped {
            writeln!(out, "SKIPPED {what}")?;
        }
        results.points.extend(at_rest.points());
        results.at_rest = Some(at_rest);
    }
    print(&mut out, &results)?;
    let mismatches = results.mismatches;
    let complete = !interrupt.is_set();
    write_report(&mut out, results, args.report_name(), complete)?;
    if mismatches > 0 {
        writeln!(out, "FAILED: {mismatches} chunks came back with other bytes")?;
        return Ok(Outcome::Failed);
    }
    Ok(if complete { Outcome::Passed } else { Outcome::Interrupted })
}

/// Reads and stores at once, at some of the chunk sizes.
fn run_mixed_loads(
    place: &Place,
    plan: &NvmePlan,
    interrupt: &Interrupt,
) -> anyhow::Result<Vec<MixedResult>> {
    let works = plan.mixed_works().iter().take_while(|_| !interrupt.is_set());
    let run = |work: &Work| {
        let dir = place.below("mixed")?;
        run_mixed(dir.path(), *work, interrupt)
            .with_context(|| format!("reads and stores at once, chunks of {} bytes", work.chunk_bytes))
    };
    works.map(run).collect()
}

/// What a store costs beside its transfers; none once it is interrupted.
fn look_at_rest(place: &Place, plan: &NvmePlan, interrupt: &Interrupt) -> anyhow::Result<Option<AtRest>> {
    let Some(work) = plan.mixed_works().last().filter(|_| !interrupt.is_set()) else { return Ok(None) };
    let host = HostChunks::new(work.num_chunks, work.chunk_bytes as usize, 0)?;
    let dir = place.below("rest")?;
    measure_at_rest(dir.path(), &host, plan.preset, interrupt).context("a store at rest").map(Some)
}

/// fio with the huge pages that it needs, or why there is none.
fn find_fio(args: &NvmeArgs, plan: &NvmePlan, interrupt: &Interrupt) -> Result<(Fio, HugePages), String> {
    if args.no_fio {
        return Err("--no-fio".to_owned());
    }
    if plan.preset == Preset::Smoke {
        // Several smoke runs at once would take each other's.
        return Err("a smoke run leaves the machine's pool of huge pages alone".to_owned());
    }
    let fio = Fio::find().map_err(|error| format!("{error:#}"))?;
    let chunk_bytes = plan.works.iter().map(|work| work.chunk_bytes).max().unwrap_or_default();
    let pages = HugePages::reserve(Fio::buffer_bytes(chunk_bytes.into()))
        .map_err(|error| format!("it gets no huge pages, and without them it is no floor: {error:#}"))?;
    interrupt.before_exit(pages.undo());
    Ok((fio, pages))
}

fn subjects(
    dir: &Path,
    host: &HostChunks,
    plan: &NvmePlan,
    with_fio: bool,
) -> anyhow::Result<Vec<Box<dyn Subject>>> {
    let slots = SlotFile::make(&subject_dir(dir, "slots")?, host)?;
    let mut subjects: Vec<Box<dyn Subject>> = Vec::new();
    if with_fio {
        subjects.push(Box::new(FioRun::new(&slots, host)));
    }
    subjects.push(Box::new(Floor::new(&slots, host, plan.floor_threads, 0)?));
    for (kind, group) in StoreKind::ALL.into_iter().zip(1..) {
        subjects.push(Box::new(StoreRun::new(kind, &slots, host, group)));
    }
    Ok(subjects)
}

fn notes(plan: &NvmePlan, fio: Result<&Fio, &str>) -> Vec<String> {
    let fio = match fio {
        Ok(fio) => format!(
            "fio: {}, io_uring, direct, registered buffers and files, 16 chunks under way, buffers on huge pages",
            fio.version()
        ),
        Err(why) => format!("fio was left out: {why}"),
    };
    vec![
        fio,
        format!("floor: positional I/O by {} threads, without checksum or index", plan.floor_threads),
        "raw: the store without checksums".to_owned(),
        "full: the store as it is by default".to_owned(),
        "pool: the store on threads instead of io_uring".to_owned(),
    ]
}

/// Divides by the floor, and holds what comes out against what is asked.
fn judge(results: &mut NvmeRunResults) {
    let denominator = results.denominator.clone();
    if denominator != Floor::NAME {
        results.ratios.extend(ratios(&results.cases, Floor::NAME, &denominator));
    }
    for kind in StoreKind::ALL {
        let of_kind = ratios(&results.cases, kind.name(), &denominator);
        let points = of_kind.iter().map(|ratio| Point::of_rate(ratio, kind.rate_bound(ratio.direction)));
        results.points.extend(points);
        results.points.extend(cpu_points(&results.cases, kind));
        results.ratios.extend(of_kind);
    }
}

fn print(out: &mut impl Write, results: &NvmeRunResults) -> anyhow::Result<()> {
    writeln!(out, "{}", results.table())?;
    writeln!(
        out,
        "reads of a chunk, {READ_DEPTH} under way, alone and while {STORE_JOBS} store jobs are always under way:\n{}",
        results.mixed_table()
    )?;
    for (mixed, kept) in results.mixed.iter().filter_map(|mixed| Some((mixed, mixed.kept()?))) {
        writeln!(
            out,
            "{} KiB: reads keep {:.2} of idle, p99 {:.2}, stores at {:.0} %",
            mixed.chunk_bytes >> 10,
            kept.reads.median,
            kept.reads_p99.median,
            100.0 * kept.stores.median
        )?;
    }
    if let Some(at_rest) = &results.at_rest {
        let mut table = new_table(["a store beside its transfers", ""]);
        for (what, figure) in at_rest.figures() {
            table.add_row([what.into(), number_cell(figure)]);
        }
        writeln!(out, "{table}")?;
    }
    if let Some(percent) = results.surroundings.huge_percent {
        writeln!(out, "host memory on huge pages: {percent:.1} % and more")?;
    }
    if results.preset != Preset::Smoke {
        writeln!(out, "{}", results.points_table())?;
    }
    writeln!(
        out,
        "{} MiB that were read compared byte by byte, {} chunks differ",
        results.verified_bytes >> 20,
        results.mismatches
    )?;
    Ok(())
}
