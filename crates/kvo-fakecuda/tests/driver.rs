//! The fake driver under the real cudarc: memory, streams, events, copies.

mod support;

use std::time::Duration;

use cudarc::driver::{CudaContext, sys};
use kvo_fakecuda::{Compute, FakeDriver, Hold, RanKind, Step};

use self::support::{bound, fake, pattern, raw};

const KIB: usize = 1024;

#[test]
fn cudarc_gets_the_fake_and_goes_round_through_it() -> Result<(), Box<dyn std::error::Error>> {
    let fake = fake();
    {
        let context = CudaContext::new(0)?;
        assert_eq!(context.compute_capability()?, (9, 0));
        assert!(context.name()?.contains("model"));
        let stream = context.new_stream()?;
        let sent = pattern(1, 300 * KIB);
        let on_device = stream.clone_htod(&sent)?;
        let back = stream.clone_dtoh(&on_device)?;
        stream.synchronize()?;
        assert_eq!(back, sent);
    }
    assert!(sys_path().contains("kvo_fakecuda"), "{}", sys_path());
    assert_eq!(fake.leaks(), []);
    assert_eq!(fake.violations(), []);
    assert_eq!(fake.counts().retains, 0);
    Ok(())
}

/// Where the library of `cuInit` was loaded from.
fn sys_path() -> String {
    let init: usize = raw::symbol("cuInit").expect("it is there");
    let maps = std::fs::read_to_string("/proc/self/maps").expect("procfs");
    let holds = |line: &&str| {
        let (start, end) =
            line.split_once(' ').and_then(|(range, _)| range.split_once('-')).expect("a range");
        let number = |text| usize::from_str_radix(text, 16).expect("a number");
        (number(start)..number(end)).contains(&init)
    };
    maps.lines().find(holds).unwrap_or_default().to_owned()
}

#[test]
fn fresh_memory_is_no_zeros() {
    let cuda = bound();
    let address = cuda.alloc(100_001);
    assert_eq!(cuda.on_device(address, 100_001), vec![0xA5; 100_001]);
}

#[test]
fn a_held_stream_does_nothing_until_it_is_released() {
    let cuda = bound();
    let (stream, event) = (cuda.stream(), cuda.event());
    let (host, device) = (cuda.host(64 * KIB), cuda.alloc(64 * KIB));
    cuda.fake.hold(Hold::Stream(stream));
    raw::to_device(device, host, 64 * KIB, stream).expect("copy");
    raw::event_record(event, stream).expect("record");
    assert_eq!(raw::event_query(event), Err(600));
    assert_eq!(raw::stream_query(stream), Err(600));
    assert_eq!(cuda.on_device(device, 64 * KIB), vec![0xA5; 64 * KIB]);
    cuda.fake.release(Hold::Stream(stream));
    raw::event_synchronize(event).expect("synchronize");
    assert_eq!(raw::event_query(event), Ok(()));
    assert_eq!(cuda.on_device(device, 64 * KIB), vec![0; 64 * KIB]);
}

#[test]
fn a_step_is_one_operation() {
    let cuda = bound();
    let (stream, host, device) = (cuda.stream(), cuda.host(2 * KIB), cuda.alloc(2 * KIB));
    cuda.fake.hold(Hold::Stream(stream));
    raw::to_device(device, host, KIB, stream).expect("copy");
    raw::to_device(device + 1024, host + 1024, KIB, stream).expect("copy");
    assert_eq!(cuda.fake.step(stream), Step::Done);
    let seen = cuda.on_device(device, 2 * KIB);
    assert_eq!((seen[0], seen[1024]), (0, 0xA5));
    assert_eq!(cuda.fake.step(stream), Step::Done);
    assert_eq!(cuda.fake.step(stream), Step::Nothing);
    assert_eq!(cuda.on_device(device, 2 * KIB), vec![0; 2 * KIB]);
}

