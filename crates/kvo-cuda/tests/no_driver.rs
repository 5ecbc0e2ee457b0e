//! What a program sees where there is no driver. Its own test binary: a process has one driver or none.
#![cfg(feature = "cuda")]

use std::process::Command;

use kvo_cuda::{Probe, probe};

/// Whether this machine has a driver, in which case this binary has nothing to say.
fn is_skipped() -> bool {
    let skipped = !matches!(probe(), Probe::NoDriver { .. });
    if skipped {
        eprintln!("SKIPPED: this machine has a driver: {}", probe());
    }
    skipped
}

#[test]
fn a_missing_driver_is_a_value() {
    if is_skipped() {
        return;
    }
    let words = probe().to_string();
    assert!(words.starts_with("there is no CUDA driver: libcuda.so.1: "), "in the loader's words: {words}");
    assert!(probe().devices().is_empty());
    assert!(std::ptr::eq(probe(), probe()), "the answer is kept");
}

/// Run by the test below in a process of its own.
#[test]
fn a_process_that_turns_gpus_off_does_not_look_for_them() {
    const CHILD: &str = "KVO_TEST_CHILD";
    if std::env::var_os(CHILD).is_some() {
        assert_eq!(probe(), &Probe::Disabled);
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        assert!(!maps.contains("libcuda"), "the library was loaded");
        return;
    }
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_process_that_turns_gpus_off_does_not_look_for_them"])
        .envs([(CHILD, "1"), ("KVO_CUDA", "off")])
        .output()
        .unwrap();
    assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stdout));
}
