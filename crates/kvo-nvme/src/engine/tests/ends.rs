//! Engines end, whatever they have in hand, and leave nothing behind.

use std::{thread, time::Instant};

use rustix::{
    fs::{FlockOperation, flock},
    time::{ClockId, clock_gettime},
};

use super::{unruly::Unruly, *};

/// B34: more than the kernel may have at once; each is reported once.
#[test]
fn a_stop_ends_what_was_taken_and_takes_no_more() {
    over_each(|kind| {
        // Most of them wait with their device when intake ends.
        let mut rig = Rig::try_new(kind, 2, 100, |options| options.write_bytes_max = 1).unwrap();
        for n in 0..100 {
            rig.fill(n, &content(u64::from(n), CHUNK_BYTES));
            rig.submit(n, n, tenant(u64::from(n)), Action::Write);
        }
        rig.stop();
        let done = rig.all_done(100);
        assert!(done.iter().all(|done| done.result.is_ok()), "{done:?}");
        let op = done[0].op;
        assert!(rig.engine.submit(op).is_err(), "it was stopped");
        rig.stop();
    });
}

/// B34: what is put there after a stop stays.
#[test]
fn nothing_touches_the_memory_after_a_stop() {
    over_each(|kind| {
        let mut rig = Rig::new(kind, 1, 64);
        let sums: Vec<u64> = (0..64).map(|n| rig.write(n, n, tenant(u64::from(n)))).collect();
        for (n, &checksum) in (0..).zip(&sums) {
            rig.submit(64 + n, n, tenant(u64::from(n)), Action::Read { checksum });
        }
        rig.stop();
        assert_eq!(Arc::strong_count(&rig.memory), 1, "a thread has it still");
        for host in 0..128 {
            rig.fill(host, &vec![0xaa; CHUNK_BYTES]);
        }
        // By the time that another engine has read the same, the kernel is through with all it had of this one.
        let options = NvmeOptions { engine: kind.engine, ..options(64) };
        let dir = tempfile::tempdir().unwrap();
        let mut other = Rig::on_files(&options, rig.files.clone(), 64, |memory| memory, dir).unwrap();
        for (n, &checksum) in (0..).zip(&sums) {
            other.run(n, n, tenant(u64::from(n)), Action::Read { checksum }).unwrap();
        }
        other.stop();
        for host in 0..128 {
            assert!(
                rig.bytes(host).iter().all(|&byte| byte == 0xaa),
                "slot {host} was written after the stop"
            );
        }
        assert!(rig.all_done(64).iter().all(|done| done.result.is_ok()));
    });
}

/// B34 and B65: the memory stays as long as anything runs, though its owner is gone.
#[test]
fn a_stop_that_cannot_wait_leaves_the_rest_to_end_by_itself() {
    over_each(|kind| {
        let mut gated = None;
        let wrap = |region| -> Arc<dyn HostMemory> { gated.insert(Unruly::new(region)).clone() };
        let mut rig = Rig::over(kind, 1, 200, wrap).unwrap();
        let gated = gated.unwrap();
        let gate = gated.gate.write().unwrap();
        for n in 0..200 {
            rig.submit(n, n, tenant(1), Action::Write);
        }
        let stopped = rig.engine.stop(Duration::ZERO);
        assert!(matches!(stopped, Err(Stuck(_))), "{stopped:?}");
        let Rig { engine, events, memory, .. } = rig;
        drop(engine);
        assert!(events.is_empty(), "nothing has ended yet");
        drop(gate);
        drop(gated);
        for _ in 0..200 {
            let Event::Moved(done) = events.recv_timeout(LONG).unwrap() else { panic!("no record was put") };
            done.result.unwrap();
        }
        let start = Instant::now();
        while Arc::strong_count(&memory) > 1 {
            assert!(start.elapsed() < LONG, "the threads end and let the memory go");
            thread::sleep(Duration::from_millis(1));
        }
    });
}

/// B64 and B65: a thread that dies says so with every chunk that it had, and with every one that comes.
#[test]
fn a_thread_that_panics_fails_what_it_has_and_no_other_device() {
    for checksum_threads in [1, 2] {
        let kind = Kind { engine: EngineKind::Uring, direct: false };
        let Ok(mut rig) = Rig::try_new(kind, 2, 64, |options| options.checksum_threads = checksum_threads)
        else {
            assert!(!has_uring());
            return;
        };
        rig.engine.break_device(0);
        for n in 0..64 {
            rig.submit(n, n, tenant(1), Action::Write);
        }
        for done in rig.all_done(64) {
            match (rig.geometry.place(done.op.slot).device, done.result) {
                (0, Err(Fault::Ended(_))) | (1, Ok(_)) => {}
                other => panic!("{other:?}"),
            }
        }
        rig.submit(0, 1, tenant(1), Action::Read { checksum: 0 });
        assert!(matches!(rig.next_done().result, Err(Fault::Checksum { .. })));
        rig.submit(0, 0, tenant(1), Action::Read { checksum: 0 });
        assert!(matches!(rig.next_done().result, Err(Fault::Ended(_))));
        rig.stop();
        assert!((0..128).all(|host| rig.memory.with_write(SlotId(host), &mut |_| ()).is_ok()));
    }
}

