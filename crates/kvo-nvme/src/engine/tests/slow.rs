//! A device that hangs takes nothing from the others, and little from the host memory.

use std::{
    io::{Read, Write},
    thread::{self, JoinHandle},
};

use rustix::fs::{CWD, FileType, Mode, mknodat};

use super::*;

const WINDOW: u32 = 4;
/// Those that the kernel may take, and those that are prepared ahead of it.
const CLAIMS_MAX: u32 = WINDOW + WINDOW + 2;

/// A device that is a pipe: what nobody takes out of it hangs.
struct Pipe {
    out: File,
}

impl Pipe {
    fn device(path: &Path) -> (Arc<File>, Self) {
        mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        let mut both = OpenOptions::new().read(true).write(true).open(path).unwrap();
        // The probe reads a page, writes it, and reads it again.
        both.write_all(&[0; 4096]).unwrap();
        let out = File::open(path).unwrap();
        (Arc::new(both), Self { out })
    }

    /// Takes out whatever comes, until the device is gone.
    fn let_go(mut self) -> JoinHandle<()> {
        thread::spawn(move || {
            let mut bytes = vec![0; CHUNK_BYTES];
            while self.out.read(&mut bytes).is_ok_and(|count| count > 0) {}
        })
    }
}

/// Two devices, of which the first hangs when a few chunks were written to it; or `None`, which is said.
fn half_hung(capacity: u32, checksum: ChecksumKind) -> Option<(Rig, Pipe)> {
    if !has_uring() {
        return None;
    }
    let options = NvmeOptions {
        engine: EngineKind::Uring,
        checksum,
        write_bytes_max: u64::from(WINDOW) * CHUNK_BYTES as u64,
        ..options(capacity)
    };
    let dir = tempfile::tempdir().unwrap();
    let geometry = Geometry::new(capacity, 2, options.chunk_bytes).unwrap();
    let (hung, pipe) = Pipe::device(&dir.path().join("0"));
    let files = vec![hung, make_file(dir.path(), 1, &geometry, false).unwrap()];
    let rig = Rig::on_files(&options, files, capacity * 2, |memory| memory, dir).unwrap();
    Some((rig, pipe))
}

/// Host slots of the first `count` that something has claimed.
fn num_claimed(rig: &Rig, count: u32) -> usize {
    let is_claimed = |&host: &u32| rig.memory.with_write(SlotId(host), &mut |_| ()).is_err();
    (0..count).filter(is_claimed).count()
}

#[track_caller]
fn check_one_hangs(checksum: ChecksumKind) {
    let Some((mut rig, pipe)) = half_hung(200, checksum) else { return };
    // All of the hung device's come first.
    (0..200).step_by(2).for_each(|n| _ = rig.submit(n, n, tenant(1), Action::Write));
    (1..200).step_by(2).for_each(|n| _ = rig.submit(n, n, tenant(1), Action::Write));
    // Each chunk of the other device is read once it was written.
    let (mut reads, mut through) = (0, 0);
    while reads < 100 {
        let OpDone { op, result } = rig.next_done();
        let sum = result.unwrap();
        match (rig.geometry.place(op.slot).device, op.action) {
            (0, _) => through += 1,
            (_, Action::Read { .. }) => reads += 1,
            (_, Action::Write) => {
                rig.submit(200 + op.host.0, op.slot, tenant(1), Action::Read { checksum: sum });
            }
        }
    }
    assert!(through < 100 - CLAIMS_MAX, "it hangs: {through} chunks went through");
    let claimed = num_claimed(&rig, 200);
    assert!((1..=CLAIMS_MAX as usize).contains(&claimed), "{claimed} claims of {}", 100 - through);
    assert!(rig.engine.stats().write_chunks_ahead_max <= u64::from(WINDOW) + 2, "{:?}", rig.engine.stats());

    let stopped = rig.engine.stop(Duration::from_millis(50)).unwrap_err();
    assert_eq!(stopped, Stuck(100 - through as usize), "all that was not reported");
    let reader = pipe.let_go();
    assert!(rig.all_done(stopped.0).iter().all(|done| done.result.is_ok()));
    rig.stop();
    assert_eq!(num_claimed(&rig, 400), 0);
    drop(rig);
    reader.join().unwrap();
}

#[test]
fn a_device_that_hangs_holds_few_claims_and_no_other_device() {
    check_one_hangs(ChecksumKind::Xxh3);
}

#[cfg(feature = "testing")]
#[test]
fn the_same_holds_without_checksums() {
    check_one_hangs(ChecksumKind::Off);
}
