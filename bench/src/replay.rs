//! `kvo-bench replay`: a trace through every tier, every byte checked.

use std::{
    fs,
    io::{Write, stdout},
    ops::Range,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use clap::{Args, value_parser};
use comfy_table::Table;
use indicatif::{HumanBytes, HumanCount};
use kvo_bench::{
    ChosenDevice, DeviceChoice, GpuFailed, Interrupt, ReplayDevice, ReplayEngine, ReplayOptions, ReplayStats,
    TierHits, Trace, kvo_synth, new_table, number_cell, progress_bar,
};
use kvo_cuda::{Probe, probe};
use kvo_policies::PolicyKind;
use rustix::process::{Signal, getpid, kill_process};
use serde::Serialize;
use tempfile::TempDir;

use crate::{
    Outcome,
    args::{TraceArgs, TraceSummary},
    write_report,
};

/// Replays a trace through GPU blocks, CPU slots and a store on an SSD, and checks every byte that comes back.
///
/// Where there is no GPU, or `--device host` says so, its memory is host memory and its compute is a pattern written by a
/// thread; then the figures of the GPU's edges are those of a model, not of a link. Requests run one after the other, and
/// the tiers come to rest between them: the hits depend on the trace and the sizes alone.
#[derive(Debug, Args)]
pub(crate) struct ReplayArgs {
    #[command(flatten)]
    trace: TraceArgs,
    /// Where the blocks of the GPU are
    #[arg(long, value_name = "DEVICE", default_value = "auto")]
    device: DeviceChoice,
    /// Which GPU, as the CUDA driver counts
    #[arg(long, value_name = "N", default_value_t = 0)]
    device_ordinal: u32,
    /// Blocks of GPU memory
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = value_parser!(u32).range(1..))]
    gpu_blocks: u32,
    /// Slots in CPU memory
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = value_parser!(u32).range(1..))]
    cpu_chunks: u32,
    /// Chunks on the SSD; 0 leaves the tier out
    #[arg(long, value_name = "N", default_value_t = 4096)]
    nvme_chunks: u32,
    /// Bytes a block of GPU memory
    #[arg(long, value_name = "BYTES", default_value_t = 65536, value_parser = value_parser!(u32).range(1..))]
    block_bytes: u32,
    /// Eviction policy of the CPU tier and of the store: lru, arc, slru, aslru, ylru, s3fifo or fifo, with options as in
    /// slru:protected=20 and arc:ghost-hits=t2
    #[arg(long, value_name = "NAME", default_value_t = PolicyKind::Lru)]
    policy: PolicyKind,
    /// Where to make the temporary directory of the store [default: that of the system]
    #[arg(long, value_name = "DIR")]
    nvme_dir: Option<PathBuf>,
    /// A short run against rot: 400 generated requests and small blocks; the figures mean nothing
    #[arg(
        long,
        group = "preset",
        conflicts_with_all = ["trace", "gpu_blocks", "cpu_chunks", "nvme_chunks", "block_bytes"]
    )]
    smoke: bool,
    /// The default: 4000 generated requests
    #[arg(long, group = "preset", conflicts_with = "trace")]
    quick: bool,
    /// 20000 generated requests
    #[arg(long, group = "preset", conflicts_with = "trace")]
    full: bool,
    /// Flip one bit in the block that is compared under this number, to see that the check finds it
    #[arg(long, value_name = "N", hide = true)]
    flip_bit_in_block: Option<u64>,
    /// Serve the requests A to B only, B not among them
    #[arg(long, value_name = "A..B", hide = true, value_parser = range)]
    requests: Option<Range<usize>>,
    /// The directory of the store itself, which stays and may hold chunks of an earlier run
    #[arg(long, value_name = "DIR", hide = true, conflicts_with = "nvme_dir")]
    keep_store: Option<PathBuf>,
    /// Have the process killed, as by `kill -9`, once it has served N requests and goes on
    #[arg(long, value_name = "N", hide = true)]
    kill_after: Option<u64>,
    /// Break the GPU for good once N requests were served, to see what comes of it
    #[arg(long, value_name = "N", hide = true)]
    break_gpu_after: Option<u64>,
}