#[test]
fn a_step_into_a_wait_is_blocked() {
    let cuda = bound();
    let (first, second, event) = (cuda.stream(), cuda.stream(), cuda.event());
    cuda.fake.hold(Hold::Stream(first));
    cuda.fake.hold(Hold::Stream(second));
    cuda.fake.enqueue(first, Compute::Nothing, Duration::ZERO).expect("compute");
    raw::event_record(event, first).expect("record");
    raw::stream_wait(second, event).expect("wait");
    assert_eq!(cuda.fake.step(second), Step::Blocked);
    assert_eq!((cuda.fake.step(first), cuda.fake.step(first)), (Step::Done, Step::Done));
    raw::stream_synchronize(second).expect("synchronize");
}

#[test]
fn a_held_copy_holds_its_engine_and_not_the_other() {
    let cuda = bound();
    let (host, device) = (cuda.host(4 * KIB), cuda.alloc(4 * KIB));
    let (first, second, third) = (cuda.stream(), cuda.stream(), cuda.stream());
    cuda.fake.hold(Hold::Range { address: device, bytes: 1 });
    raw::to_device(device, host, KIB, first).expect("copy");
    while cuda.fake.step(first) != Step::Blocked {}
    // The engine takes copies as they come, whatever the stream.
    raw::to_device(device + 1024, host, KIB, second).expect("copy");
    raw::to_host(host + 2048, device + 2048, KIB, third).expect("copy");
    raw::stream_synchronize(third).expect("the other engine is free");
    assert_eq!(raw::stream_query(second), Err(600));
    cuda.fake.release(Hold::Range { address: device, bytes: 1 });
    raw::stream_synchronize(second).expect("synchronize");
    raw::stream_synchronize(first).expect("synchronize");
}

#[test]
fn an_engine_can_be_held() {
    let cuda = bound();
    let (host, device, stream) = (cuda.host(KIB), cuda.alloc(KIB), cuda.stream());
    cuda.fake.hold(Hold::ToHost(0));
    raw::to_device(device, host, KIB, stream).expect("copy");
    raw::stream_synchronize(stream).expect("that way is free");
    raw::to_host(host, device, KIB, stream).expect("copy");
    assert_eq!(cuda.fake.step(stream), Step::Blocked);
    cuda.fake.release(Hold::ToHost(0));
    raw::stream_synchronize(stream).expect("synchronize");
}

#[test]
fn an_event_tells_of_the_work_before_its_last_record_alone() {
    let cuda = bound();
    let (stream, other) = (cuda.stream(), cuda.stream());
    let event = cuda.event();
    assert_eq!(raw::event_query(event), Ok(()), "never recorded");
    raw::event_record(event, stream).expect("record");
    raw::event_synchronize(event).expect("synchronize");
    cuda.fake.hold(Hold::Stream(stream));
    cuda.fake.enqueue(stream, Compute::Nothing, Duration::ZERO).expect("compute");
    assert_eq!(raw::event_query(event), Ok(()), "work behind the record does not count");
    raw::event_record(event, stream).expect("record");
    assert_eq!(raw::event_query(event), Err(600));
    raw::event_record(event, other).expect("record");
    raw::event_synchronize(event).expect("the last record counts");
}

#[test]
fn a_wait_keeps_the_record_that_it_was_given() {
    let cuda = bound();
    let (compute, later, copies) = (cuda.stream(), cuda.stream(), cuda.stream());
    let event = cuda.event();
    cuda.fake.hold(Hold::Stream(later));
    raw::event_record(event, compute).expect("record");
    raw::stream_wait(copies, event).expect("wait");
    // Recorded once more behind work that does not go on: the wait is for the first record.
    cuda.fake.enqueue(later, Compute::Nothing, Duration::ZERO).expect("compute");
    raw::event_record(event, later).expect("record");
    raw::stream_synchronize(copies).expect("the first record is passed");
    assert_eq!(raw::event_query(event), Err(600));
    // And the other way round: a wait for held work does not end because the event is recorded elsewhere.
    raw::stream_wait(copies, event).expect("wait");
    raw::event_record(event, compute).expect("record");
    raw::event_synchronize(event).expect("synchronize");
    assert_eq!(raw::stream_query(copies), Err(600));
    cuda.fake.release(Hold::Stream(later));
    raw::stream_synchronize(copies).expect("synchronize");
}

