//! A device that has nothing to do.

use std::{fs, time::Duration};

use kvo_core::TransferClass;

use crate::rig::{Rig, task};

/// Nanoseconds that a thread of this process with that name has run.
fn ran(name: &str) -> Option<u64> {
    fs::read_to_string(task(name)?.join("schedstat")).ok()?.split_whitespace().next()?.parse().ok()
}

#[test]
fn an_idle_device_takes_no_processor() {
    let mut rig = Rig::new();
    let after = rig.passed();
    let load = rig.submit(rig.one_slot(TransferClass::Demand, 0, after));
    rig.succeeds(load);
    let Some(before) = ran("kvo-cuda:0") else {
        eprintln!("SKIPPED: the kernel does not say how long a thread ran");
        return;
    };
    // What is measured.
    std::thread::sleep(Duration::from_millis(500));
    let after = ran("kvo-cuda:0").unwrap();
    eprintln!("idle: {} ns of 500 ms", after - before);
    assert!(after - before < 10_000_000, "{} ns of 500 ms", after - before);
}
