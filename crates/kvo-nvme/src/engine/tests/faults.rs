//! A fault costs the chunk that it happened to.

use std::io::ErrorKind;

use rustix::fs::{SealFlags, fcntl_add_seals};

use super::{
    unruly::{Call, Unruly},
    *,
};
use crate::tests::Trap;

#[test]
fn other_bytes_than_were_written_are_noticed() {
    over_each(|kind| {
        let mut rig = Rig::new(kind, 1, 4);
        let sum = rig.write(0, 1, tenant(1));
        let fault = rig.run(2, 1, tenant(1), Action::Read { checksum: sum ^ 1 }).unwrap_err();
        let Fault::Checksum { written, found } = fault else { panic!("{fault}") };
        assert_eq!((written, found), (sum ^ 1, sum));
        let fault = rig.run(2, 1, tenant(2), Action::Read { checksum: sum }).unwrap_err();
        assert!(matches!(fault, Fault::Checksum { .. }), "another tenant: {fault}");
        rig.run(2, 1, tenant(1), Action::Read { checksum: sum }).unwrap();
        rig.stop();
    });
}

/// B32: a read that ends with nothing is a failure, wherever it ends.
#[test]
fn the_end_of_a_file_that_was_cut_is_an_error() {
    over_each(|kind| {
        let mut rig = Rig::new(kind, 1, 4);
        let sum = rig.write(0, 3, tenant(1));
        let offset = rig.geometry.place(3).offset;
        for bytes in [offset + CHUNK_BYTES as u64 - 1, offset + 4096, offset + 100, offset, 0] {
            rig.files[0].set_len(bytes).unwrap();
            let fault = rig.run(1, 3, tenant(1), Action::Read { checksum: sum }).unwrap_err();
            let Fault::Io(error) = fault else { panic!("{fault}") };
            assert_eq!(error.kind(), ErrorKind::UnexpectedEof, "{bytes} bytes");
        }
        rig.stop();
    });
}

#[test]
fn a_file_that_may_not_be_written_is_noticed_when_it_is_probed() {
    if has_uring() {
        let error = Rig::read_only(EngineKind::Uring).err().expect("it may not be written");
        assert!(matches!(error, OpenError::Uring { step: "write a page", .. }), "{error:?}");
    }
    for engine in [EngineKind::Auto, EngineKind::Threads] {
        let mut rig = Rig::read_only(engine).unwrap();
        let fault = rig.run(0, 1, tenant(1), Action::Write).unwrap_err();
        assert!(matches!(fault, Fault::Io(_)), "{fault}");
        rig.stop();
    }
}

#[test]
fn a_file_that_becomes_unwritable_fails_writes_and_no_reads() {
    for engine in [EngineKind::Threads, EngineKind::Uring] {
        let Ok(mut rig) = Rig::on_memory_file(engine) else {
            assert!(!has_uring());
            continue;
        };
        let sum = rig.write(0, 1, tenant(1));
        fcntl_add_seals(&*rig.files[0], SealFlags::WRITE).unwrap();
        let fault = rig.run(0, 2, tenant(1), Action::Write).unwrap_err();
        let Fault::Io(error) = &fault else { panic!("{fault}") };
        assert_eq!(error.kind(), ErrorKind::PermissionDenied);
        rig.run(3, 1, tenant(1), Action::Read { checksum: sum }).unwrap();
        rig.stop();
    }
}