#[test]
fn a_destroyed_event_still_holds_whoever_waits_for_it() {
    let cuda = bound();
    let (first, second, event) = (cuda.stream(), cuda.stream(), cuda.event());
    cuda.fake.hold(Hold::Stream(first));
    cuda.fake.enqueue(first, Compute::Nothing, Duration::ZERO).expect("compute");
    raw::event_record(event, first).expect("record");
    raw::stream_wait(second, event).expect("wait");
    raw::event_destroy(event).expect("destroy");
    assert_eq!(raw::stream_query(second), Err(600));
    assert_eq!(raw::event_query(event), Err(400));
    cuda.fake.release(Hold::All);
    raw::stream_synchronize(second).expect("synchronize");
}

#[test]
fn time_between_events_is_that_of_the_work() {
    let cuda = bound();
    let (stream, from, to) = (cuda.stream(), raw::event_create(0), raw::event_create(0));
    let (from, to) = (from.expect("event"), to.expect("event"));
    raw::event_record(from, stream).expect("record");
    cuda.fake.enqueue(stream, Compute::Nothing, Duration::from_millis(20)).expect("compute");
    raw::event_record(to, stream).expect("record");
    assert_eq!(raw::elapsed_ms(from, to), Err(600));
    raw::event_synchronize(to).expect("synchronize");
    let ms = raw::elapsed_ms(from, to).expect("both are passed");
    assert!((19.0..2000.0).contains(&ms), "{ms}");
    assert_eq!(raw::elapsed_ms(from, cuda.event()), Err(400), "an event without timing");
}

#[test]
fn a_load_that_does_not_wait_for_compute_is_seen() {
    let cuda = bound();
    let (compute, copies, event) = (cuda.stream(), cuda.stream(), cuda.event());
    let (host, device) = (cuda.host(KIB), cuda.alloc(KIB));
    let reads = Compute::Check { address: device, bytes: 1024, seed: 7 };
    for is_fenced in [true, false] {
        cuda.put_pattern(device, KIB, 7);
        cuda.fake.enqueue(compute, reads, Duration::from_millis(50)).expect("compute");
        if is_fenced {
            raw::event_record(event, compute).expect("record");
            raw::stream_wait(copies, event).expect("wait");
        }
        raw::to_device(device, host, KIB, copies).expect("copy");
        raw::synchronize().expect("synchronize");
        assert_eq!(cuda.fake.mismatches().is_empty(), is_fenced);
    }
}

#[test]
fn a_store_that_does_not_wait_for_compute_gets_half() {
    let cuda = bound();
    let (compute, copies) = (cuda.stream(), cuda.stream());
    let (host, device) = (cuda.host(KIB), cuda.alloc(KIB));
    let writes = Compute::Write { address: device, bytes: 1024, seed: 8 };
    cuda.fake.enqueue(compute, writes, Duration::from_millis(50)).expect("compute");
    raw::to_host(host, device, KIB, copies).expect("copy");
    raw::synchronize().expect("synchronize");
    assert_ne!(raw::see(host, KIB), pattern(8, KIB));
    raw::to_host(host, device, KIB, compute).expect("copy");
    raw::synchronize().expect("synchronize");
    assert_eq!(raw::see(host, KIB), pattern(8, KIB));
}

#[test]
fn the_null_stream_waits_for_blocking_streams_and_they_for_it() {
    let cuda = bound();
    let blocking = raw::stream_create(0, 0).expect("stream");
    let (host, device) = (cuda.host(KIB), cuda.alloc(KIB));
    cuda.fake.hold(Hold::Stream(blocking));
    cuda.fake.enqueue(blocking, Compute::Nothing, Duration::ZERO).expect("compute");
    raw::to_device(device, host, KIB, 0).expect("copy");
    let free = cuda.stream();
    raw::fill(device, 1, KIB, free).expect("fill");
    raw::stream_synchronize(free).expect("a stream that does not block goes on");
    assert_eq!(raw::stream_query(0), Err(600));
    cuda.fake.release(Hold::All);
    raw::stream_synchronize(0).expect("synchronize");
    assert_eq!(cuda.on_device(device, KIB), vec![0; KIB]);
}

