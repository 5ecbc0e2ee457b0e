//! `cargo xtask counts`: instructions and cache misses a chunk, which do not depend on what else the machine does.
//!
//! Runs `kvo-bench micro --untimed` under valgrind's callgrind, which simulates caches as cachegrind does and counts
//! what one function does: the calls of the manager, and not what their caller makes before. `bench/counts.txt` has what
//! they were when they were last blessed; what is worse by more than a little fails `--check`.

mod table;

use std::{
    fmt,
    path::PathBuf,
    process::{Command, ExitCode},
};

use crate::process::{cargo, workspace};
use table::{Line, Table};

/// The caches of the machine that the targets are from; nothing depends on the machine that this runs on.
const CACHES: [&str; 3] = ["--I1=32768,8,64", "--D1=49152,12,64", "--LL=8388608,16,64"];
const COUNTED: &str = "--toggle-collect=kvo_bench::micro::clock::counted*";
const SIZE: &str = "100k";
const ROUNDS: &str = "2";
const BLESSED: &str = "bench/counts.txt";

/// What is counted: a job of `kvo-bench micro`, a subject, and what they are to cost at most.
const CELLS: [Cell; 12] = [
    Cell::new("cycle32", "lru", Some((600.0, 5.0))),
    Cell::new("cycle1", "lru", None),
    Cell::new("load", "lru", Some((250.0, 5.0))),
    Cell::new("lookup", "lru", None),
    Cell::new("cycle32", "aslru", Some((600.0, 5.0))),
    Cell::new("cycle1", "aslru", None),
    Cell::new("load", "aslru", Some((250.0, 5.0))),
    Cell::new("lookup", "aslru", None),
    Cell::new("cycle32", "ylru", Some((600.0, 5.0))),
    Cell::new("load", "ylru", Some((250.0, 5.0))),
    Cell::new("cycle32", "floor", None),
    Cell::new("lookup", "floor", None),
];

#[derive(Clone, Copy, Debug)]
struct Cell {
    job: &'static str,
    /// A policy, or the bare memory accesses.
    subject: &'static str,
    /// Instructions and first-level misses.
    target: Option<(f64, f64)>,
}

/// A chunk's.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Counts {
    instructions: f64,
    /// Of the data.
    d1_misses: f64,
    ll_misses: f64,
}

/// What is to be done with the counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Show,
    /// Fail if one is above its ceiling.
    Check,
    /// Make them what later ones are held to.
    Bless,
}

/// Why there are no counts, or none that will do.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// Valgrind cannot be run.
    NoValgrind,
    /// They are above their ceilings.
    Above(String),
    Other(String),
}

impl Cell {
    const fn new(job: &'static str, subject: &'static str, target: Option<(f64, f64)>) -> Self {
        Self { job, subject, target }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoValgrind => f.write_str("valgrind cannot be run; install it, version 3.19 or later"),
            Self::Above(cells) => {
                write!(
                    f,
                    "worse than {BLESSED} has it: {cells}; if that is meant: cargo xtask counts --bless"
                )
            }
            Self::Other(why) => f.write_str(why),
        }
    }
}

pub(crate) fn run(mode: Mode) -> ExitCode {
    match count(mode) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("error: {failure}");
            ExitCode::from(if matches!(failure, Failure::Above(_)) { 1 } else { crate::flags::MISUSE_STATUS })
        }
    }
}

/// Counts, prints, and does as `mode` says.
pub(crate) fn count(mode: Mode) -> Result<(), Failure> {
    let path = workspace().join(BLESSED);
    let blessed = match mode {
        Mode::Bless => Table::default(),
        _ => Table::read(&path).map_err(Failure::Other)?,
    };
    if !is_valgrind_there() {
        return Err(Failure::NoValgrind);
    }
    let program = build()?;
    println!("{}", table::HEAD);
    let (mut counted, mut above) = (Table::default(), Vec::new());
    for cell in CELLS {
        let counts = measure(&program, cell)?;
        let line = Line { job: cell.job.to_owned(), subject: cell.subject.to_owned(), counts };
        let ceiling = blessed.ceiling(&line);
        println!("{}", line.shown(ceiling, cell.target));
        let is_above = ceiling.is_none_or(|ceiling| counts.is_above(ceiling));
        if mode != Mode::Bless && is_above {
            above.push(format!("{} under {}", cell.job, cell.subject));
        }
        counted.lines.push(line);
    }
    match mode {
        Mode::Bless => counted.write(&path).map_err(Failure::Other),
        Mode::Check if !above.is_empty() => Err(Failure::Above(above.join(", "))),
        _ => Ok(()),
    }
}

