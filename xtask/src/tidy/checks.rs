//! The rules, one function each.

use std::path::Path;

use super::{
    Complaint, Source,
    code::code_of,
    manifest::{dependencies, package_name},
};

/// Where unsafe code may stand: files, or directories ending in `/`.
const UNSAFE_FILES: [&str; 22] = [
    "crates/kvo-core/src/claims.rs",
    "crates/kvo-core/src/device.rs",
    "crates/kvo-core/src/tables.rs",
    "crates/kvo-cpu/src/region.rs",
    "crates/kvo-cpu/src/region/",
    "crates/kvo-cpu/tests/allocations.rs",
    "crates/kvo-cuda/src/cuda/driver.rs",
    "crates/kvo-cuda/src/cuda/driver/",
    "crates/kvo-cuda/src/cuda/issue.rs",
    "crates/kvo-cuda/src/cuda/issue/",
    "crates/kvo-cuda/src/host_device/handles.rs",
    "crates/kvo-cuda/tests/allocations.rs",
    "crates/kvo-cuda/tests/cuda/rig.rs",
    "crates/kvo-fakecuda/src/client/library.rs",
    "crates/kvo-fakecuda/src/exports.rs",
    "crates/kvo-fakecuda/src/memory.rs",
    "crates/kvo-fakecuda/src/pointers.rs",
    "crates/kvo-fakecuda/tests/support/",
    "crates/kvo-gpu-check/src/cuda/raw.rs",
    "crates/kvo-gpu-check/src/handles.rs",
    "crates/kvo-nvme/src/engine/tests/unruly.rs",
    "crates/kvo-nvme/src/engine/uring/ring.rs",
];

/// The kvo crates that each library crate may use: dependencies point downwards.
const HOUSE: [(&str, &[&str]); 11] = [
    ("kvo-core", &[]),
    ("kvo-policies", &["kvo-core"]),
    ("kvo-cpu", &["kvo-core", "kvo-policies"]),
    ("kvo-tiering", &["kvo-core", "kvo-policies", "kvo-cpu"]),
    ("kvo-nvme", &["kvo-core", "kvo-policies"]),
    ("kvo-cuda", &["kvo-core"]),
    ("kvo-gpu-check", &["kvo-core", "kvo-policies", "kvo-cpu", "kvo-cuda"]),
    ("kvo-ptx", &[]),
    ("kvo-fakecuda", &["kvo-ptx"]),
    ("kvo-connector", &["kvo-core", "kvo-policies", "kvo-cpu", "kvo-cuda", "kvo-nvme", "kvo-tiering"]),
    (
        "kvo-sim",
        &["kvo-core", "kvo-policies", "kvo-cpu", "kvo-cuda", "kvo-nvme", "kvo-tiering", "kvo-connector"],
    ),
];

/// What a program of a crate uses of kvo besides, behind a feature. The crate's library does not name it.
const OF_PROGRAMS: [(&str, &str); 1] = [("kvo-nvme", "kvo-cpu")];

/// Dependencies that one crate alone may name.
const OWNED_DEPENDENCIES: [(&str, &str); 2] = [("cudarc", "kvo-cuda"), ("io-uring", "kvo-nvme")];

/// Who may name such a dependency besides, for its tests.
const OF_TESTS: [(&str, &str); 1] = [("kvo-fakecuda", "cudarc")];

/// Who is an engine beside a device, and calls what the device calls.
const OF_ENGINES: [(&str, &str); 1] = [("kvo-gpu-check", "cudarc")];

/// Crates that others name for their tests alone: what a user builds has none of them.
const TEST_ONLY: [&str; 3] = ["kvo-fakecuda", "kvo-ptx", "kvo-sim"];
/// A package that is nothing but tests.
const FUZZERS: &str = "kvo-fuzz";

const LINES_MAX: usize = 800;
const ARCHITECTURE_LINES_MAX: usize = 300;
/// Of the first example, and of any other: an engine's loop is shown whole.
const README_EXAMPLE_LINES_MAX: [usize; 2] = [40, 99];

