//! What the machine forbids, and what the options limit.

use std::thread;

use kvo_core::StableMemory;
use rustix::{
    process::{Resource, Rlimit, getrlimit, setrlimit},
    thread::{CapabilitySet, capabilities, set_capabilities},
};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};

use super::*;

const URING: Kind = Kind { engine: EngineKind::Uring, direct: false };
const AUTO: Kind = Kind { engine: EngineKind::Auto, direct: true };

/// Writes and reads a chunk.
fn use_it(rig: &mut Rig) {
    let bytes = content(3, CHUNK_BYTES);
    rig.fill(0, &bytes);
    let sum = rig.write(0, 1, tenant(1));
    rig.run(2, 1, tenant(1), Action::Read { checksum: sum }).unwrap();
    assert_eq!(rig.bytes(2), bytes);
    rig.stop();
}

/// Makes the system refuse all calls of `io_uring` to this thread and to those that it starts, with an error of our
/// choice.
fn refuse_uring(errno: i32) -> Result<(), Box<dyn std::error::Error>> {
    let calls = [libc::SYS_io_uring_setup, libc::SYS_io_uring_enter, libc::SYS_io_uring_register];
    let filter: BpfProgram = SeccompFilter::new(
        calls.into_iter().map(|call| (call, Vec::new())).collect(),
        SeccompAction::Allow,
        SeccompAction::Errno(errno.unsigned_abs()),
        std::env::consts::ARCH.try_into()?,
    )?
    .try_into()?;
    Ok(seccompiler::apply_filter(&filter)?)
}

/// B47: a container that forbids it, a kernel that lacks it or some of it, one that has no memory for it.
#[test]
fn where_io_uring_is_forbidden_threads_do_the_work() {
    for errno in [libc::EPERM, libc::ENOSYS, libc::EINVAL, libc::EOPNOTSUPP, libc::ENOMEM] {
        check_forbidden(errno);
    }
}

#[track_caller]
fn check_forbidden(errno: i32) {
    let forbidden = thread::spawn(move || {
        if let Err(error) = refuse_uring(errno) {
            eprintln!("SKIPPED, no seccomp: {error}");
            return;
        }
        let error = Rig::try_new(URING, 1, 4, |_| {}).err().expect("it is forbidden");
        let OpenError::Uring { step, source } = error else { panic!("{error:?}") };
        assert_eq!((step, source.raw_os_error()), ("set up a ring", Some(errno)));

        if !works(AUTO) {
            return;
        }
        let mut rig = Rig::new(AUTO, 2, 4);
        assert_eq!(rig.info.kind, EngineKind::Threads);
        let why = rig.info.fallback.clone().expect("it fell back");
        assert!(why.contains("set up a ring") && why.contains(&format!("os error {errno}")), "{why}");
        use_it(&mut rig);
    });
    forbidden.join().unwrap();
}

/// B47: memory that may not be locked costs speed, and no byte.
#[test]
fn memory_that_may_not_be_locked_is_used_unregistered() {
    if !has_uring() {
        return;
    }
    let limit = getrlimit(Resource::Memlock).current;
    let Some(limit) = limit.filter(|&limit| limit < 64 << 20) else {
        eprintln!("SKIPPED: this machine lets anybody lock {limit:?} bytes");
        return;
    };
    let num_slots = u32::try_from(limit / CHUNK_BYTES as u64).unwrap() + 16;
    let unprivileged = thread::spawn(move || {
        // Capabilities are a thread's own, and those that it starts inherit them.
        let mut sets = capabilities(None).unwrap();
        sets.effective.remove(CapabilitySet::IPC_LOCK);
        sets.permitted.remove(CapabilitySet::IPC_LOCK);
        set_capabilities(None, sets).unwrap();
        let mut rig = Rig::sized(URING, 1, 4, num_slots, |_| {}).unwrap();
        assert!(!rig.info.registered_buffers);
        use_it(&mut rig);
    });
    unprivileged.join().unwrap();
    if capabilities(None).unwrap().effective.contains(CapabilitySet::IPC_LOCK) {
        let mut rig = Rig::sized(URING, 1, 4, num_slots, |_| {}).unwrap();
        assert!(rig.info.registered_buffers);
        use_it(&mut rig);
    }
}

/// Host memory that may move for all it says.
struct Movable(Arc<HostRegion>);

impl HostMemory for Movable {
    fn num_slots(&self) -> u32 {
        self.0.num_slots()
    }

    fn slot_bytes(&self) -> usize {
        self.0.slot_bytes()
    }

    fn with_read(&self, slot: SlotId, read: &mut dyn FnMut(&[u8])) -> Result<(), SlotAccessError> {
        self.0.with_read(slot, read)
    }