pub(crate) fn is_valgrind_there() -> bool {
    Command::new("valgrind").arg("--version").output().is_ok_and(|output| output.status.success())
}

/// Builds the bench program; gives the path to it.
fn build() -> Result<PathBuf, Failure> {
    let mut command = cargo(["build", "--release", "--locked", "--quiet", "--package", "kvo-bench"]);
    let is_built = command.current_dir(workspace()).status().is_ok_and(|status| status.success());
    if !is_built {
        return Err(Failure::Other("kvo-bench cannot be built, see above".to_owned()));
    }
    let target = std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
    let program = workspace().join(target).join("release/kvo-bench");
    if program.is_file() {
        return Ok(program);
    }
    let message = format!("{} is not there; CARGO_TARGET_DIR says where builds go", program.display());
    Err(Failure::Other(message))
}

fn measure(program: &std::path::Path, cell: Cell) -> Result<Counts, Failure> {
    let mut command = Command::new("valgrind");
    // The environment lies on the stack, and would move it.
    command.env_clear().envs(std::env::var_os("PATH").map(|path| ("PATH", path)));
    command
        .args(["--tool=callgrind", "--cache-sim=yes", "--callgrind-out-file=/dev/null", COUNTED])
        .args(CACHES);
    command.arg(program).args([
        "micro",
        "--untimed",
        "--sizes",
        SIZE,
        "--rounds",
        ROUNDS,
        "--jobs",
        cell.job,
    ]);
    match cell.subject {
        "floor" => command.args(["--subject", "floor"]),
        policy => command.args(["--policy", policy]),
    };
    let output = command.output().map_err(|_| Failure::NoValgrind)?;
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let counts = if output.status.success() { Counts::parse(&stdout, &stderr) } else { None };
    counts.ok_or_else(|| {
        let Cell { job, subject, .. } = cell;
        Failure::Other(format!("no counts of {job} under {subject}: {}\n{stdout}{stderr}", output.status))
    })
}

impl Counts {
    /// From what the program and callgrind print.
    fn parse(stdout: &str, stderr: &str) -> Option<Self> {
        let [line] = stdout.lines().collect::<Vec<_>>()[..] else { return None };
        let chunks: f64 = line.strip_suffix(" chunks")?.rsplit(' ').next()?.parse().ok()?;
        // "==1== D1  misses:  3,397,997  ( 2,432,186 rd + 965,811 wr)"
        let total = |name: &[&str]| {
            stderr.lines().find_map(|line| {
                let (words, figures) = line.split_once(':')?;
                let is_it = words.split_whitespace().skip(1).eq(name.iter().copied());
                let total = figures.split_whitespace().next().filter(|_| is_it)?;
                total.replace(',', "").parse::<f64>().ok()
            })
        };
        let instructions = total(&["I", "refs"]).filter(|count| *count > 0.0)? / chunks;
        let (d1_misses, ll_misses) =
            (total(&["D1", "misses"])? / chunks, total(&["LLd", "misses"])? / chunks);
        Some(Self { instructions, d1_misses, ll_misses })
    }

    fn is_above(self, ceiling: Self) -> bool {
        self.instructions > ceiling.instructions
            || self.d1_misses > ceiling.d1_misses
            || self.ll_misses > ceiling.ll_misses
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STDOUT: &str = "100k: load of 256: kvo lru: 200 chunks\n";
    const STDERR: &str = "\
==1== Collected : 41000 60683920 35243956 21976 2432186 965811 169 233382 23050
==1==
==1== I   refs:      41,000
==1== I1  misses:        21,976
==1== LLi misses:           169
==1== D   refs:       9,592  (6,068 rd + 3,524 wr)
==1== D1  misses:     3,000  ( 2,432 rd +    965 wr)
==1== LLd misses:       250  (   233 rd +     23 wr)
==1== LL refs:        3,419 ( 2,454 rd + 965 wr)
==1== LL misses:        256 ( 233 rd + 23 wr)
";

    #[test]
    fn counts_are_read_from_what_the_programs_print() {
        let expected = Counts { instructions: 205.0, d1_misses: 15.0, ll_misses: 1.25 };
        assert_eq!(Counts::parse(STDOUT, STDERR), Some(expected));
    }

    #[test]
    fn what_was_not_counted_is_no_count() {
        assert_eq!(Counts::parse("", STDERR), None);
        assert_eq!(Counts::parse(&STDOUT.repeat(2), STDERR), None);
        assert_eq!(Counts::parse(STDOUT, ""), None);
        // The function to count was not found.
        assert_eq!(Counts::parse(STDOUT, &STDERR.replace("41,000", "0")), None);
    }
}