#[derive(Debug, Serialize)]
struct Results<'a> {
    trace: TraceSummary,
    gpu_blocks: u32,
    cpu_chunks: u32,
    nvme_chunks: u32,
    block_bytes: u32,
    policy: String,
    /// Where the blocks of the GPU were: `host memory`, or a GPU with its driver and its link.
    device: &'a str,
    /// Why there.
    device_reason: &'a str,
    /// The GPU is a model: its memory is host memory, or its driver is one for tests.
    gpu_is_simulated: bool,
    seconds: f64,
    hit_percent: f64,
    peak_memory_bytes: Option<u64>,
    #[serde(flatten)]
    stats: &'a ReplayStats,
}

impl ReplayArgs {
    /// What its file of results is called.
    pub(crate) fn report_name(&self) -> &'static str {
        if self.smoke { "replay-smoke" } else { "replay" }
    }
}

pub(crate) fn run(args: &ReplayArgs, interrupt: &Interrupt) -> anyhow::Result<Outcome> {
    let mut out = stdout();
    let trace = match (args.smoke, args.full) {
        (true, _) => kvo_synth(400, 7),
        (_, true) => kvo_synth(20_000, 42),
        _ => args.trace.load()?,
    };
    let summary = TraceSummary::of(&trace);
    writeln!(out, "{summary}")?;
    let chosen = args.device.decide(args.device_ordinal, probe_for(args.device))?;
    writeln!(out, "{chosen}")?;
    let options = options(args, &trace, chosen.device);
    writeln!(
        out,
        "{} GPU blocks ({}), {} CPU slots, {} NVMe chunks of {} bytes, {}",
        options.gpu_blocks,
        where_blocks_are(&chosen),
        options.cpu_chunks,
        options.nvme_chunks,
        options.block_bytes,
        options.policy
    )?;

    let place = StorePlace::of(args)?;
    let mut engine = ReplayEngine::new(options.clone(), place.path())?;
    let requests = requests(args, &trace)?;
    let started = Instant::now();
    let end = serve(args, &mut engine, &trace, requests.clone(), interrupt)?;

    let stats = engine.stats();
    let results = Results {
        trace: summary,
        gpu_blocks: options.gpu_blocks,
        cpu_chunks: options.cpu_chunks,
        nvme_chunks: options.nvme_chunks,
        block_bytes: options.block_bytes,
        policy: options.policy.to_string(),
        device: &chosen.name,
        device_reason: &chosen.reason,
        gpu_is_simulated: chosen.is_simulated,
        seconds: started.elapsed().as_secs_f64(),
        hit_percent: stats.hit_percent(),
        peak_memory_bytes: peak_memory_bytes(),
        stats: &stats,
    };
    print(&mut out, &results, &chosen)?;
    write_report(&mut out, &results, args.report_name(), matches!(end, End::AllServed))?;
    if let End::GpuFailed(error) = &end {
        writeln!(out, "FAILED after {} of {} requests: {error:#}", stats.requests, requests.len())?;
    }
    if stats.mismatches > 0 {
        writeln!(out, "FAILED: {} of {} compared blocks differ", stats.mismatches, stats.blocks_compared)?;
        return Ok(Outcome::Failed);
    }
    match end {
        End::AllServed => Ok(Outcome::Passed),
        End::Interrupted => {
            writeln!(out, "stopped after {} of {} requests", stats.requests, requests.len())?;
            Ok(Outcome::Interrupted)
        }
        End::GpuFailed(_) => Ok(Outcome::Failed),
    }
}

/// How serving requests ended.
enum End {
    AllServed,
    Interrupted,
    /// What was served before counts.
    GpuFailed(anyhow::Error),
}