#[test]
fn a_slot_that_another_uses_fails_and_is_left_alone() {
    over_each(|kind| {
        let mut rig = Rig::new(kind, 1, 4);
        let sum = rig.write(0, 1, tenant(1));
        let memory = Arc::clone(&rig.memory);
        let busy = |slot| SlotAccessError::Busy { slot: SlotId(slot) };
        memory
            .with_write(SlotId(2), &mut |bytes| {
                bytes.fill(9);
                for action in [Action::Write, Action::Read { checksum: sum }] {
                    let fault = rig.run(2, 1, tenant(1), action).unwrap_err();
                    assert!(matches!(&fault, Fault::Memory(error) if *error == busy(2)), "{fault}");
                }
                assert!(bytes.iter().all(|&byte| byte == 9));
            })
            .unwrap();
        memory
            .with_read(SlotId(3), &mut |_| {
                let fault = rig.run(3, 1, tenant(1), Action::Read { checksum: sum }).unwrap_err();
                assert!(matches!(&fault, Fault::Memory(error) if *error == busy(3)), "{fault}");
                rig.write(3, 2, tenant(1));
            })
            .unwrap();
        let fault = rig.run(99, 1, tenant(1), Action::Write).unwrap_err();
        assert!(matches!(fault, Fault::Memory(SlotAccessError::OutOfRange { .. })), "{fault}");
        rig.run(2, 1, tenant(1), Action::Read { checksum: sum }).unwrap();
        rig.stop();
    });
}

#[test]
fn a_panic_of_the_memory_fails_its_chunk_and_the_thread_goes_on() {
    let kind = Kind { engine: EngineKind::Threads, direct: false };
    let mut rig = Rig::over(kind, 1, 4, |memory| Arc::new(Trap(memory))).unwrap();
    for _ in 0..10 {
        let sum = rig.write(1, 1, tenant(1));
        for action in [Action::Write, Action::Read { checksum: sum }] {
            let fault = rig.run(3, 2, tenant(1), action).unwrap_err();
            assert!(matches!(fault, Fault::Engine(_)), "{fault}");
        }
    }
    rig.stop();
}

#[test]
fn a_panic_of_the_memory_on_a_checksum_thread_fails_its_chunk_and_the_thread_goes_on() {
    let rings = KINDS.into_iter().filter(|kind| kind.engine == EngineKind::Uring);
    for kind in rings.filter(|&kind| works(kind)) {
        let mut memory = None;
        let wrap = |region| -> Arc<dyn HostMemory> { memory.insert(Unruly::new(region)).clone() };
        let mut rig = Rig::over(kind, 1, 4, wrap).unwrap();
        let memory = memory.unwrap();
        for _ in 0..3 {
            let sum = rig.write(1, 1, tenant(1));
            let read = Action::Read { checksum: sum };
            for (calls, slot, action) in [
                (&[Call::Bytes][..], 2, Action::Write),
                (&[Call::Bytes], 1, read),
                (&[Call::Release], 1, read),
                (&[Call::Bytes, Call::Release], 1, read),
            ] {
                memory.panic_at(calls);
                let fault = rig.run(3, slot, tenant(1), action).unwrap_err();
                assert!(matches!(fault, Fault::Engine(_)), "{calls:?}: {fault}");
                assert_eq!(memory.panics_left(), []);
                rig.run(3, slot, tenant(1), action).unwrap();
            }
        }
        rig.stop();
    }
}

#[test]
fn writes_that_cannot_be_claimed_leave_room_for_others() {
    over_each(|kind| {
        // Many more of them than are prepared ahead.
        let change = |options: &mut NvmeOptions| options.write_bytes_max = 1;
        let mut rig = Rig::try_new(kind, 1, 64, change).unwrap();
        for n in 0..64 {
            rig.submit(if n % 4 == 0 { n } else { 1000 + n }, n, tenant(1), Action::Write);
        }
        for done in rig.all_done(64) {
            match (done.op.host.0, done.result) {
                (0..64, Ok(_)) | (1000.., Err(Fault::Memory(SlotAccessError::OutOfRange { .. }))) => {}
                other => panic!("{other:?}"),
            }
        }
        if kind.engine == EngineKind::Uring {
            assert!((1..=3).contains(&rig.engine.stats().write_chunks_ahead_max), "{:?}", rig.engine.stats());
        }
        rig.stop();
    });
}