/// Calls and attributes of what is not done; split so that this file passes its own check.
const STUBS: [&str; 3] = [concat!("to", "do!("), concat!("unimple", "mented!("), concat!("#[ig", "nore")];

/// Paths and hosts of one machine, split for the same reason.
const MACHINE_WORDS: [&str; 9] = [
    concat!("/ho", "me/"),
    concat!("/ro", "ot/"),
    concat!("/wo", "rk/"),
    concat!("/Us", "ers/"),
    concat!("static.cra", "tes.io"),
    concat!("index.cra", "tes.io"),
    concat!("py", "pi.org"),
    concat!("registry.np", "mjs"),
    concat!("deb.deb", "ian.org"),
];

/// Every complaint about the files, in the order of the rules.
pub(super) fn all(sources: &[Source]) -> Vec<Complaint> {
    let rules: [fn(&Source) -> Vec<Complaint>; 11] = [
        crate_root_answers_for_unsafe,
        unsafe_modules_are_let_off_by_name,
        unsafe_stands_in_its_files,
        nothing_is_left_undone,
        files_are_short,
        nothing_names_a_machine,
        dependencies_point_downwards,
        owned_dependencies_stay_with_their_owner,
        test_crates_are_for_tests,
        xtask_builds_in_seconds,
        packages_take_the_workspace_lints,
    ];
    rules.iter().flat_map(|rule| sources.iter().flat_map(rule)).collect()
}

fn complaint(source: &Source, line: usize, message: impl Into<String>) -> Complaint {
    Complaint { path: source.path.clone(), line, message: message.into() }
}

fn is_rust(source: &Source) -> bool {
    Path::new(&source.path).extension().is_some_and(|extension| extension == "rs")
}

fn may_be_unsafe(path: &str) -> bool {
    UNSAFE_FILES.iter().any(|allowed| path == *allowed || allowed.ends_with('/') && path.starts_with(allowed))
}

/// A crate root forbids unsafe code; where a module of the crate has some, it denies it, and whoever declares that
/// module lets it off by name.
fn crate_root_answers_for_unsafe(source: &Source) -> Vec<Complaint> {
    let is_root = ["src/lib.rs", "src/main.rs"].iter().any(|root| source.path.ends_with(root))
        || source.path.rsplit_once('/').is_some_and(|(dir, _)| dir.ends_with("src/bin"));
    if !is_root || !is_rust(source) {
        return Vec::new();
    }
    let code = code_of(&source.text);
    if code.contains("#![forbid(unsafe_code)]") {
        return Vec::new();
    }
    let crate_src = source.path.strip_suffix("lib.rs").unwrap_or(&source.path);
    let module = UNSAFE_FILES.iter().find_map(|file| file.strip_prefix(crate_src)?.strip_suffix(".rs"));
    match module {
        None => vec![complaint(source, 0, "a crate root says #![forbid(unsafe_code)]")],
        Some(module) if !code.contains("#![deny(unsafe_code)]") => {
            vec![complaint(
                source,
                0,
                format!("says neither #![forbid(unsafe_code)] nor, for {module}, #![deny(unsafe_code)]"),
            )]
        }
        Some(_) => Vec::new(),
    }
}

/// Whoever declares a module with unsafe code says why it may have some, in a crate that denies it otherwise.
fn unsafe_modules_are_let_off_by_name(source: &Source) -> Vec<Complaint> {
    if !is_rust(source) {
        return Vec::new();
    }
    let code = code_of(&source.text);
    if code.contains("#![forbid(unsafe_code)]") {
        return Vec::new();
    }
    let declared = UNSAFE_FILES.iter().filter_map(|file| declaration_of(file));
    declared
        .filter(|(declares, module)| source.path == *declares && !lets_off(&code, module))
        .map(|(_, module)| {
            let message = format!("no #[expect(unsafe_code, reason = ...)] stands above mod {module}");
            complaint(source, 0, message)
        })
        .collect()
}

