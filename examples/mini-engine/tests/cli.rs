//! The program from outside.

use std::process::Command;

fn run(args: &[&str]) -> (bool, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_kvo-mini-engine")).args(args).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.success(), text(output.stdout), text(output.stderr))
}

#[track_caller]
fn check_refused(args: &[&str], words: &str) {
    let (success, _, errors) = run(args);
    assert!(!success && errors.contains(words), "{errors}");
}

#[test]
fn a_second_round_finds_the_first_on_the_device_and_answers_the_same() {
    let prompt = "a prompt that fills more than two blocks";
    let (success, out, errors) =
        run(&["--prompt", prompt, "--tokens", "1, 2,3", "--rounds", "2", "--max-tokens", "8"]);
    assert!(success, "{errors}");
    let answers: Vec<&str> = out.lines().filter(|line| line.starts_with("answer")).collect();
    assert_eq!((answers.len(), answers[0], answers[1]), (4, answers[2], answers[3]));
    assert!(
        out.contains(
            "round 1: 2 answers, 16 tokens generated; prompts 43, computed 57, found on the device 0,"
        ),
        "{out}"
    );
    assert!(
        out.contains(
            "round 2: 2 answers, 16 tokens generated; prompts 43, computed 25, found on the device 32,"
        ),
        "{out}"
    );
}

#[test]
fn what_the_device_forgets_is_loaded() {
    let prompt = "a prompt that fills more than two blocks";
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().to_str().unwrap();
    let config = dir.path().join("kvo.toml");
    std::fs::write(&config, "[cpu]\nbytes = 65536\nhuge_pages = false\n").unwrap();
    for offload in [
        &["--offload", "cpu"][..],
        &["--offload", "cpu", "--by-layer", "--policy", "arc"],
        &["--offload", "cpu+nvme", "--nvme-dir", store],
        &["--config", config.to_str().unwrap()],
    ] {
        let args = ["--prompt", prompt, "--rounds", "2", "--max-tokens", "8", "--forget-device"];
        let (success, out, errors) = run(&[&args, offload].concat());
        assert!(success, "{errors}");
        let answers: Vec<&str> = out.lines().filter(|line| line.starts_with("answer")).collect();
        assert_eq!((answers.len(), answers[0]), (2, answers[1]));
        assert!(
            out.contains(
                "round 2: 1 answers, 8 tokens generated; prompts 40, computed 15, found on the device 0, \
                 loaded from CPU 32, promoted from NVMe 0 chunks of 16, failed 0;"
            ),
            "{out}"
        );
    }
    // The store was closed, and another process has its chunks again.
    let args = ["--prompt", prompt, "--max-tokens", "8", "--offload", "cpu+nvme", "--nvme-dir", store];
    let (success, out, errors) = run(&args);
    assert!(success, "{errors}");
    assert!(out.contains("loaded from CPU 32, promoted from NVMe 2 chunks of 16,"), "{out}");
    // The same model, trained on: it finds nothing of before, and before finds what it had.
    for (epoch, loaded) in [("1", 0), ("1", 32), ("0", 32)] {
        let (success, out, errors) = run(&[&args[..], &["--epoch", epoch]].concat());
        assert!(success, "{errors}");
        assert!(out.contains(&format!("loaded from CPU {loaded},")), "epoch {epoch}: {out}");
    }
    // Other weights have other chunks.
    check_refused(&[&args[..], &["--seed", "2"]].concat(), "belongs to another store");
}

#[test]
fn what_it_cannot_do_it_says() {
    check_refused(&["--offload", "disk", "--prompt", "x"], "possible values: off, cpu, cpu+nvme");
    check_refused(&["--offload", "cpu+nvme", "--prompt", "x"], "cpu+nvme needs --nvme-dir");
    check_refused(&["--nvme-dir", "x", "--prompt", "x"], "--nvme-dir is for --offload cpu+nvme");
    check_refused(&["--offload", "cpu", "--policy", "mru", "--prompt", "x"], "cpu.policy: ");
    check_refused(&["--offload", "cpu", "--cpu-chunks", "0", "--prompt", "x"], "cpu.bytes: 0 bytes");
    check_refused(&["--config", "none.toml", "--prompt", "x"], "none.toml");
    check_refused(&["--model", "none.gguf", "--prompt", "x"], "none.gguf is no model");
    check_refused(&[], "there is no prompt");
    check_refused(&["--prompt", ""], "a prompt has at least one token");
    check_refused(&["--tokens", "256"], "token 256 at 0 is not one of the model's 256");
    check_refused(&["--tokens", "x"], "invalid digit");
    check_refused(&["--prompt", "x", "--blocks", "0"], "num_blocks must not be 0");
}
