//! The program as a user meets it.

use std::{
    fs,
    io::{BufRead, BufReader, Read},
    process::{Command, Output, Stdio},
};

/// The program, with its results going where they replace nobody's.
fn program(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvo-bench"));
    command.args(arguments).env("KVO_BENCH_OUT", env!("CARGO_TARGET_TMPDIR"));
    command
}

fn kvo_bench(arguments: &[&str]) -> Output {
    program(arguments).output().unwrap()
}

/// The command ends with status 2 and an error that has every part.
#[track_caller]
fn check_refused(arguments: &[&str], parts: &[&str]) {
    let output = kvo_bench(arguments);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(stderr.starts_with("error: "), "{stderr}");
    for part in parts {
        assert!(stderr.contains(part), "{part:?} is not in {stderr}");
    }
}

#[test]
fn policies_print_a_table_and_agree_with_the_published_figures() {
    let output = kvo_bench(&["policies", "--trace", "synth:400:7", "--capacity", "32,10%", "--check"]);
    let stdout = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{stdout}");
    assert!(
        stdout.starts_with("synth:400:7: 400 requests, 7954 blocks of 512 tokens, 3540 different"),
        "{stdout}"
    );
    for part in ["6367", "2e1922ff75209036", "6386", "6f441d77daa5cffc", "354", "2 cells agree, 0 differ"] {
        assert!(stdout.contains(part), "{part:?} is not in {stdout}");
    }
    assert!(output.stderr.is_empty(), "no progress bar where there is no terminal");
}

#[test]
fn a_check_without_published_figures_is_refused() {
    check_refused(
        &["policies", "--trace", "synth:10:1", "--capacity", "8", "--check"],
        &["--check: nothing is published"],
    );
}

#[test]
fn wrong_flags_are_named() {
    check_refused(&["policies", "--trace", "synth:many:1"], &["--trace", "many", "synth:4000:42"]);
    check_refused(&["policies", "--policy", "lru,mru"], &["--policy", "unknown policy \"mru\"", "use lru"]);
    check_refused(&["policies", "--capacity", "5%,0"], &["--capacity", "\"0\" is no capacity"]);
    check_refused(&["policies", "--trace", "synth:1:1", "--capacity", "1%"], &["less than one chunk"]);
    check_refused(&["policies", "--block-tokens", "0"], &["--block-tokens", "zero"]);
    check_refused(&["policies", "--time-unit", "us"], &["--time-unit", "[possible values: ms, s]"]);
    check_refused(&["policies", "--block-tokens", "16"], &["--block-tokens", "is generated"]);
}

#[test]
fn a_broken_trace_is_named_by_file_line_and_field() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("broken.jsonl");
    let good = r#"{"timestamp":0,"input_length":512,"output_length":1,"hash_ids":[1]}"#;
    fs::write(&path, format!("{good}\n{}\n", good.replace("512", "\"long\""))).unwrap();
    let path = path.to_str().unwrap();
    check_refused(&["policies", "--trace", path], &[path, "line 2", "input_length", "the string \"long\""]);
    check_refused(
        &["policies", "--trace", "no/such.jsonl"],
        &["cannot open trace no/such.jsonl", "No such file"],
    );
}

#[cfg(unix)]
#[test]
fn ctrl_c_prints_what_there_is_and_ends_with_130() {
    let mut child = program(&["policies", "--trace", "synth:200000:1", "--policy", "lru,arc"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    // The trace is announced before the first cell starts, which takes far longer than a signal.
    stdout.read_line(&mut String::new()).unwrap();
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    let mut rest = String::new();
    stdout.read_to_string(&mut rest).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130), "{rest}");
    assert!(rest.contains("eviction order") && rest.contains("stopped: 0 of 10 cells"), "{rest}");
}
