//! A program that does not load the fake driver.

mod support;

use self::support::raw;

#[test]
fn a_program_that_does_not_load_it_has_no_driver() {
    let path = kvo_fakecuda::FakeDriver::library_path().expect("cargo has built it for this test");
    assert!(path.is_file());
    let is_there = raw::is_present();
    let maps = std::fs::read_to_string("/proc/self/maps").expect("procfs");
    assert!(!maps.contains("libkvo_fakecuda"), "it was found by accident: {maps}");
    if is_there {
        eprintln!("SKIPPED: this machine has a driver of its own");
        return;
    }
    assert!(!maps.contains("libcuda"));
}