/// Descriptors and threads of this process.
fn descriptors_and_threads() -> [usize; 2] {
    ["/proc/self/fd", "/proc/self/task"].map(|dir| std::fs::read_dir(dir).unwrap().count())
}

#[test]
fn a_thousand_engines_leave_no_descriptor_and_no_thread() {
    if !is_alone(module_path!(), "a_thousand_engines_leave_no_descriptor_and_no_thread", &[]) {
        return;
    }
    let kinds: Vec<Kind> = KINDS.into_iter().filter(|&kind| works(kind)).collect();
    let mut before = None;
    for round in 0..=1000 / kinds.len() {
        for &kind in &kinds {
            let mut rig = Rig::new(kind, 1, 4);
            rig.submit(0, 0, tenant(1), Action::Write);
            rig.stop();
            rig.next_done().result.unwrap();
        }
        let now = descriptors_and_threads();
        assert_eq!(*before.get_or_insert(now), now, "after {round} rounds");
    }
}

#[test]
fn an_idle_engine_uses_no_processor_time() {
    if !is_alone(module_path!(), "an_idle_engine_uses_no_processor_time", &[]) {
        return;
    }
    over_each(|kind| {
        let mut rig = Rig::new(kind, 2, 8);
        (0..8).for_each(|n| _ = rig.write(n, n, tenant(1)));
        // Idle, but for an op now and then: no part of it goes on turning.
        let (start, cpu_start) = (Instant::now(), clock_gettime(ClockId::ProcessCPUTime));
        // These pauses are what is measured.
        while start.elapsed() < Duration::from_millis(300) {
            thread::sleep(Duration::from_millis(100));
            rig.write(0, 0, tenant(1));
        }
        thread::sleep(Duration::from_millis(300));
        let used = Duration::try_from(clock_gettime(ClockId::ProcessCPUTime) - cpu_start).unwrap();
        // Half a percent of a core, and a millisecond for each of the ops.
        let most = start.elapsed() / 200 + Duration::from_millis(4);
        eprintln!("{used:?} of {:?}", start.elapsed());
        assert!(used < most, "{used:?} of {:?}", start.elapsed());
        rig.stop();
    });
}

#[test]
fn no_op_is_left_behind_by_a_thread_that_goes_to_sleep() {
    let mut random = Rng::for_test();
    let kind = Kind { engine: EngineKind::Uring, direct: false };
    let change = |options: &mut NvmeOptions| {
        options.chunk_bytes = 4096;
        options.checksum_threads = 3;
        options.reads_inflight_max = 2;
        // One with the kernel, and three ahead of it.
        options.write_bytes_max = 4096;
    };
    let Ok(mut rig) = Rig::try_new(kind, 1, 64, change) else {
        assert!(!has_uring());
        return;
    };
    let sum = rig.write(0, 0, tenant(1));
    for _ in 0..3000 {
        // Few at once, so that the thread parks again and again; a pause, so that it does so at any moment.
        let count = 1 + random.below(8);
        for n in 0..u32::try_from(count).unwrap() {
            let action = if random.below(2) == 0 { Action::Write } else { Action::Read { checksum: sum } };
            match action {
                Action::Write => rig.submit(n, 1 + n, tenant(2), action),
                Action::Read { .. } => rig.submit(64 + n, 0, tenant(1), action),
            };
            (0..random.below(2000)).for_each(|_| std::hint::spin_loop());
        }
        for _ in 0..count {
            rig.next_done().result.unwrap();
        }
    }
    rig.stop();
}

#[test]
fn the_lock_of_a_file_goes_with_its_engine() {
    // Another test that starts a process lends it every file for a moment.
    if !is_alone(module_path!(), "the_lock_of_a_file_goes_with_its_engine", &[]) {
        return;
    }
    over_each(|kind| {
        for _ in 0..20 {
            let mut rig = Rig::new(kind, 1, 4);
            flock(&*rig.files[0], FlockOperation::NonBlockingLockExclusive).unwrap();
            rig.write(0, 0, tenant(1));
            rig.stop();
            let Rig { dir, engine, files, .. } = rig;
            drop((engine, files));
            let again = File::open(dir.path().join("0")).unwrap();
            flock(&again, FlockOperation::NonBlockingLockExclusive).unwrap();
        }
    });
}
