//! `kvo-bench micro`: what a call costs.

use std::{
    env,
    io::{Write, stdout},
    process::Command,
};

use anyhow::{Context, bail};
use clap::Args;
use kvo_bench::{
    Interrupt,
    micro::{
        Floor, MicroOptions, Preset, Size, Subject, Suite, SuiteResults, Sweep, ThreadTime, Untimed,
        UntimedOptions, fill_once, kvo_subject, print_chunks, print_figures, resident_bytes,
    },
    new_table, number_cell, progress_bar,
};
use kvo_policies::PolicyKind;
use serde::Serialize;

use crate::{Outcome, finish};

/// Costs of the CPU tier's calls, in nanoseconds a chunk, beside their targets and the bare memory accesses.
///
/// Requests of 256 keys with well-mixed digests, slots in shuffled order, a full tier that has turned over; medians of
/// interleaved rounds by this thread's CPU time. docs/BENCHMARKS.md says what each job does. The cold jobs are timed by
/// the wall clock, each call alone after 96 MiB were walked. A target that is missed is shown, and fails nothing.
#[derive(Debug, Args)]
pub(crate) struct MicroArgs {
    #[command(flatten)]
    options: MicroOptions,
    #[command(flatten)]
    untimed: UntimedOptions,
}

#[derive(Debug, Serialize)]
struct Results<'a> {
    preset: Preset,
    sizes: &'a [SuiteResults],
}

impl MicroArgs {
    /// What its file of results is called.
    pub(crate) fn report_name(&self) -> &'static str {
        if self.options.preset() == Preset::Smoke { "micro-smoke" } else { "micro" }
    }
}

pub(crate) fn run(args: &MicroArgs, interrupt: &Interrupt) -> anyhow::Result<Outcome> {
    let (sizes, options) = (args.options.sizes(), &args.options);
    let mut out = stdout();
    if options.only_bytes {
        let ([size], [policy]) = (&sizes[..], &options.policy[..]) else {
            bail!("--only-bytes takes one size and one policy");
        };
        writeln!(out, "{}", bytes_of(*size, *policy)?)?;
        return Ok(Outcome::Passed);
    }
    if args.untimed.untimed {
        return run_untimed(args, &mut out, interrupt);
    }
    let preset = options.preset();
    let num_rounds: usize = sizes.iter().map(|size| Suite::num_rounds(*size, options)).sum();
    let progress = progress_bar(num_rounds as u64, "rounds");
    let mut results = Vec::new();
    for size in sizes {
        let mut subjects: Vec<Box<dyn Subject>> = vec![Box::new(Floor::new(size.chunks()))];
        for policy in &options.policy {
            subjects.push(kvo_subject(*policy, size.chunks())?);
        }
        let suite = Suite::new(size, options, subjects, interrupt)?;
        let mut of_size = suite.run(interrupt, || progress.inc(1))?;
        for policy in options.policy.iter().filter(|_| !interrupt.is_set()) {
            let name = format!("kvo {policy}");
            let bytes = bytes_in_child(size, *policy)?;
            of_size
                .subjects
                .iter_mut()
                .filter(|subject| subject.name == name)
                .for_each(|subject| subject.bytes_per_chunk = Some(bytes));
        }
        results.push(of_size);
        if interrupt.is_set() {
            break;
        }
    }
    progress.finish_and_clear();

    print_figures(&mut out, &results, None)?;
    print_subjects(&mut out, &results)?;
    finish(&mut out, Results { preset, sizes: &results }, args.report_name(), interrupt)
}

fn run_untimed(args: &MicroArgs, out: &mut impl Write, interrupt: &Interrupt) -> anyhow::Result<Outcome> {
    let MicroArgs { options, untimed } = args;
    ThreadTime::switch_off();
    let policies: Vec<_> = match untimed.subject {
        Untimed::Kvo => options.policy.iter().copied().map(Some).collect(),
        Untimed::Floor => vec![None],
    };
    for size in options.sizes() {
        // One after the other: a tier of every policy at a time may be more than there is memory for.
        for policy in &policies {
            let subject: Box<dyn Subject> = match policy {
                Some(policy) => kvo_subject(*policy, size.chunks())?,
                None => Box::new(Floor::new(size.chunks())),
            };
            let name = subject.name().to_owned();
            let suite = Suite::new(size, options, vec![subject], interrupt)?;
            let done = suite.run_untimed(untimed.check, interrupt)?;
            if interrupt.is_set() {
                return Ok(Outcome::Interrupted);
            }
            print_chunks(out, size, &name, &done)?;
        }
    }
    Ok(Outcome::Passed)
}

fn print_subjects(out: &mut impl Write, results: &[SuiteResults]) -> anyhow::Result<()> {
    const BYTES_MAX: f64 = 96.0;
    let mut table = new_table(["size", "subject", "bytes a chunk", "", "hash of the victims"]);
    for of_size in results {
        for subject in &of_size.subjects {
            let Some(victims) = &subject.victims else { continue };
            let bytes = subject.bytes_per_chunk;
            // The target is one of a million chunks under LRU.
            let is_target = of_size.size.to_string() == "1M" && subject.name == "kvo lru";
            let met = match bytes {
                Some(bytes) if is_target && bytes <= BYTES_MAX => "at most 96: met",
                Some(_) if is_target => "at most 96: missed",
                _ => "",
            };
            table.add_row([
                number_cell(of_size.size.to_string()),
                subject.name.as_str().into(),
                number_cell(bytes.map_or_else(String::new, |bytes| format!("{bytes:.1}"))),
                met.into(),
                victims.as_str().into(),
            ]);
        }
    }
    writeln!(out, "\n{table}")?;
    Ok(())
}

/// Bytes a chunk, in a process that has done nothing else: what is freed and not given back would count for nothing.
fn bytes_in_child(size: Size, policy: PolicyKind) -> anyhow::Result<f64> {
    let program = env::current_exe().context("cannot find this program to run it for its memory")?;
    let output = Command::new(&program)
        .args(["micro", "--only-bytes", "--sizes", &size.to_string(), "--policy", &policy.to_string()])
        .output()
        .with_context(|| format!("cannot run {} for its memory", program.display()))?;
    let text = String::from_utf8_lossy(&output.stdout);
    text.trim().parse().with_context(|| {
        format!("no bytes a chunk, but {text:?}: {}", String::from_utf8_lossy(&output.stderr).trim())
    })
}

fn bytes_of(size: Size, policy: PolicyKind) -> anyhow::Result<f64> {
    let mut sweep = Sweep::new();
    let before = resident_bytes()?;
    let mut subject = kvo_subject(policy, size.chunks())?;
    fill_once(&mut *subject, size.chunks(), &mut sweep)?;
    let bytes = resident_bytes()?.saturating_sub(before);
    Ok(bytes as f64 / f64::from(size.chunks()))
}
