//! Each rule is shown what breaks it and what does not. Words that the rules look for are split, since these files
//! are checked too.

use super::*;

/// What all rules say about one file, without the path.
fn complaints(path: &str, text: &str) -> Vec<(usize, String)> {
    let source = Source { path: path.to_owned(), text: text.to_owned() };
    all(&[source]).into_iter().map(|complaint| (complaint.line, complaint.message)).collect()
}

#[track_caller]
fn check_good(path: &str, text: &str) {
    assert_eq!(complaints(path, text), []);
}

/// One complaint, at the line, with the part.
#[track_caller]
fn check_bad(path: &str, text: &str, line: usize, part: &str) {
    let found = complaints(path, text);
    assert!(found.len() == 1 && found[0].0 == line && found[0].1.contains(part), "{found:?}");
}

const FORBID: &str = "#![forbid(unsafe_code)]\n";

#[test]
fn a_crate_root_forbids_unsafe_code() {
    check_good("crates/kvo-core/src/lib.rs", FORBID);
    check_good("crates/kvo-core/src/key.rs", "");
    check_bad("crates/kvo-tiering/src/lib.rs", "", 0, "says #![forbid");
    check_bad("crates/kvo-tiering/src/lib.rs", "#![deny(unsafe_code)]\n", 0, "says #![forbid");
    check_bad("tests/src/bin/run.rs", "fn main() {}\n", 0, "says #![forbid");
    check_bad("bench/src/main.rs", "// #![forbid(unsafe_code)]\n", 0, "says #![forbid");
}

#[test]
fn a_crate_with_unsafe_code_names_its_module() {
    let named = "#![deny(unsafe_code)]\n#[expect(unsafe_code, reason = \"it maps\")]\nmod region;\n";
    check_good("crates/kvo-cpu/src/lib.rs", named);
    check_good("crates/kvo-cpu/src/lib.rs", FORBID);
    let undenied = "#[expect(unsafe_code, reason = \"it maps\")]\nmod region;\n";
    check_bad("crates/kvo-cpu/src/lib.rs", undenied, 0, "says neither");
    check_bad(
        "crates/kvo-cpu/src/lib.rs",
        "#![deny(unsafe_code)]\nmod region;\n",
        0,
        "stands above mod region",
    );
    check_bad("crates/kvo-tiering/src/lib.rs", named, 0, "says #![forbid");
}

#[test]
fn each_module_with_unsafe_code_is_let_off_where_it_is_declared() {
    let claims = "#[expect(unsafe_code, reason = \"claims\")]\nmod claims;\n";
    let device = "#[expect(unsafe_code, reason = \"handles\")]\nmod device;\n";
    let two = format!("#![deny(unsafe_code)]\n{claims}{device}mod tables;\n");
    check_bad("crates/kvo-core/src/lib.rs", &two, 0, "stands above mod tables");
    let nested = "#[expect(unsafe_code, reason = \"addresses\")]\nmod ring;\n";
    check_good("crates/kvo-nvme/src/engine/uring.rs", nested);
    check_bad("crates/kvo-nvme/src/engine/uring.rs", "mod ring;\n", 0, "stands above mod ring");
    check_good("crates/kvo-nvme/src/lib.rs", "#![deny(unsafe_code)]\nmod engine;\n");
    check_bad("crates/kvo-nvme/src/lib.rs", "mod engine;\n", 0, "says neither");
    check_good("crates/kvo-nvme/src/engine.rs", "mod uring;\n");
}

#[test]
fn unsafe_code_stands_in_its_files_only() {
    let text = "fn f() {\n    unsafe { g() }\n}\n";
    check_good("crates/kvo-cpu/src/region.rs", text);
    check_good("crates/kvo-cpu/src/region/map.rs", text);
    check_bad("crates/kvo-cpu/src/manager.rs", text, 2, "unsafe code outside");
    check_bad("crates/kvo-cpu/src/regions.rs", text, 2, "unsafe code outside");
    check_good("crates/kvo-cpu/src/manager.rs", "// unsafe\nfn f(unsafe_code: &str) { g(\"unsafe\") }\n");
}

#[test]
fn nothing_is_left_undone_or_switched_off() {
    for (index, stub) in STUBS.iter().enumerate() {
        check_bad("tests/src/a.rs", &format!("fn f() {{\n    {stub})]\n}}\n"), 2, STUBS[index]);
        check_good("tests/src/a.rs", &format!("// {stub}\nconst A: &str = \"{stub}\";\n"));
    }
}

#[test]
fn files_are_not_endless() {
    check_good("crates/kvo-core/src/a.rs", &"\n".repeat(800));
    check_bad("crates/kvo-core/src/a.rs", &"\n".repeat(801), 0, "801 lines, at most 800");
    check_good("docs/ARCHITECTURE.md", &"\n".repeat(300));
    check_bad("docs/ARCHITECTURE.md", &"\n".repeat(301), 0, "301 lines, at most 300");
    check_good("docs/other.md", &"\n".repeat(301));
}

#[test]
fn the_example_of_the_readme_is_short() {
    let example =
        |lines| format!("# kvo\n```rust\n{}```\n```text\n{}```\n", "a\n".repeat(lines), "b\n".repeat(50));
    check_good("README.md", &example(40));
    check_bad("README.md", &example(41), 2, "an example of 41 lines, at most 40");
}