/// Serves requests one after the other.
fn serve(
    args: &ReplayArgs,
    engine: &mut ReplayEngine,
    trace: &Trace,
    requests: Range<usize>,
    interrupt: &Interrupt,
) -> anyhow::Result<End> {
    let progress = progress_bar(requests.len() as u64, "requests");
    for (number, request) in (0..).zip(&trace.requests).take(requests.end).skip(requests.start) {
        if interrupt.is_set() {
            progress.finish_and_clear();
            return Ok(End::Interrupted);
        }
        let served = engine.serve(number, request);
        if let Err(error) = served.with_context(|| format!("request {number} of {}", trace.name)) {
            progress.finish_and_clear();
            return if error.is::<GpuFailed>() { Ok(End::GpuFailed(error)) } else { Err(error) };
        }
        progress.inc(1);
        if args.kill_after == Some(engine.served()) {
            kill_soon();
        }
        if args.break_gpu_after == Some(engine.served()) {
            engine.break_gpu()?;
        }
    }
    progress.finish_and_clear();
    Ok(End::AllServed)
}

/// What there is of GPUs. No driver is looked for where none is wanted.
fn probe_for(choice: DeviceChoice) -> &'static Probe {
    if choice == DeviceChoice::Host { &Probe::Disabled } else { probe() }
}

fn where_blocks_are(chosen: &ChosenDevice) -> String {
    match (chosen.device, chosen.is_simulated) {
        (ReplayDevice::Host, _) => "simulated in host memory".to_owned(),
        (ReplayDevice::Cuda { .. }, true) => "simulated by a driver for tests".to_owned(),
        (ReplayDevice::Cuda { ordinal }, false) => format!("on GPU {ordinal}"),
    }
}

/// Where the store is.
enum StorePlace {
    Temporary(TempDir),
    Kept(PathBuf),
}

impl StorePlace {
    fn of(args: &ReplayArgs) -> anyhow::Result<Self> {
        if let Some(dir) = &args.keep_store {
            return Ok(Self::Kept(dir.clone()));
        }
        let dir = match &args.nvme_dir {
            Some(parent) => tempfile::tempdir_in(parent).with_context(|| {
                format!("cannot make a directory for the store in {} (--nvme-dir)", parent.display())
            }),
            None => tempfile::tempdir().context("cannot make a temporary directory for the store"),
        };
        dir.map(Self::Temporary)
    }

    fn path(&self) -> &Path {
        match self {
            Self::Temporary(dir) => dir.path(),
            Self::Kept(path) => path,
        }
    }
}

fn range(text: &str) -> anyhow::Result<Range<usize>> {
    let (start, end) = text.split_once("..").context("write A..B")?;
    Ok(start.parse()?..end.parse()?)
}

/// Which of the trace's requests are served.
fn requests(args: &ReplayArgs, trace: &Trace) -> anyhow::Result<Range<usize>> {
    let all = 0..trace.requests.len();
    let Some(some) = args.requests.clone() else { return Ok(all) };
    ensure!(some.start < some.end && some.end <= all.end, "--requests {some:?} are not within {all:?}");
    Ok(some)
}

/// Ends the process without warning, while its requests go on.
fn kill_soon() {
    thread::spawn(|| {
        thread::sleep(Duration::from_millis(5));
        kill_process(getpid(), Signal::KILL)
    });
}

fn options(args: &ReplayArgs, trace: &Trace, device: ReplayDevice) -> ReplayOptions {
    let options = ReplayOptions {
        device,
        gpu_blocks: args.gpu_blocks,
        cpu_chunks: args.cpu_chunks,
        nvme_chunks: args.nvme_chunks,
        block_bytes: args.block_bytes,
        block_tokens: trace.block_tokens,
        policy: args.policy,
        flip_bit_in_block: args.flip_bit_in_block,
    };
    if args.smoke {
        return ReplayOptions {
            gpu_blocks: 128,
            cpu_chunks: 256,
            nvme_chunks: 1024,
            block_bytes: 4096,
            ..options
        };
    }
    options
}