/// Which file declares the module in `file`, and under which name: `src/a/b.rs` is `b` in `src/a.rs`.
fn declaration_of(file: &str) -> Option<(String, &str)> {
    let (dir, module) = file.strip_suffix(".rs")?.rsplit_once('/')?;
    match dir.rsplit_once('/')? {
        (_, "tests") => None,
        (_, "src") => Some((format!("{dir}/lib.rs"), module)),
        _ => Some((format!("{dir}.rs"), module)),
    }
}

fn lets_off(code: &str, module: &str) -> bool {
    let declared = format!("mod {module};");
    code.lines()
        .zip(code.lines().skip(1))
        .any(|(above, line)| above.starts_with("#[expect(unsafe_code") && line.ends_with(&declared))
}

/// The word `unsafe` is code in the allowed files only.
fn unsafe_stands_in_its_files(source: &Source) -> Vec<Complaint> {
    if !is_rust(source) || may_be_unsafe(&source.path) {
        return Vec::new();
    }
    let message = format!("unsafe code outside {}", UNSAFE_FILES.join(" and "));
    numbered(&code_of(&source.text))
        .filter(|(_, line)| words(line).any(|word| word == "unsafe"))
        .map(|(number, _)| complaint(source, number, message.as_str()))
        .collect()
}

/// No stub and no test that is switched off.
fn nothing_is_left_undone(source: &Source) -> Vec<Complaint> {
    if !is_rust(source) {
        return Vec::new();
    }
    let code = code_of(&source.text);
    let found = numbered(&code).filter_map(|(number, line)| {
        let stub = STUBS.iter().find(|stub| line.contains(**stub))?;
        Some(complaint(source, number, format!("{stub}...: finish it, or leave it out")))
    });
    found.collect()
}

/// Files stay short enough to be read, the architecture page too, and the README's example fits a screen.
fn files_are_short(source: &Source) -> Vec<Complaint> {
    let lines = source.text.lines().count();
    let max = match source.path.as_str() {
        "docs/ARCHITECTURE.md" => ARCHITECTURE_LINES_MAX,
        _ if is_rust(source) => LINES_MAX,
        _ => usize::MAX,
    };
    let mut complaints = Vec::new();
    if lines > max {
        complaints.push(complaint(source, 0, format!("{lines} lines, at most {max}: look for a seam")));
    }
    if source.path == "README.md" {
        let [first, other] = README_EXAMPLE_LINES_MAX;
        let most = std::iter::once(first).chain(std::iter::repeat(other));
        let long = rust_examples(&source.text).zip(most).filter(|((_, lines), most)| lines > most);
        complaints.extend(long.map(|((start, lines), most)| {
            complaint(source, start, format!("an example of {lines} lines, at most {most}"))
        }));
    }
    complaints
}

/// Start and length of each Rust block of a Markdown text.
fn rust_examples(text: &str) -> impl Iterator<Item = (usize, usize)> {
    numbered(text).filter(|(_, line)| line.starts_with("```rust")).map(|(number, _)| {
        (number, text.lines().skip(number).take_while(|line| !line.starts_with("```")).count())
    })
}

/// The project is the same on every machine. Cargo.lock names its registry, which is its business.
fn nothing_names_a_machine(source: &Source) -> Vec<Complaint> {
    if source.path == "Cargo.lock" {
        return Vec::new();
    }
    let found = numbered(&source.text).filter_map(|(number, line)| {
        let word = MACHINE_WORDS.iter().find(|word| names(line, word))?;
        Some(complaint(source, number, format!("names a path or a host of one machine: {word}")))
    });
    found.collect()
}

/// Whether `word` stands in `line`, and not as the end of a longer relative path.
fn names(line: &str, word: &str) -> bool {
    let inner = |c: char| c.is_alphanumeric() || "._-}".contains(c);
    line.match_indices(word).any(|(at, _)| !word.starts_with('/') || !line[..at].ends_with(inner))
}

fn is_manifest(source: &Source) -> bool {
    source.path == "Cargo.toml" || source.path.ends_with("/Cargo.toml")
}