#[test]
fn no_file_names_a_machine() {
    for word in MACHINE_WORDS {
        check_bad("docs/a.md", &format!("a\nsee {word}x\n"), 2, word);
        check_good("Cargo.lock", word);
    }
    check_good("docs/a.md", concat!("see ../wo", "rk/x and shared/ho", "me/x and $DIR}/ro", "ot/x\n"));
}

fn manifest(name: &str, rest: &str) -> String {
    format!("[package]\nname = \"{name}\"\n[lints]\nworkspace = true\n{rest}")
}

#[test]
fn dependencies_point_downwards() {
    let path = "crates/kvo-policies/Cargo.toml";
    check_good(path, &manifest("kvo-policies", "[dependencies]\nkvo-core.workspace = true\nslab = \"1\"\n"));
    check_good(path, &manifest("kvo-policies", "[dev-dependencies]\nkvo-cpu.workspace = true\n"));
    let up =
        manifest("kvo-policies", "[dependencies]\nkvo-core.workspace = true\nkvo-cpu.workspace = true\n");
    check_bad(path, &up, 7, "kvo-policies may use [\"kvo-core\"] of kvo, not kvo-cpu");
    let up = manifest("kvo-cuda", "[dependencies]\nkvo-nvme = { path = \"../kvo-nvme\" }\n");
    check_bad("crates/kvo-cuda/Cargo.toml", &up, 6, "not kvo-nvme");
    let of_program = "[dependencies]\nkvo-cpu = { workspace = true, optional = true }\n";
    check_good("crates/kvo-nvme/Cargo.toml", &manifest("kvo-nvme", of_program));
    check_bad("crates/kvo-cuda/Cargo.toml", &manifest("kvo-cuda", of_program), 6, "not kvo-cpu");
    let of_library = "[dependencies]\nkvo-cpu.workspace = true\n";
    check_bad("crates/kvo-nvme/Cargo.toml", &manifest("kvo-nvme", of_library), 6, "not kvo-cpu");
    check_bad("crates/kvo-new/Cargo.toml", &manifest("kvo-new", ""), 0, "no place in the house");
    check_bad("crates/core/Cargo.toml", &manifest("kvo-core", ""), 0, "not named as its package");
    check_good("bench/Cargo.toml", &manifest("kvo-bench", "[dependencies]\nkvo-cpu.workspace = true\n"));
}

#[test]
fn devices_and_kernel_interfaces_have_one_owner() {
    let cudarc = "[dependencies]\ncudarc = { version = \"1\", optional = true }\n";
    check_good("crates/kvo-cuda/Cargo.toml", &manifest("kvo-cuda", cudarc));
    check_bad("crates/kvo-cpu/Cargo.toml", &manifest("kvo-cpu", cudarc), 6, "only kvo-cuda names cudarc");
    let for_tests = "[dev-dependencies]\ncudarc = \"1\"\n";
    check_good("crates/kvo-fakecuda/Cargo.toml", &manifest("kvo-fakecuda", for_tests));
    check_bad("crates/kvo-fakecuda/Cargo.toml", &manifest("kvo-fakecuda", cudarc), 6, "only kvo-cuda");
    let ring = "[target.'cfg(unix)'.dev-dependencies]\nio-uring = \"1\"\n";
    check_good("crates/kvo-nvme/Cargo.toml", &manifest("kvo-nvme", ring));
    check_bad("tests/Cargo.toml", &manifest("kvo-tests", ring), 6, "only kvo-nvme names io-uring");
    check_good("Cargo.toml", "[workspace.dependencies]\ncudarc = \"1\"\nio-uring = \"1\"\n");
}

#[test]
fn what_stands_in_for_a_device_is_a_dev_dependency() {
    let fake = "kvo-fakecuda.workspace = true\n";
    check_good("crates/kvo-cuda/Cargo.toml", &manifest("kvo-cuda", &format!("[dev-dependencies]\n{fake}")));
    let of_library = format!("[dependencies]\n{fake}");
    check_bad("bench/Cargo.toml", &manifest("kvo-bench", &of_library), 6, "for tests");
    let interpreter = "[dependencies]\nkvo-ptx.workspace = true\n";
    check_good("crates/kvo-fakecuda/Cargo.toml", &manifest("kvo-fakecuda", interpreter));
    check_good("fuzz/Cargo.toml", &manifest("kvo-fuzz", interpreter));
}

#[test]
fn xtask_has_no_dependencies() {
    check_good("xtask/Cargo.toml", &manifest("xtask", "[dependencies]\n"));
    let text = manifest("xtask", "[dependencies]\nkvo-core.workspace = true\n");
    check_bad("xtask/Cargo.toml", &text, 6, "xtask builds without kvo-core");
}

#[test]
fn packages_take_the_workspace_lints() {
    let path = "crates/kvo-core/Cargo.toml";
    check_good(path, "[package]\nname = \"kvo-core\"\n[lints]\nworkspace=true\n");
    check_bad(path, "[package]\nname = \"kvo-core\"\n", 0, "[lints] workspace = true");
    check_bad(path, "[package]\nname = \"kvo-core\"\n[lints]\n[other]\nworkspace = true\n", 0, "[lints]");
    check_good("Cargo.toml", "[workspace]\n");
}