fn print(out: &mut impl Write, results: &Results<'_>, chosen: &ChosenDevice) -> anyhow::Result<()> {
    let stats = results.stats;
    writeln!(out, "\n{}", hits_table(stats))?;
    writeln!(out, "\n{}", edges_table(stats))?;
    let copies = match (chosen.device, chosen.is_simulated) {
        (ReplayDevice::Host, _) => "copies within host memory",
        (ReplayDevice::Cuda { .. }, true) => "copies of a driver for tests, a model",
        (ReplayDevice::Cuda { .. }, false) => "copies over its link",
    };
    writeln!(out, "The GPU's edges are {copies}; the store's go through the page cache.")?;
    writeln!(
        out,
        "\n{} requests in {:.1} s; {:.2} % of blocks hit; {} scheduler steps, p50 {:.1} us, p99 {:.1} us; peak memory {}",
        HumanCount(stats.requests),
        results.seconds,
        results.hit_percent,
        HumanCount(stats.steps.steps as u64),
        stats.steps.p50_us,
        stats.steps.p99_us,
        results.peak_memory_bytes.map_or_else(|| "unknown".to_owned(), |bytes| HumanBytes(bytes).to_string()),
    )?;
    if stats.recovered_chunks > 0 {
        writeln!(
            out,
            "{} chunks of an earlier run were in the store; {} blocks were found again",
            HumanCount(stats.recovered_chunks),
            HumanCount(stats.blocks_found_again)
        )?;
    }
    for (count, what) in [
        (stats.offers_refused, "offers refused for want of room"),
        (stats.promotions_without_room, "promotions without room"),
        (stats.cascades_left_out, "cascades left out"),
    ] {
        if count > 0 {
            writeln!(out, "{} {what}", HumanCount(count))?;
        }
    }
    writeln!(
        out,
        "{} blocks compared byte by byte, {} mismatches",
        HumanCount(stats.blocks_compared),
        HumanCount(stats.mismatches)
    )?;
    Ok(())
}

fn hits_table(stats: &ReplayStats) -> Table {
    let mut table = new_table(["prefix found in", "blocks", "% of blocks", "tokens", "% of tokens"]);
    let total = TierHits { blocks: stats.blocks, tokens: stats.tokens };
    let tiers = [("GPU", stats.gpu), ("CPU", stats.cpu), ("NVMe", stats.nvme)];
    let hits = tiers.iter().fold(TierHits::default(), |sum, (_, hits)| TierHits {
        blocks: sum.blocks + hits.blocks,
        tokens: sum.tokens + hits.tokens,
    });
    let computed = TierHits { blocks: total.blocks - hits.blocks, tokens: total.tokens - hits.tokens };
    for (name, hits) in tiers.into_iter().chain([("none: computed", computed), ("all", total)]) {
        let percent = |part: u64, whole: u64| format!("{:.2}", 100.0 * part as f64 / whole.max(1) as f64);
        table.add_row([
            name.into(),
            number_cell(HumanCount(hits.blocks).to_string()),
            number_cell(percent(hits.blocks, total.blocks)),
            number_cell(HumanCount(hits.tokens).to_string()),
            number_cell(percent(hits.tokens, total.tokens)),
        ]);
    }
    table
}

fn edges_table(stats: &ReplayStats) -> Table {
    let mut table = new_table(["edge", "jobs", "failed", "MB", "MB/s"]);
    for edge in &stats.edges {
        table.add_row([
            edge.edge.into(),
            number_cell(HumanCount(edge.jobs).to_string()),
            number_cell(HumanCount(edge.jobs_failed).to_string()),
            number_cell(format!("{:.1}", edge.bytes as f64 / 1e6)),
            number_cell(format!("{:.0}", edge.mb_per_s)),
        ]);
    }
    table
}

/// The most memory that this process has had, as the kernel counts it.
fn peak_memory_bytes() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}