    fn with_write(&self, slot: SlotId, write: &mut dyn FnMut(&mut [u8])) -> Result<(), SlotAccessError> {
        self.0.with_write(slot, write)
    }

    fn into_stable(self: Arc<Self>) -> Option<Arc<dyn StableMemory>> {
        None
    }
}

/// B47: without direct I/O the same bytes go through the page cache.
#[test]
fn without_direct_io_threads_do_the_work_unless_the_ring_was_asked_for() {
    let mut rig = Rig::new(Kind { direct: false, ..AUTO }, 2, 4);
    assert_eq!((rig.info.kind, rig.info.direct_io), (EngineKind::Threads, false));
    assert_eq!(rig.info.fallback.as_deref(), Some("there is no direct I/O"));
    use_it(&mut rig);
    if has_uring() {
        let mut rig = Rig::new(URING, 2, 4);
        assert_eq!((rig.info.kind, &rig.info.fallback), (EngineKind::Uring, &None));
        use_it(&mut rig);
    }
    if has_uring() && works(AUTO) {
        let mut rig = Rig::new(AUTO, 2, 4);
        assert_eq!((rig.info.kind, &rig.info.fallback), (EngineKind::Uring, &None));
        use_it(&mut rig);
    }
}

#[test]
fn memory_that_may_move_is_for_threads() {
    if !works(AUTO) {
        return;
    }
    let mut rig = Rig::over(AUTO, 1, 4, |memory| Arc::new(Movable(memory))).unwrap();
    assert_eq!(rig.info.kind, EngineKind::Threads);
    assert!(rig.info.fallback.as_ref().unwrap().contains("may move"), "{:?}", rig.info);
    use_it(&mut rig);
    let error = Rig::over(URING, 1, 4, |memory| Arc::new(Movable(memory))).err().unwrap();
    assert!(matches!(error, OpenError::Uring { .. }), "{error:?}");
}

#[test]
fn writes_stay_few_while_reads_wait() {
    if !has_uring() {
        return;
    }
    let change = |options: &mut NvmeOptions| {
        options.reads_inflight_max = 1;
        options.write_bytes_while_reading_max = 2 * CHUNK_BYTES as u64;
    };
    for _ in 0..20 {
        let mut rig = Rig::try_new(Kind { direct: true, ..URING }, 1, 256, change)
            .unwrap_or_else(|_| Rig::try_new(URING, 1, 256, change).unwrap());
        let sums: Vec<u64> = (0..256).map(|n| rig.write(n, n, tenant(1))).collect();
        for n in 16..256 {
            rig.submit(256 + n, n, tenant(1), Action::Read { checksum: sums[n as usize] });
        }
        for n in 0..16 {
            rig.submit(n, n, tenant(1), Action::Write);
        }
        let done = rig.all_done(256);
        rig.stop();
        let last_write = done.iter().rposition(|done| matches!(done.op.action, Action::Write)).unwrap();
        let stats = rig.engine.stats();
        if last_write < done.len() - 1 {
            assert!(stats.write_bytes_inflight_max <= 2 * CHUNK_BYTES as u64, "{stats:?}");
            return;
        }
        eprintln!("the reads were too fast: again");
    }
    panic!("the writes never ended before the reads");
}

/// B32: a count below what was asked for is no success.
#[test]
fn a_write_that_the_system_cuts_short_goes_on_and_fails_where_it_must() {
    // The shell makes the process deaf to the signal that the system sends besides.
    let deaf = ["sh", "-c", "trap '' XFSZ; exec \"$0\" \"$@\""];
    if !is_alone(module_path!(), "a_write_that_the_system_cuts_short_goes_on_and_fails_where_it_must", &deaf)
    {
        return;
    }
    let unlimited = getrlimit(Resource::Fsize);
    over_each(|kind| {
        let mut rig = Rig::new(kind, 1, 4);
        let cut = rig.geometry.place(1).offset + CHUNK_BYTES as u64 / 2;
        setrlimit(Resource::Fsize, Rlimit { current: Some(cut), ..unlimited }).unwrap();
        let fault = rig.run(0, 1, tenant(1), Action::Write).unwrap_err();
        let Fault::Io(error) = &fault else { panic!("{fault:?}") };
        assert_eq!(error.kind(), std::io::ErrorKind::FileTooLarge);
        rig.write(0, 0, tenant(1));
        setrlimit(Resource::Fsize, unlimited).unwrap();
        rig.write(0, 1, tenant(1));
        rig.stop();
        if kind.engine == EngineKind::Uring {
            assert_eq!(rig.engine.stats().short_transfers, 1);
        }
    });
}