/// Library crates use only the kvo crates below them.
fn dependencies_point_downwards(source: &Source) -> Vec<Complaint> {
    let Some(name) = package_name(&source.text).filter(|_| is_manifest(source)) else { return Vec::new() };
    if !source.path.starts_with("crates/") {
        return Vec::new();
    }
    let mut complaints = Vec::new();
    if source.path != format!("crates/{name}/Cargo.toml") {
        complaints.push(complaint(source, 0, format!("the folder is not named as its package, {name}")));
    }
    let Some((_, below)) = HOUSE.iter().find(|(crate_name, _)| *crate_name == name) else {
        complaints.push(complaint(
            source,
            0,
            format!("{name} has no place in the house: give it one in tidy"),
        ));
        return complaints;
    };
    let upwards = dependencies(&source.text).into_iter().filter(|dependency| {
        let of_program = dependency.optional && OF_PROGRAMS.contains(&(name, dependency.name));
        let is_free = dependency.dev || of_program || below.contains(&dependency.name);
        dependency.name.starts_with("kvo-") && !is_free
    });
    complaints.extend(upwards.map(|dependency| {
        complaint(
            source,
            dependency.line,
            format!("{name} may use {below:?} of kvo, not {}", dependency.name),
        )
    }));
    complaints
}

/// A dependency that carries a device or a kernel interface is named by one crate.
fn owned_dependencies_stay_with_their_owner(source: &Source) -> Vec<Complaint> {
    let Some(name) = package_name(&source.text).filter(|_| is_manifest(source)) else { return Vec::new() };
    let found = dependencies(&source.text).into_iter().filter_map(|dependency| {
        let (_, owner) = OWNED_DEPENDENCIES.iter().find(|(owned, _)| *owned == dependency.name)?;
        let message = format!("only {owner} names {}", dependency.name);
        let is_of_tests = dependency.dev && OF_TESTS.contains(&(name, dependency.name));
        let is_of_engines = OF_ENGINES.contains(&(name, dependency.name));
        (*owner != name && !is_of_tests && !is_of_engines)
            .then(|| complaint(source, dependency.line, message))
    });
    found.collect()
}

/// What stands in for a device is a dev-dependency, and never part of what is built for a user.
fn test_crates_are_for_tests(source: &Source) -> Vec<Complaint> {
    let Some(name) = package_name(&source.text).filter(|_| is_manifest(source)) else { return Vec::new() };
    let named = dependencies(&source.text).into_iter().filter(|dependency| {
        let is_of_tests = dependency.dev || name == FUZZERS || TEST_ONLY.contains(&name);
        TEST_ONLY.contains(&dependency.name) && !is_of_tests
    });
    named
        .map(|dependency| {
            complaint(source, dependency.line, format!("{} is for tests: a dev-dependency", dependency.name))
        })
        .collect()
}

/// Every task waits for this package to build.
fn xtask_builds_in_seconds(source: &Source) -> Vec<Complaint> {
    if source.path != "xtask/Cargo.toml" {
        return Vec::new();
    }
    let others = dependencies(&source.text).into_iter();
    others
        .map(|other| complaint(source, other.line, format!("xtask builds without {}", other.name)))
        .collect()
}

/// Lints are said once, in the root manifest.
fn packages_take_the_workspace_lints(source: &Source) -> Vec<Complaint> {
    if !is_manifest(source) || package_name(&source.text).is_none() {
        return Vec::new();
    }
    let mut lints = source.text.lines().skip_while(|line| line.trim() != "[lints]").skip(1);
    if lines_until_section(&mut lints).any(|line| line.replace(' ', "") == "workspace=true") {
        return Vec::new();
    }
    vec![complaint(source, 0, "a package takes its lints from the workspace: [lints] workspace = true")]
}

fn lines_until_section<'a>(lines: &mut impl Iterator<Item = &'a str>) -> impl Iterator<Item = &'a str> {
    lines.take_while(|line| !line.starts_with('['))
}

fn numbered(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines().enumerate().map(|(index, line)| (index + 1, line))
}

fn words(line: &str) -> impl Iterator<Item = &str> {
    line.split(|c: char| !c.is_alphanumeric() && c != '_')
}

#[cfg(test)]
mod tests;
