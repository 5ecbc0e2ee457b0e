//! `cargo xtask cuda-features`: kvo-cuda beside an engine that chose cudarc's features otherwise.
//!
//! Cargo unites the features that the packages of a build ask of a dependency. A package that exists only for this asks
//! for kvo-cuda and for cudarc with an engine's choice; both must compile, and cudarc must be built as the engine said.

use std::{fs, path::Path, process::ExitCode};

use crate::process::{cargo, workspace};

/// The versions of CUDA that cudarc has bindings for.
const VERSIONS: [(u32, u32); 19] = [
    (11, 4),
    (11, 5),
    (11, 6),
    (11, 7),
    (11, 8),
    (12, 0),
    (12, 1),
    (12, 2),
    (12, 3),
    (12, 4),
    (12, 5),
    (12, 6),
    (12, 8),
    (12, 9),
    (13, 0),
    (13, 1),
    (13, 2),
    (13, 3),
    (13, 4),
];

/// How an engine gets at the driver. `Linked` is only compiled here: it needs CUDA to link. Linked statically, cudarc's
/// driver is compiled from the same source, but not without CUDA's libraries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Whatever cudarc does by default.
    Default,
    Loaded,
    Linked,
}

/// What an engine asks of cudarc.
#[derive(Clone, Copy, Debug)]
struct Choice {
    version: (u32, u32),
    way: Way,
}

impl Choice {
    fn name(self) -> String {
        format!("CUDA {}.{}, {:?}", self.version.0, self.version.1, self.way)
    }

    /// The line of a manifest.
    fn dependency(self) -> String {
        let (major, minor) = self.version;
        let way = match self.way {
            Way::Default => "",
            Way::Loaded => ", \"dynamic-loading\"",
            Way::Linked => ", \"dynamic-linking\"",
        };
        let defaults = self.way == Way::Default;
        let features = format!("\"cuda-{major}0{minor}0\", \"driver\", \"std\"{way}");
        format!("cudarc = {{ version = \"0.19\", default-features = {defaults}, features = [{features}] }}")
    }

    /// What cargo's account of cudarc's build script must have, and what it must not.
    fn is_kept(self, account: &str) -> bool {
        let (major, minor) = self.version;
        let is_built_for = |name: &str, value: u32| account.contains(&format!("[\"{name}\",\"{value}\"]"));
        let is_loaded = account.contains("\"dynamic-loading\\\"");
        let is_linked = account.contains("\"dylib=cuda\"");
        let way = match self.way {
            Way::Default => is_loaded && !is_linked,
            Way::Loaded => !is_linked,
            Way::Linked => is_linked && !is_loaded,
        };
        is_built_for("CUDA_MAJOR_VERSION", major) && is_built_for("CUDA_MINOR_VERSION", minor) && way
    }
}

/// The choices that CI tries: the oldest, the newest, each way.
fn some() -> Vec<Choice> {
    let choice = |version, way| Choice { version, way };
    vec![
        choice((12, 8), Way::Default),
        choice((11, 4), Way::Linked),
        choice((13, 4), Way::Linked),
        choice((12, 0), Way::Loaded),
    ]
}

/// Every version, loaded, and what CI tries.
fn all() -> Vec<Choice> {
    let loaded = VERSIONS.into_iter().map(|version| Choice { version, way: Way::Loaded });
    some().into_iter().chain(loaded).collect()
}

pub(crate) fn run(is_all: bool) -> ExitCode {
    let dir = workspace().join("target/cuda-features");
    let choices = if is_all { all() } else { some() };
    let failed = choices.iter().filter(|choice| match check(&dir, **choice) {
        Ok(()) => {
            println!("{}: compiles, and is kept", choice.name());
            false
        }
        Err(error) => {
            println!("{}: {error}", choice.name());
            true
        }
    });
    if failed.count() == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn check(dir: &Path, choice: Choice) -> Result<(), String> {
    write(dir, choice).map_err(|error| format!("cannot write to {}: {error}", dir.display()))?;
    let output = cargo(["check", "--offline", "--quiet", "--message-format=json"])
        .current_dir(dir)
        .env("CARGO_TARGET_DIR", dir.join("target"))
        .env_remove("CUDARC_CUDA_VERSION")
        .output()
        .map_err(|error| format!("cannot run cargo: {error}"))?;
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        return Err(format!("does not compile: `cargo check` in {} says why\n{errors}", dir.display()));
    }
    let messages = String::from_utf8_lossy(&output.stdout);
    let is_account = |line: &&str| line.contains("\"build-script-executed\"") && line.contains("#cudarc@");
    let account = messages.lines().find(is_account).ok_or("cargo does not say how it built cudarc")?;
    if choice.is_kept(account) { Ok(()) } else { Err(format!("cudarc was built otherwise: {account}")) }
}

/// Writes the package, with the workspace's lock, so that nothing is fetched.
fn write(dir: &Path, choice: Choice) -> std::io::Result<()> {
    fs::create_dir_all(dir.join("src"))?;
    fs::copy(workspace().join("Cargo.lock"), dir.join("Cargo.lock"))?;
    let kvo_cuda = workspace().join("crates/kvo-cuda");
    let manifest = format!(
        "[package]\nname = \"engine\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\n[workspace]\n\n[dependencies]\n\
         kvo-cuda = {{ path = \"{}\" }}\n{}\n",
        kvo_cuda.display(),
        choice.dependency()
    );
    fs::write(dir.join("Cargo.toml"), manifest)?;
    let main = "fn main() {\n    let null: cudarc::driver::sys::CUdeviceptr = 0;\n    \
                println!(\"{null} {}\", kvo_cuda::probe());\n}\n";
    fs::write(dir.join("src/main.rs"), main)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_choice_that_was_overruled_is_seen() {
        let account = |major: &str, minor: &str, cfgs: &str, libs: &str| {
            format!(
                "{{\"reason\":\"build-script-executed\",\"linked_libs\":[{libs}],\"cfgs\":[{cfgs}],\
                 \"env\":[[\"CUDA_MAJOR_VERSION\",\"{major}\"],[\"CUDA_MINOR_VERSION\",\"{minor}\"]]}}"
            )
        };
        let (loaded, linked) = ("\"feature=\\\"dynamic-loading\\\"\"", "\"dylib=cuda\"");
        let choice = |way| Choice { version: (12, 8), way };
        assert!(choice(Way::Linked).is_kept(&account("12", "8", "", linked)));
        assert!(!choice(Way::Linked).is_kept(&account("12", "8", loaded, linked)));
        assert!(!choice(Way::Linked).is_kept(&account("13", "4", "", linked)));
        assert!(choice(Way::Default).is_kept(&account("12", "8", loaded, "")));
        assert!(!choice(Way::Default).is_kept(&account("12", "8", "", linked)));
        assert!(!choice(Way::Loaded).is_kept(&account("12", "9", "", "")));
    }

    #[test]
    fn every_version_is_tried_once_loaded() {
        let loaded = all().into_iter().filter(|choice| choice.way == Way::Loaded).count();
        assert_eq!(loaded, VERSIONS.len() + 1);
        assert!(all()[0].dependency().contains("default-features = true"));
    }
}
