//! What a store takes from the process, and that it gives it back.

use std::{
    fs, thread,
    time::{Duration, Instant},
};

use kvo_nvme::{EngineKind, NvmeOptions};

use crate::rig::{LONG, Rig, engines, is_alone, options};

fn count(of: &str) -> usize {
    fs::read_dir(of).unwrap().count()
}

fn num_fds() -> usize {
    count("/proc/self/fd")
}

/// A thread that was joined may be seen for a moment.
#[track_caller]
fn check_threads(expected: usize) {
    let start = Instant::now();
    while count("/proc/self/task") != expected {
        assert!(start.elapsed() < LONG, "{} threads, not {expected}", count("/proc/self/task"));
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_device_takes_a_file_a_ring_and_an_eventfd_and_the_index_is_one_more() {
    if !is_alone(module_path!(), "a_device_takes_a_file_a_ring_and_an_eventfd_and_the_index_is_one_more") {
        return;
    }
    for engine in engines() {
        for num_devices in [1, 3] {
            let dirs: Vec<_> = (0..num_devices).map(|_| tempfile::tempdir().unwrap()).collect();
            let paths = dirs.iter().map(|dir| dir.path().to_owned()).collect();
            let before = num_fds();
            let mut rig = Rig::open(&NvmeOptions { engine, dirs: paths, ..options("", 8) });
            let a_device = if engine == EngineKind::Uring { 3 } else { 1 };
            assert!(num_fds() - before <= 1 + num_devices * a_device, "{engine:?}: {}", num_fds() - before);
            assert_eq!(rig.put(0..16).hits.len(), 16);
            assert!(num_fds() - before <= 1 + num_devices * a_device, "{engine:?} at work");
            rig.close();
            assert_eq!(num_fds(), before, "{engine:?}");
        }
    }
}

#[test]
fn two_hundred_openings_leave_no_descriptor_and_no_thread() {
    if !is_alone(module_path!(), "two_hundred_openings_leave_no_descriptor_and_no_thread") {
        return;
    }
    let engines = engines();
    let dir = tempfile::tempdir().unwrap();
    let (fds, threads) = (num_fds(), count("/proc/self/task"));
    for round in 0..200 {
        let engine = engines[round % engines.len()];
        let mut rig = Rig::open(&NvmeOptions { engine, ..options(dir.path(), 8) });
        if round % 10 < 2 {
            assert_eq!(rig.put(0..8).hits.len(), 8);
        }
        if round % 3 == 0 {
            drop(rig);
        } else {
            rig.close();
        }
        assert_eq!(num_fds(), fds, "round {round}");
    }
    check_threads(threads);
}
