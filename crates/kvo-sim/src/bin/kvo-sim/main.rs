//! Runs the simulation from many seeds, on all cores: `cargo xtask sim`.

#![forbid(unsafe_code)]

use std::{
    num::NonZero,
    process::ExitCode,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::available_parallelism,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use clap::Parser;
use kvo_sim::{Failure, Plant, Run, Tally, shrink};

/// Seeds among which a defect must be found.
const SEEDS_OF_CANARY: u64 = 1000;

/// Runs the whole of kvo in simulation, from many seeds; fails if one finds what must not be.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask sim", bin_name = "cargo xtask sim")]
struct Args {
    /// Runs so many seeds.
    #[arg(long, value_name = "N", default_value_t = 2000)]
    seeds: u64,
    /// The first of them.
    #[arg(long, value_name = "S", default_value_t = 1)]
    from: u64,
    /// Begins with a seed that nobody has chosen, and prints it.
    #[arg(long, conflicts_with_all = ["from", "seed"])]
    fresh: bool,
    /// Stops after so many minutes, however many seeds there are.
    #[arg(long, value_name = "M")]
    minutes: Option<f64>,
    /// Runs one seed, and prints what it has come by.
    #[arg(long, value_name = "S", conflicts_with = "canary")]
    seed: Option<u64>,
    /// Puts a defect in on purpose, one after the other; fails if one is not found within 1,000 seeds.
    #[arg(long)]
    canary: bool,
    /// With a single seed: puts this defect in.
    #[arg(long, value_name = "DEFECT", requires = "seed")]
    plant: Option<String>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let is_well = if args.canary {
        canary()
    } else if let Some(seed) = args.seed {
        one(seed, args.plant.as_deref())
    } else {
        many(&args)
    };
    if is_well { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// One seed alone.
fn one(seed: u64, plant: Option<&str>) -> bool {
    let plant = match plant.map(|name| Plant::ALL.into_iter().find(|plant| format!("{plant:?}") == name)) {
        None => None,
        Some(Some(plant)) => Some(plant),
        Some(None) => {
            eprintln!("error: there is no such defect; there are {:?}", Plant::ALL);
            return false;
        }
    };
    let run = Run::new(seed, plant);
    match run.run() {
        Ok(tally) => {
            println!("{run}\n{tally:#?}");
            true
        }
        Err(failure) => {
            explain(&run, &failure);
            false
        }
    }
}

/// Says what has failed, and how to see it again, made as small as can be.
fn explain(run: &Run, failure: &Failure) {
    println!("{}", failure.violation);
    println!("{run}");
    println!("  failed after {} of its operations; made smaller:", failure.at);
    let (small, failure) = shrink(run, failure);
    println!("{}\n{small}", failure.violation);
    for line in small.trace() {
        println!("{line}");
    }
}

fn many(args: &Args) -> bool {
    let from = if args.fresh { fresh() } else { args.from };
    let end = args.minutes.map(|minutes| Instant::now() + Duration::from_secs_f64(minutes * 60.0));
    let started = Instant::now();
    let tally = Mutex::new(Tally::default());
    let last = from.saturating_add(args.seeds);
    let (ran, failed) = search(from..last, |seed| {
        if end.is_some_and(|end| Instant::now() >= end) {
            return Found::Stop;
        }
        match Run::new(seed, None).run() {
            Ok(of_run) => {
                tally.lock().unwrap_or_else(PoisonError::into_inner).add(&of_run);
                Found::Nothing
            }
            Err(failure) => Found::Failure(failure),
        }
    });
    let took = started.elapsed().as_secs_f64();
    println!("{ran} seeds from {from} on, in {took:.1} s");
    let Some((seed, failure)) = failed else {
        println!("{:?}", tally.into_inner().unwrap_or_else(PoisonError::into_inner));
        return true;
    };
    println!("seed {seed} has failed; replay it with `cargo xtask sim --seed {seed}`");
    explain(&Run::new(seed, None), &failure);
    false
}

/// Every defect is found.
fn canary() -> bool {
    let mut are_all = true;
    for plant in Plant::ALL {
        let started = Instant::now();
        let (_, failed) = search(1..SEEDS_OF_CANARY + 1, |seed| match Run::new(seed, Some(plant)).run() {
            Ok(_) => Found::Nothing,
            Err(failure) => Found::Failure(failure),
        });
        let took = started.elapsed().as_secs_f64();
        if let Some((seed, Failure { violation, .. })) = failed {
            let what: String = violation.to_string().chars().take(90).collect();
            println!("{plant:?} is found by seed {seed}, in {took:.1} s: {}", what.replace('\n', " "));
        } else {
            are_all = false;
            println!("{plant:?} is NOT found in {SEEDS_OF_CANARY} seeds, in {took:.1} s");
        }
    }
    are_all
}

/// What a seed has come to.
enum Found {
    Nothing,
    Failure(Failure),
    /// No further seed is run.
    Stop,
}

/// Runs seeds on all cores until one fails; gives how many were run, and the lowest that has failed.
fn search(seeds: std::ops::Range<u64>, run: impl Fn(u64) -> Found + Sync) -> (u64, Option<(u64, Failure)>) {
    let (next, ran, is_over) = (AtomicU64::new(seeds.start), AtomicU64::new(0), AtomicBool::new(false));
    let first: Mutex<Option<(u64, Failure)>> = Mutex::new(None);
    let work = || {
        while !is_over.load(Ordering::Relaxed) {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                return;
            }
            match run(seed) {
                Found::Nothing => drop(ran.fetch_add(1, Ordering::Relaxed)),
                Found::Stop => is_over.store(true, Ordering::Relaxed),
                Found::Failure(failure) => {
                    is_over.store(true, Ordering::Relaxed);
                    let mut first = first.lock().unwrap_or_else(PoisonError::into_inner);
                    if first.as_ref().is_none_or(|(other, _)| seed < *other) {
                        *first = Some((seed, failure));
                    }
                }
            }
        }
    };
    let threads = available_parallelism().map_or(1, NonZero::get);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(work);
        }
    });
    (ran.into_inner(), first.into_inner().unwrap_or_else(PoisonError::into_inner))
}

fn fresh() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |since| since.as_secs() * 1000)
}
