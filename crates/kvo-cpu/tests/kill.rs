//! A process with shared memory is killed: nothing of it is left.

use std::{
    env, fs,
    io::{BufRead, BufReader},
    process::{Command, Stdio},
};

use kvo_core::{HostMemory, SlotId};
use kvo_cpu::{HostRegion, RegionOptions};

/// Set in the process that is to be killed.
const IS_CHILD: &str = "KVO_KILL_CHILD";

fn options() -> RegionOptions {
    RegionOptions { huge_pages: false, prefault_threads: 1, ..RegionOptions::new(16, 1 << 20) }
}

/// Names in the places where shared memory has names.
fn names() -> Vec<String> {
    let dirs = ["/dev/shm", "/run/shm"].into_iter().filter_map(|dir| fs::read_dir(dir).ok());
    let names = dirs.flatten().map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned());
    names.filter(|name| name.contains("kvo")).collect()
}

#[test]
fn a_killed_process_leaves_no_shared_memory() {
    if env::var_os(IS_CHILD).is_some() {
        let region = HostRegion::shared(&options()).unwrap();
        region.with_write(SlotId(3), &mut |bytes| bytes.fill(7)).unwrap();
        println!("\nready");
        loop {
            std::thread::park();
        }
    }
    let before = names();
    let mut child = Command::new(env::current_exe().unwrap())
        .args(["--exact", "a_killed_process_leaves_no_shared_memory", "--nocapture"])
        .env(IS_CHILD, "1")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let said = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(said.map(Result::unwrap).any(|line| line == "ready"), "the child has its memory");
    let id = child.id();
    let maps = fs::read_to_string(format!("/proc/{id}/maps")).unwrap();
    assert!(maps.contains("memfd:kvo-host-region"), "{maps}");
    assert_eq!(names(), before, "it has no name while it is there");
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(!fs::exists(format!("/proc/{id}")).unwrap(), "with its last process the memory goes");
    assert_eq!(names(), before);
}
