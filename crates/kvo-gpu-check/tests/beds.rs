//! Both beds do what a bed says, before anything is tried on them.

use kvo_core::{ComputePoint, CopyOp, Direction, HostMemory, SlotId, Transfer, TransferClass};
use kvo_fakecuda::FakeDriver;
use kvo_gpu_check::{BedMaker, BedOptions, CudaBeds, HostBeds, TestBed, pattern};

#[track_caller]
fn check(maker: &dyn BedMaker) {
    let mut bed = maker.make(&BedOptions::default());
    a_pattern_is_what_checks_look_for(&mut *bed);
    a_held_stream_stays(&mut *bed);
    a_store_comes_to_the_byte(&mut *bed);
    assert_eq!(bed.complaints(), <Vec<String>>::new());
}

#[track_caller]
fn a_pattern_is_what_checks_look_for(bed: &mut dyn TestBed) {
    let (span, stream) = (bed.allocate(10_000), bed.create_stream());
    let mut found = vec![0; 10_000];
    bed.read(span.address(), &mut found);
    assert!(found.iter().all(|byte| *byte == 0xa5), "fresh memory is poisoned");
    // At any alignment, and no byte more.
    for (offset, bytes) in [(0, 10_000_u64), (3, 4001), (8, 8), (17, 5), (9000, 1)] {
        let address = span.address() + offset;
        bed.write(span.address(), &vec![0; 10_000]);
        bed.fill(stream, address, bytes, offset);
        assert_eq!(bed.synchronize(stream), 0);
        bed.read(span.address(), &mut found);
        let (at, length) = (usize::try_from(offset).unwrap(), usize::try_from(bytes).unwrap());
        assert_eq!(found[at..at + length], pattern(offset, length));
        assert!(found[..at].iter().chain(&found[at + length..]).all(|byte| *byte == 0));
        bed.check(stream, address, bytes, offset);
        assert_eq!(bed.synchronize(stream), 0);
    }
    bed.fill(stream, span.address(), 10_000, 1);
    bed.synchronize(stream);
    bed.write(
        span.address() + 77,
        &[!kvo_gpu_check::byte(1, 77), kvo_gpu_check::byte(1, 78), !kvo_gpu_check::byte(1, 79)],
    );
    bed.check(stream, span.address() + 77, 3, 1);
    assert!((1..=3).contains(&bed.synchronize(stream)));
    let wrong = bed.synchronize(stream);
    bed.check(stream, span.address(), 10_000, 1);
    assert_eq!(bed.synchronize(stream), wrong + 2);
}

#[track_caller]
fn a_held_stream_stays(bed: &mut dyn TestBed) {
    let (span, stream) = (bed.allocate(64), bed.create_stream());
    let hold = bed.hold(stream);
    bed.fill(stream, span.address(), 64, 5);
    let mut found = [0; 64];
    bed.read(span.address(), &mut found);
    assert_eq!(found, [0xa5; 64]);
    hold.open();
    bed.synchronize(stream);
    bed.read(span.address(), &mut found);
    assert_eq!(found.to_vec(), pattern(5, 64));
}

#[track_caller]
fn a_store_comes_to_the_byte(bed: &mut dyn TestBed) {
    let (span, stream) = (bed.allocate(4096), bed.create_stream());
    let region = bed.device().attach(span).unwrap();
    bed.fill(stream, span.address(), 4096, 9);
    let after = bed.device().record_fence(ComputePoint::Stream(stream)).unwrap();
    let op = CopyOp { region, device_offset: 0, slot: SlotId(3), slot_offset: 0, bytes: 4096 };
    bed.device().submit(Transfer::new(TransferClass::Store, vec![op], after)).unwrap();
    let mut done = Vec::new();
    bed.device().wait(std::time::Duration::from_mins(1), &mut done);
    assert_eq!(done[0].result, Ok(4096));
    bed.host().with_read(SlotId(3), &mut |bytes| assert_eq!(bytes[..4096], pattern(9, 4096))).unwrap();
}

#[test]
fn a_device_in_host_memory_has_a_bed() {
    check(&HostBeds);
}

#[test]
fn an_engine_copies_to_and_from_slots_that_are_lent_to_it() {
    let _fake = FakeDriver::load().expect("cargo builds the library for this test").exclusive();
    let beds = CudaBeds::new("the fake driver", 0, true);
    let mut bed = beds.make_cuda(&BedOptions { is_poisoned: false, ..BedOptions::default() });
    let (span, host) = (bed.allocate(8192), bed.host());
    bed.write(span.address(), &pattern(4, 8192));
    let engine = bed.engine();
    let stream = engine.create_stream().unwrap();
    let lent = engine.lend(host.clone(), SlotId(2)).unwrap();
    assert!(engine.lend(host.clone(), SlotId(2)).is_err(), "it is lent already");
    assert!(host.with_read(SlotId(2), &mut |_| ()).is_err());
    engine.copy(stream, Direction::Store, span.address(), (lent, 64), 4096).unwrap();
    engine.copy(stream, Direction::Load, span.address() + 4096, (lent, 64), 4096).unwrap();
    assert!(engine.copy(stream, Direction::Load, span.address(), (lent, (64 << 10) - 8), 16).is_err());
    assert!(engine.copy(stream, Direction::Load, span.address() + 8190, (lent, 0), 16).is_err());
    engine.give_back().unwrap();
    host.with_read(SlotId(2), &mut |slot| {
        assert_eq!(slot[64..64 + 4096], pattern(4, 4096));
        assert!(slot[..64].iter().all(|byte| *byte == 0), "not poisoned, as it was asked");
    })
    .unwrap();
    let mut found = vec![0; 4096];
    bed.read(span.address() + 4096, &mut found);
    assert_eq!(found, pattern(4, 4096));
}

#[test]
fn a_gpu_has_a_bed() {
    let fake = FakeDriver::load().expect("cargo builds the library for this test").exclusive();
    let watch = *fake;
    let watch = move || watch.violations().iter().map(|violation| format!("{violation:?}")).collect();
    check(&CudaBeds::new("the fake driver", 0, true).watched(watch));
}
