//! A process that can have no more threads has its memory all the same.

use std::{env, process::Command};

use kvo_core::{HostMemory, SlotId};
use kvo_cpu::{HostRegion, RegionOptions};

/// Set in the process that is to get no threads: its stacks would be larger than all memory.
const IS_CHILD: &str = "KVO_THREADS_CHILD";

#[test]
fn memory_is_touched_where_no_thread_is_to_be_had() {
    if env::var_os(IS_CHILD).is_some() {
        assert!(std::thread::Builder::new().spawn(|| ()).is_err(), "no thread is to be had");
        let options = RegionOptions { prefault_threads: 4, ..RegionOptions::new(8, 1 << 20) };
        for region in [HostRegion::anonymous(&options).unwrap(), HostRegion::shared(&options).unwrap()] {
            region.with_read(SlotId(7), &mut |bytes| assert!(bytes.iter().all(|byte| *byte == 0))).unwrap();
        }
        return;
    }
    let child = Command::new(env::current_exe().unwrap())
        .args(["--exact", "memory_is_touched_where_no_thread_is_to_be_had", "--nocapture"])
        .env(IS_CHILD, "1")
        .env("RUST_MIN_STACK", (1_u64 << 60).to_string())
        .output()
        .unwrap();
    assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stderr));
}
