//! The suite over a device in host memory.

#[macro_use]
mod support;

use kvo_gpu_check::{Case, HostBeds, Traffic, controls};

kvo_gpu_check::each_case!(tests);

#[track_caller]
fn check(name: &str) {
    let case = Case::named(name).expect("the list has it");
    assert!(case.runs_on(&HostBeds));
    case.run(&HostBeds).unwrap_or_else(|failure| panic!("{failure}"));
}

#[test]
fn a_device_with_a_defect_fails() {
    for control in controls() {
        control.run(&HostBeds).unwrap_or_else(|error| panic!("{control}: {error}"));
    }
}

#[test]
fn a_hundred_thousand_random_transfers_come_to_the_byte() {
    let counts = Traffic::new(100_000).run(&HostBeds).unwrap_or_else(|failure| panic!("{failure}"));
    eprintln!("{counts:?}");
    assert!(counts.transfers >= 100_000 && counts.marks > 0, "{counts:?}");
}