#[test]
fn what_is_on_a_destroyed_stream_is_still_done() {
    let cuda = bound();
    let (host, device, stream) = (cuda.host(KIB), cuda.alloc(KIB), cuda.stream());
    cuda.fake.hold(Hold::Stream(stream));
    raw::to_device(device, host, KIB, stream).expect("copy");
    raw::stream_destroy(stream).expect("destroy");
    assert_eq!(raw::stream_query(stream), Err(400));
    cuda.fake.release(Hold::Stream(stream));
    raw::synchronize().expect("synchronize");
    assert_eq!(cuda.on_device(device, KIB), vec![0; KIB]);
}

#[test]
fn rows_go_where_their_pitch_says() {
    let cuda = bound();
    let (host, device, stream) = (cuda.host(8 * KIB), cuda.alloc(8 * KIB), cuda.stream());
    let (rows, width) = (5, 100);
    cuda.put_pattern(device, 8 * KIB, 3);
    let copy = sys::CUDA_MEMCPY2D {
        srcXInBytes: 16,
        srcY: 1,
        srcMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_DEVICE,
        srcHost: std::ptr::null(),
        srcDevice: device,
        srcArray: std::ptr::null_mut(),
        srcPitch: 512,
        dstXInBytes: 0,
        dstY: 0,
        dstMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_HOST,
        dstHost: host as *mut _,
        dstDevice: 0,
        dstArray: std::ptr::null_mut(),
        dstPitch: width,
        WidthInBytes: width,
        Height: rows,
    };
    raw::copy_2d(&copy, stream).expect("copy");
    raw::stream_synchronize(stream).expect("synchronize");
    let source = pattern(3, 8 * KIB);
    let expected: Vec<u8> =
        (0..rows).flat_map(|row| source[(row + 1) * 512 + 16..][..width].to_vec()).collect();
    assert_eq!(raw::see(host, rows * width), expected);
    assert_eq!(raw::see(host + (rows * width) as u64, 8), [0; 8], "nothing behind the last row");
    let overlapping = sys::CUDA_MEMCPY2D { srcPitch: 64, ..copy };
    assert_eq!(raw::copy_2d(&overlapping, stream), Err(1));
}

#[test]
fn the_journal_has_what_ran_in_its_order() {
    let cuda = bound();
    let (host, device, stream) = (cuda.host(KIB), cuda.alloc(KIB), cuda.stream());
    cuda.fake.keep_journal(true);
    raw::fill(device, 9, KIB, stream).expect("fill");
    raw::to_host(host, device, KIB, stream).expect("copy");
    raw::stream_synchronize(stream).expect("synchronize");
    let ran: Vec<_> = cuda.fake.journal().iter().map(|line| (line.kind, line.to, line.bytes)).collect();
    assert_eq!(ran, [(RanKind::Fill, device, 1024), (RanKind::ToHost, host, 1024)]);
    assert_eq!(raw::see(host, KIB), vec![9; KIB]);
}

#[test]
fn counts_are_of_calls_bytes_and_what_there_is() {
    let cuda = bound();
    let (host, device, stream) = (cuda.host(KIB), cuda.alloc(KIB), cuda.stream());
    let event = cuda.event();
    raw::to_device(device, host, KIB, stream).expect("copy");
    raw::to_host(host, device, 100, stream).expect("copy");
    raw::stream_synchronize(stream).expect("synchronize");
    let counts = cuda.fake.counts();
    assert_eq!((counts.bytes_to_device, counts.bytes_to_host, counts.copies), (1024, 100, 2));
    assert_eq!((counts.streams, counts.events, counts.allocations, counts.registrations), (1, 1, 1, 1));
    assert_eq!(cuda.fake.calls("cuMemcpyHtoDAsync_v2"), 1);
    raw::event_destroy(event).expect("destroy");
    raw::stream_destroy(stream).expect("destroy");
    raw::unregister(host).expect("unregister");
    raw::free(device).expect("free");
    let counts = cuda.fake.counts();
    assert_eq!((counts.streams, counts.events, counts.allocations, counts.registrations), (0, 0, 0, 0));
    raw::release(0).expect("release");
    assert_eq!(cuda.fake.leaks(), []);
    let _driver: &FakeDriver = &cuda.fake;
}
