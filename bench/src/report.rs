//! Results as JSON, with what is needed to compare them with others: the machine, the commit, the command line.

use std::{
    env, fs, io,
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::{SystemTime, UNIX_EPOCH},
};

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Value;

use crate::{Figures, Fingerprint, MicroResults, NvmeResults, PoliciesResults, ReplayResults};

/// The form of the files. It goes up when whoever reads the old form would misread the new one.
pub const REPORT_FORMAT: u32 = 1;

/// What is added to a command's name for the file of a smoke run.
pub(crate) const SMOKE_SUFFIX: &str = "-smoke";

/// What a run leaves in `target/bench/`.
#[derive(Clone, Debug, Serialize)]
pub struct Report<T> {
    /// The program's arguments.
    pub arguments: Vec<String>,
    /// `release` or `dev`: figures of the latter are not to be quoted.
    pub profile: &'static str,
    /// What was measured.
    pub commit: Commit,
    /// Where.
    pub machine: Machine,
    /// When it ended, in seconds since 1970.
    pub unix_seconds: u64,
    /// Whether the run ended by itself; if not, the results are of its first part.
    pub complete: bool,
    /// The figures.
    pub results: T,
}

/// A report with what the name of its file says, for whoever reads it back.
#[derive(Serialize)]
struct OnDisk<'a, T> {
    format: u32,
    command: &'a str,
    /// Of all counts of the results: the same on every machine for the same work.
    counts_hash: Option<Fingerprint>,
    #[serde(flatten)]
    report: &'a Report<T>,
}

/// The state of the sources.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Commit {
    /// The hash; none outside a git checkout.
    pub hash: Option<String>,
    /// Whether files differ from the commit.
    pub modified: Option<bool>,
}

/// The machine that ran it. What the system does not say is none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// The processor's name.
    pub cpu: Option<String>,
    /// Threads that this process may run at once.
    pub threads: Option<usize>,
    /// Bytes of memory.
    pub memory_bytes: Option<u64>,
    /// Operating system and architecture.
    pub platform: String,
    /// The kernel's release.
    pub kernel: Option<String>,
}

impl<T: Serialize> Report<T> {
    /// Puts the surroundings of this process around `results`.
    pub fn new(results: T, complete: bool) -> Self {
        Self {
            arguments: env::args().skip(1).collect(),
            profile: if cfg!(debug_assertions) { "dev" } else { "release" },
            commit: Commit::of(workspace()),
            machine: Machine::this(),
            unix_seconds: SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .map_or(0, |since_epoch| since_epoch.as_secs()),
            complete,
            results,
        }
    }

    /// Writes it to `NAME.json` in [`results_dir`], in place of an older one, and returns the path. `name` is the
    /// command's, with `-smoke` behind it for a run whose figures mean nothing.
    ///
    /// # Errors
    ///
    /// If the file cannot be written; the error names it.
    pub fn write(&self, name: &str) -> io::Result<PathBuf> {
        self.write_to(&results_dir(), name)
    }

    fn write_to(&self, dir: &Path, name: &str) -> io::Result<PathBuf> {
        let path = dir.join(format!("{name}.json"));
        let failed = |error: io::Error| {
            io::Error::new(error.kind(), format!("cannot write results to {}: {error}", path.display()))
        };
        let command = name.strip_suffix(SMOKE_SUFFIX).unwrap_or(name);
        let counts_hash = counts_hash(command, &self.results);
        let on_disk = OnDisk { format: REPORT_FORMAT, command, counts_hash, report: self };
        let mut json = serde_json::to_vec_pretty(&on_disk).map_err(|error| failed(error.into()))?;
        json.push(b'\n');
        fs::create_dir_all(dir).map_err(failed)?;
        fs::write(&path, json).map_err(failed)?;
        Ok(path)
    }
}

/// The hash of the counts in a command's results, as they are read back; none for results of another form.
fn counts_hash(command: &str, results: &impl Serialize) -> Option<Fingerprint> {
    fn of<T: DeserializeOwned + Figures>(results: Value) -> Option<Fingerprint> {
        serde_json::from_value::<T>(results).ok().map(|results| results.counts_hash())
    }
    let results = serde_json::to_value(results).ok()?;
    match command {
        "micro" | "compare" => of::<MicroResults>(results),
        "policies" => of::<PoliciesResults>(results),
        "replay" => of::<ReplayResults>(results),
        "nvme" => of::<NvmeResults>(results),
        _ => None,
    }
}

impl Commit {
    fn of(dir: &Path) -> Self {
        let git = |arguments: &[&str]| {
            let output = Command::new("git").arg("-C").arg(dir).args(arguments).output().ok()?;
            output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
        };
        Self {
            hash: git(&["rev-parse", "HEAD"]),
            modified: git(&["status", "--porcelain"]).map(|status| !status.is_empty()),
        }
    }
}

impl Machine {
    fn this() -> Self {
        let line = |file: &str, name: &str| {
            let text = fs::read_to_string(file).ok()?;
            let value = text.lines().find_map(|line| line.strip_prefix(name))?;
            Some(value.trim_start_matches([' ', '\t', ':']).to_owned())
        };
        Self {
            cpu: line("/proc/cpuinfo", "model name"),
            threads: thread::available_parallelism().ok().map(usize::from),
            memory_bytes: line("/proc/meminfo", "MemTotal").and_then(|total| {
                let kib: u64 = total.strip_suffix("kB")?.trim().parse().ok()?;
                Some(kib * 1024)
            }),
            platform: format!("{} {}", env::consts::OS, env::consts::ARCH),
            kernel: line("/proc/sys/kernel/osrelease", ""),
        }
    }
}

/// Where the results go: `target/bench` of the workspace, or what the environment's `KVO_BENCH_OUT` names.
pub fn results_dir() -> PathBuf {
    env::var_os("KVO_BENCH_OUT").map_or_else(|| workspace().join("target/bench"), PathBuf::from)
}

/// The directory of the sources that this was built from.
fn workspace() -> &'static Path {
    let bench = Path::new(env!("CARGO_MANIFEST_DIR"));
    bench.parent().unwrap_or(bench)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_says_where_it_comes_from() {
        let dir = tempfile::tempdir().unwrap();
        let path = Report::new([1, 2], false).write_to(dir.path(), "numbers").unwrap();
        assert_eq!(path, dir.path().join("numbers.json"));
        let json: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        assert_eq!(json["results"], serde_json::json!([1, 2]));
        assert_eq!((&json["complete"], &json["format"]), (&false.into(), &REPORT_FORMAT.into()));
        assert_eq!(json["command"], "numbers");
        assert!(json["unix_seconds"].as_u64().unwrap() > 1_700_000_000);
        assert!(json["machine"]["threads"].as_u64().unwrap() >= 1);
        assert!(json["arguments"].is_array() && json["commit"].is_object());
    }

    #[test]
    fn a_report_that_cannot_be_written_names_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "").unwrap();
        let error = Report::new((), true).write_to(&file, "numbers").unwrap_err();
        assert!(error.to_string().contains("numbers.json"), "{error}");
    }
}
