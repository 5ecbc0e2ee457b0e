//! The micro-benchmarks of kvo beside those of kvbm-logical: one process, one workload, interleaved rounds.

use std::{
    env,
    io::{Write, stdout},
    process::Command,
};

use anyhow::{Context, bail};
use clap::Args;
use kvo_bench::{
    Interrupt, Report,
    micro::{
        Floor, Job, MicroOptions, Preset, Size, Subject, Suite, SuiteResults, Sweep, fill_once, kvo_subject,
        print_figures, resident_bytes,
    },
    progress_bar,
};
use kvo_policies::PolicyKind;
use serde::Serialize;

use crate::{
    Outcome,
    kvbm::{self, Kvbm},
};

/// What differs between the two, for whoever reads the figures.
const DIFFERENCES: &str = "\
What differs: kvbm-logical's key is 16 bytes (a 64-bit hash, part of its parent's, and the position), kvo's 36; each \
block that it registers or matches is a guard that unpins on drop, where kvo has a token a job; it locks, and counts \
for Prometheus.
- cycle: its allocate (evicting), stage, register and drop, tail first; kvo's prepare, complete and finish, with the \
request's recency and positions.
- lookup: its check_presence, which answers for every key and so makes a list; kvo's ends at the first that is absent.
- match, pinned: its match and drop of blocks that someone else holds; kvo's lookup does not pin.
- load: its match of evictable blocks and their drop; kvo's lookup, pin and unpin by token.
- first key absent: its match_blocks; kvo's lookup_prefix.
- finish: kvbm has no such call.";

/// Flags of the comparison of the metadata paths.
#[derive(Debug, Args)]
pub(crate) struct MicroArgs {
    #[command(flatten)]
    options: MicroOptions,
    /// With --only-bytes: those of kvbm
    #[arg(long, hide = true)]
    of_kvbm: bool,
}

#[derive(Debug, Serialize)]
struct Results<'a> {
    preset: Preset,
    differences: &'static str,
    sizes: &'a [SuiteResults],
}

pub(crate) fn run(args: &MicroArgs) -> anyhow::Result<Outcome> {
    let (sizes, options) = (args.options.sizes(), &args.options);
    let mut out = stdout();
    if options.only_bytes {
        let ([size], [policy]) = (&sizes[..], &options.policy[..]) else {
            bail!("--only-bytes takes one size and one policy");
        };
        writeln!(out, "{}", bytes_of(*size, *policy, args.of_kvbm)?)?;
        return Ok(Outcome::Passed);
    }
    let interrupt = Interrupt::on_ctrl_c()?;
    let num_rounds: usize = sizes.iter().map(|size| Suite::num_rounds(*size, options)).sum();
    let progress = progress_bar(num_rounds as u64, "rounds");
    let mut results = Vec::new();
    for size in sizes {
        let mut subjects: Vec<Box<dyn Subject>> = vec![Box::new(Floor::new(size.chunks()))];
        for policy in &options.policy {
            subjects.push(kvo_subject(*policy, size.chunks())?);
        }
        subjects.push(Box::new(Kvbm::new(size.chunks())?));
        let suite = Suite::new(size, options, subjects, &interrupt)?;
        let mut of_size = suite.run(&interrupt, || progress.inc(1))?;
        if !interrupt.is_set() {
            add_bytes(&mut of_size, size, &options.policy)?;
        }
        results.push(of_size);
        if interrupt.is_set() {
            break;
        }
    }
    progress.finish_and_clear();

    print_figures(&mut out, &results, Some(kvbm::NAME))?;
    print_ratios(&mut out, &results)?;
    writeln!(out, "\n{DIFFERENCES}")?;
    let preset = options.preset();
    let name = if preset == Preset::Smoke { "compare-smoke" } else { "compare" };
    let results = Results { preset, differences: DIFFERENCES, sizes: &results };
    let file = Report::new(results, !interrupt.is_set()).write(name)?;
    writeln!(out, "as JSON: {}", file.display())?;
    Ok(if interrupt.is_set() { Outcome::Interrupted } else { Outcome::Passed })
}

/// Each ratio beside what it is to be at least, and the memory.
fn print_ratios(out: &mut impl Write, results: &[SuiteResults]) -> anyhow::Result<()> {
    for of_size in results {
        for subject in &of_size.subjects {
            if let (Some(bytes), Some(victims)) = (subject.bytes_per_chunk, &subject.victims) {
                let (size, name) = (of_size.size, &subject.name);
                writeln!(out, "{size}, {name}: {bytes:.1} bytes a chunk, hash of the victims {victims}")?;
            }
        }
        let wanted = Job::ALL.into_iter().filter_map(|job| Some((job, job.ratio_at_least()?)));
        for (job, at_least) in wanted {
            let Some(theirs) = of_size.figure(job, kvbm::NAME) else { continue };
            for ours in
                of_size.figures.iter().filter(|ours| ours.job == job && ours.subject.starts_with("kvo"))
            {
                let ratio = theirs.ns / ours.ns;
                let met = if ratio >= at_least { "met" } else { "missed" };
                let (size, name) = (of_size.size, &ours.subject);
                writeln!(out, "{size}, {name}, {job}: {ratio:.1} times kvbm, at least {at_least}: {met}")?;
            }
        }
    }
    Ok(())
}

fn add_bytes(of_size: &mut SuiteResults, size: Size, policies: &[PolicyKind]) -> anyhow::Result<()> {
    for subject in &mut of_size.subjects {
        let policy = policies.iter().find(|policy| subject.name == format!("kvo {policy}"));
        if subject.name == kvbm::NAME {
            subject.bytes_per_chunk = Some(bytes_in_child(size, PolicyKind::Lru, &["--of-kvbm"])?);
        } else if let Some(policy) = policy {
            subject.bytes_per_chunk = Some(bytes_in_child(size, *policy, &[])?);
        }
    }
    Ok(())
}

/// Bytes a chunk, in a process that has done nothing else.
fn bytes_in_child(size: Size, policy: PolicyKind, more: &[&str]) -> anyhow::Result<f64> {
    let program = env::current_exe().context("cannot find this program to run it for its memory")?;
    let output = Command::new(&program)
        .args(["--only-bytes", "--sizes", &size.to_string(), "--policy", &policy.to_string()])
        .args(more)
        .output()
        .with_context(|| format!("cannot run {} for its memory", program.display()))?;
    let text = String::from_utf8_lossy(&output.stdout);
    text.trim().parse().with_context(|| {
        format!("no bytes a chunk, but {text:?}: {}", String::from_utf8_lossy(&output.stderr).trim())
    })
}

fn bytes_of(size: Size, policy: PolicyKind, of_kvbm: bool) -> anyhow::Result<f64> {
    let mut sweep = Sweep::new();
    let before = resident_bytes()?;
    let mut subject: Box<dyn Subject> =
        if of_kvbm { Box::new(Kvbm::new(size.chunks())?) } else { kvo_subject(policy, size.chunks())? };
    fill_once(&mut *subject, size.chunks(), &mut sweep)?;
    let bytes = resident_bytes()?.saturating_sub(before);
    Ok(bytes as f64 / f64::from(size.chunks()))
}
