//! What is left of kvo when it ends before it is whole: no thread, no descriptor, no lock, no new file. One test, as it
//! counts what the process has.

use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};

use kvo_connector::{
    AnyDevice, BuildError, DeviceKind, EngineIdentity, GroupOptions, NvmeConfig, Offload, OffloadConfig,
    WorkerError,
};
use kvo_core::ChunkLayout;
use kvo_cuda::BlockLayout;

const LONG: Duration = Duration::from_mins(1);

fn build(model: &str, dir: &Path) -> Result<Offload, BuildError> {
    build_over(model, &[dir])
}

fn build_over(model: &str, dirs: &[&Path]) -> Result<Offload, BuildError> {
    let chunk = ChunkLayout::new(1, 1, 4096, 1).unwrap();
    let layout = BlockLayout::layer_first(&chunk, 8, 8 * chunk.block_bytes()).unwrap();
    let mut config = OffloadConfig::new(8 * chunk.chunk_bytes());
    config.cpu.huge_pages = false;
    config.device.kind = DeviceKind::Host;
    let dirs = dirs.iter().map(|dir| dir.to_path_buf()).collect();
    config.nvme = Some(NvmeConfig { dirs, ..NvmeConfig::new("", 8 * chunk.chunk_bytes()) });
    let identity = EngineIdentity::new(model, "a byte", 1);
    Offload::builder(config, identity, layout, vec![GroupOptions::full(16)], 16).build()
}

/// Threads of kvo.
fn threads() -> usize {
    let name = |task: fs::DirEntry| fs::read_to_string(task.path().join("comm")).unwrap_or_default();
    let tasks = fs::read_dir("/proc/self/task").unwrap();
    tasks.map(|task| name(task.unwrap())).filter(|name| name.starts_with("kvo")).count()
}

fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

/// A thread that was joined may be seen for a moment, and a ring is taken apart when the kernel finds the time.
#[track_caller]
fn check_nothing_is_left(descriptors_before: usize, what: &str) {
    let start = Instant::now();
    while (threads(), descriptors()) != (0, descriptors_before) {
        let found = (threads(), descriptors());
        assert!(
            start.elapsed() < LONG,
            "{what}: threads, descriptors: {found:?}, before {descriptors_before}"
        );
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn whatever_ends_while_it_is_made_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let before = descriptors();
    // A store is made, and all is dropped at once.
    drop(build("example", dir.path()).unwrap());
    check_nothing_is_left(before, "dropped when made");
    // The store is another's: its memory had been taken by then.
    let error = build("another", dir.path()).unwrap_err();
    assert!(matches!(error, BuildError::Nvme(_)), "{error}");
    check_nothing_is_left(before, "refused");
    // It is in use; that says nothing of the one that uses it.
    let first = build("example", dir.path()).unwrap();
    assert!(threads() > 0, "a store has threads, or this test sees none");
    let error = build("example", dir.path()).unwrap_err();
    assert!(error.to_string().contains("in use"), "{error}");
    // A device with threads, which no worker comes to have.
    let (device, _) = first.open_device().unwrap();
    let error = first.worker(device, &[]).unwrap_err();
    assert!(matches!(error, WorkerError::NumberOfCaches { .. }), "{error}");
    let (device, _) = first.open_device().unwrap();
    let AnyDevice::Host(host) = &device else { panic!("the configuration says host") };
    let small = host.alloc(1).unwrap();
    let error = first.worker(device, &[small]).unwrap_err();
    assert!(matches!(error, WorkerError::CacheTooSmall { .. }), "{error}");
    drop(first);
    check_nothing_is_left(before, "a worker that could not be made");
    drop(build("example", dir.path()).unwrap());
    check_nothing_is_left(before, "opened again");
    // Of two directories the second is not there, or is no directory.
    let empty = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    for second in [&empty.path().join("missing"), &file] {
        let error = build_over("example", &[empty.path(), second]).unwrap_err();
        assert!(matches!(error, BuildError::Nvme(_)), "{error}");
        assert_eq!(fs::read_dir(empty.path()).unwrap().count(), 0, "{error}");
        check_nothing_is_left(before, "a directory that cannot be had");
    }
}
