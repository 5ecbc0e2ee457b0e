//! What the fake driver refuses, and what it writes down, under the real cudarc.

mod support;

use std::{
    process::Command,
    sync::atomic::{AtomicU32, Ordering},
    thread,
    time::Duration,
};

use kvo_fakecuda::{Compute, Hold, Leak, Violation};

use self::support::{bound, fake, pattern, raw};

const KIB: usize = 1024;
const MIB: usize = 1024 * KIB;

const INVALID_VALUE: u32 = 1;
const OUT_OF_MEMORY: u32 = 2;
const INVALID_CONTEXT: u32 = 201;
const ILLEGAL_ADDRESS: u32 = 700;

#[test]
fn nothing_goes_before_init_but_questions_of_the_driver() {
    let fake = fake();
    fake.set_driver_version(12_080);
    assert_eq!(raw::driver_version(), Ok(12_080));
    assert_eq!(raw::device_count(), Err(3));
    assert_eq!(raw::stream_create(0, 0), Err(3));
    fake.fail_init(999);
    assert_eq!(raw::init(), Err(999));
    fake.fail_init(0);
    fake.set_device_count(0);
    assert_eq!(raw::init(), Err(100));
    fake.set_device_count(3);
    raw::init().expect("init");
    assert_eq!(raw::device_count(), Ok(3));
    assert_eq!(raw::retain(3), Err(101));
    assert_eq!(raw::pci_bus_id(2).expect("a device"), "00000000:3B:00.0");
}

#[test]
fn a_call_needs_a_context_on_its_own_thread() {
    let cuda = bound();
    let stream = cuda.stream();
    let context = cuda.context;
    let elsewhere = thread::spawn(move || {
        let unbound = (raw::alloc(1), raw::stream_query(stream), raw::stream_create(1, 0));
        raw::set_current(context).expect("bind");
        (unbound, raw::stream_query(stream))
    });
    let (unbound, bound) = elsewhere.join().expect("it ends");
    assert_eq!(unbound, (Err(INVALID_CONTEXT), Err(INVALID_CONTEXT), Err(INVALID_CONTEXT)));
    assert_eq!(bound, Ok(()));
    raw::set_current(0).expect("unbind");
    assert_eq!(raw::alloc(1), Err(INVALID_CONTEXT));
    assert_eq!(raw::set_current(context + 16), Err(INVALID_CONTEXT));
}

#[test]
fn a_context_lives_until_its_last_release() {
    let cuda = bound();
    let (stream, event, device) = (cuda.stream(), cuda.event(), cuda.alloc(KIB));
    let host = cuda.host(4 * KIB);
    assert_eq!(raw::retain(0), Ok(cuda.context));
    assert_eq!(cuda.fake.counts().retains, 2);
    raw::release(0).expect("release");
    raw::stream_query(stream).expect("it is still there");
    assert_eq!(cuda.fake.leaks(), []);
    raw::release(0).expect("release");
    assert_eq!(raw::stream_query(stream), Err(INVALID_CONTEXT));
    assert_eq!(raw::release(0), Err(INVALID_CONTEXT));
    let mut leaks = cuda.fake.leaks();
    let expected =
        [Leak::Stream(stream), Leak::Event(event), Leak::Allocation(device), Leak::Registration(host)];
    leaks.sort_by_key(|leak| expected.iter().position(|expected| expected == leak));
    assert_eq!(leaks, expected);
    assert_ne!(raw::retain(0), Ok(cuda.context), "a new one");
}

#[test]
fn a_batch_runs_from_its_last_member_to_its_first() {
    let cuda = bound();
    let (host, device, stream) = (cuda.host(MIB), cuda.alloc(MIB), cuda.stream());
    cuda.put_pattern(device, MIB, 5);
    let member = |index: usize| (host + (index * KIB) as u64, device + (index * KIB) as u64, KIB);
    let members: Vec<_> = (0..1024).map(member).collect();
    cuda.fake.hold(Hold::Range { address: device, bytes: 1 });
    raw::batch(&members, 1, stream).expect("batch");
    while cuda.fake.counts().copies < 1023 {
        thread::yield_now();
    }
    let seen = raw::see(host, MIB);
    let wrong = seen.iter().zip(pattern(5, MIB)).skip(KIB).position(|(seen, expected)| *seen != expected);
    assert_eq!(wrong, None, "all but the first");
    assert_eq!(seen[..KIB], [0; KIB]);
    cuda.fake.release(Hold::All);
    raw::stream_synchronize(stream).expect("synchronize");
    assert!(raw::see(host, MIB) == pattern(5, MIB));
    let counts = cuda.fake.counts();
    assert_eq!((counts.batches, counts.batch_members, counts.bytes_to_host), (1, 1024, MIB as u64));
    assert_eq!(cuda.fake.violations(), []);
}

#[test]
fn a_batch_that_fails_names_its_member_and_has_queued_those_behind_it() {
    let cuda = bound();
    let (host, device, stream) = (cuda.host(4 * KIB), cuda.alloc(4 * KIB), cuda.stream());
    let members: Vec<_> = (0..4).map(|index| (device + index * 1024, host + index * 1024, KIB)).collect();
    cuda.fake.fail_batch(2, INVALID_VALUE);
    assert_eq!(raw::batch(&members, 1, stream), Err((INVALID_VALUE, 2)));
    raw::stream_synchronize(stream).expect("synchronize");
    let seen = cuda.on_device(device, 4 * KIB);
    assert_eq!((seen[0], seen[2 * KIB], seen[3 * KIB]), (0xA5, 0xA5, 0));
    raw::batch(&members, 1, stream).expect("once only");
    raw::stream_synchronize(stream).expect("synchronize");
    assert_eq!(cuda.on_device(device, 4 * KIB), vec![0; 4 * KIB]);
}

#[test]
fn a_batch_has_its_own_rules() {
    let cuda = bound();
    let (host, device, stream) = (cuda.host(4 * KIB), cuda.alloc(4 * KIB), cuda.stream());
    let member = (device, host, KIB);
    let nobody = usize::MAX;
    assert_eq!(raw::batch(&[member], 1, 0), Err((INVALID_VALUE, nobody)), "the NULL stream");
    assert_eq!(raw::batch(&[member], 0, stream), Err((INVALID_VALUE, nobody)), "no source order");
    assert_eq!(raw::batch(&[], 1, stream), Err((INVALID_VALUE, nobody)), "no member");
    assert_eq!(raw::batch(&[member, (device, host, 0)], 1, stream), Err((INVALID_VALUE, 1)), "no bytes");
    let past_the_end = (device + 4096 - 100, host, 101);
    assert_eq!(raw::batch(&[past_the_end, member], 1, stream), Err((INVALID_VALUE, 0)));
    assert_eq!(cuda.fake.violations(), []);
    raw::batch(&[member, (device + 1000, host, KIB)], 1, stream).expect("a driver does not notice");
    let overlap = Violation::BatchOverlap { member: 0, other: 1, address: device + 1000 };
    assert_eq!(cuda.fake.violations(), [overlap]);
}

#[test]
fn a_batch_that_need_not_wait_for_its_sources_does_not() {
    let cuda = bound();
    let (host, device, stream) = (cuda.host(KIB), cuda.alloc(KIB), cuda.stream());
    for (order, expected) in [(1, pattern(6, KIB)), (3, vec![0xA5; KIB])] {
        assert!(cuda.fake.write_device(device, &[0xA5; KIB]));
        let writes = Compute::Write { address: device, bytes: 1024, seed: 6 };
        cuda.fake.hold(Hold::Stream(stream));
        cuda.fake.enqueue(stream, writes, Duration::ZERO).expect("compute");
        raw::batch(&[(host, device, KIB)], order, stream).expect("batch");
        cuda.fake.release(Hold::All);
        raw::stream_synchronize(stream).expect("synchronize");
        assert_eq!(raw::see(host, KIB), expected, "source order {order}");
    }
}

#[test]
fn memory_is_registered_once_and_in_pieces() {
    let _cuda = bound();
    let start = raw::host(4 * MIB).as_mut_ptr() as u64;
    let piece = MIB as u64;
    raw::register(start, MIB, 3).expect("register");
    assert_eq!(raw::register(start, MIB, 3), Err(712));
    assert_eq!(raw::register(start + piece - 1, MIB, 3), Err(712), "one page is common");
    raw::register(start + piece, MIB, 3).expect("the next piece");
    assert_eq!(raw::register(start + 2 * piece, 0, 3), Err(INVALID_VALUE));
    assert_eq!(raw::register(start + 2 * piece, MIB, 16), Err(INVALID_VALUE), "no such flag");
    assert_eq!(raw::register(start + 2 * piece, MIB, 8), Err(801), "read only");
    assert_eq!(raw::register(1 << 40, MIB, 3), Err(INVALID_VALUE), "nothing is mapped there");
    assert_eq!(raw::device_pointer(start + 5), Ok(start + 5));
    assert_eq!(raw::device_pointer(start + 2 * piece), Err(INVALID_VALUE));
    assert_eq!(raw::unregister(start + 4096), Err(713));
    raw::unregister(start).expect("unregister");
    assert_eq!(raw::unregister(start), Err(713));
    raw::unregister(start + piece).expect("unregister");
}

#[test]
fn registrations_are_refused_as_asked_for() {
    let cuda = bound();
    let start = raw::host(MIB).as_mut_ptr() as u64;
    cuda.fake.fail_calls("cuMemHostRegister_v2", 2, 1, 801);
    cuda.fake.refuse_registrations_from(512 * KIB as u64);
    raw::register(start, 4 * KIB, 3).expect("the first");
    assert_eq!(raw::register(start + 4096, 4 * KIB, 3), Err(801), "the second");
    raw::register(start + 4096, 4 * KIB, 3).expect("the third");
    assert_eq!(raw::register(start + 8192, 512 * KIB, 3), Err(OUT_OF_MEMORY), "too large");
    assert_eq!(cuda.fake.calls("cuMemHostRegister_v2"), 4);
}

#[test]
fn a_copy_stays_inside_of_one_registration_and_one_allocation() {
    let cuda = bound();
    let start = raw::host(3 * MIB).as_mut_ptr() as u64;
    let (device, stream) = (cuda.alloc(2 * MIB), cuda.stream());
    raw::register(start, MIB, 3).expect("register");
    raw::register(start + MIB as u64, MIB, 3).expect("register");
    let border = start + MIB as u64;
    assert_eq!(raw::to_device(device, border - 8, 16, stream), Err(INVALID_VALUE), "two registrations");
    let end = border + MIB as u64;
    assert_eq!(raw::to_device(device, end - 8, 16, stream), Err(INVALID_VALUE), "half outside");
    raw::to_device(device, border - 8, 8, stream).expect("the last bytes of one");
    raw::to_device(device, border, 8, stream).expect("the first bytes of one");
    let behind = device + 2 * MIB as u64;
    assert_eq!(raw::to_host(start, behind - 8, 9, stream), Err(INVALID_VALUE), "past an allocation");
    assert_eq!(raw::to_host(start, device - 1, 1, stream), Err(INVALID_VALUE), "in front of one");
    assert_eq!(raw::to_host(device, start, 8, stream), Err(INVALID_VALUE), "the wrong way round");
    raw::stream_synchronize(stream).expect("synchronize");
    raw::free(device).expect("free");
    assert_eq!(raw::to_host(start, device, 8, stream), Err(INVALID_VALUE), "freed");
    assert_eq!(raw::free(device), Err(INVALID_VALUE), "freed twice");
}

#[test]
fn a_registration_that_is_not_portable_is_pageable_elsewhere() {
    let fake = fake();
    fake.set_device_count(2);
    raw::init().expect("init");
    let contexts = [raw::retain(0).expect("retain"), raw::retain(1).expect("retain")];
    let start = raw::host(MIB).as_mut_ptr() as u64;
    for (flags, pageable) in [(2, 1), (3, 1)] {
        raw::set_current(contexts[0]).expect("bind");
        raw::register(start, MIB, flags).expect("register");
        raw::set_current(contexts[1]).expect("bind");
        let (device, stream) = (raw::alloc(KIB).expect("alloc"), raw::stream_create(1, 0).expect("stream"));
        raw::to_device(device, start, KIB, stream).expect("copy");
        assert_eq!(fake.counts().pageable_copies, pageable, "flags {flags}");
        raw::unregister(start).expect("unregister");
    }
}

#[test]
fn pageable_memory_is_read_during_the_call_and_written_before_its_end() {
    let cuda = bound();
    let pageable = raw::host(KIB);
    let (device, stream) = (cuda.alloc(KIB), cuda.stream());
    pageable.fill(1);
    cuda.fake.hold(Hold::Stream(stream));
    raw::to_device(device, pageable.as_ptr() as u64, KIB, stream).expect("copy");
    pageable.fill(2);
    cuda.fake.release(Hold::All);
    raw::stream_synchronize(stream).expect("synchronize");
    assert_eq!(cuda.on_device(device, KIB), vec![1; KIB]);

    cuda.fake.hold(Hold::Stream(stream));
    let (fake, context, to) = (*cuda.fake, cuda.context, pageable.as_mut_ptr() as u64);
    let copy = thread::spawn(move || {
        raw::set_current(context).expect("bind");
        raw::to_host(to, device, KIB, stream)
    });
    assert!(fake.wait_for_blocked(1), "the call does not return");
    fake.release(Hold::All);
    copy.join().expect("it ends").expect("copy");
    assert_eq!(pageable, [1; KIB]);
    assert_eq!(cuda.fake.counts().pageable_copies, 2);
}

#[test]
fn a_device_that_does_not_take_host_addresses_dies_of_one_in_a_batch() {
    let fake = fake();
    fake.set_attribute(0, 91, 0);
    raw::init().expect("init");
    raw::set_current(raw::retain(0).expect("retain")).expect("bind");
    let start = raw::host(MIB).as_mut_ptr() as u64;
    raw::register(start, MIB, 3).expect("register");
    let alias = raw::device_pointer(start + 64).expect("it is registered");
    assert_ne!(alias, start + 64);
    let (device, stream) = (raw::alloc(KIB).expect("alloc"), raw::stream_create(1, 0).expect("stream"));
    raw::to_device(device, start, KIB, stream).expect("a copy takes either");
    raw::to_device(device, alias, KIB, stream).expect("a copy takes either");
    raw::batch(&[(device, alias, KIB)], 1, stream).expect("the device's address");
    raw::stream_synchronize(stream).expect("synchronize");
    raw::batch(&[(device, start, KIB)], 1, stream).expect("nothing is noticed during the call");
    assert_eq!(raw::stream_synchronize(stream), Err(ILLEGAL_ADDRESS));
    assert_eq!(raw::alloc(1), Err(ILLEGAL_ADDRESS));
}

#[test]
fn a_dead_device_refuses_everything_and_does_nothing_more() {
    let cuda = bound();
    let (host, device, stream) = (cuda.host(4 * KIB), cuda.alloc(4 * KIB), cuda.stream());
    let event = cuda.event();
    cuda.fake.hold(Hold::Stream(stream));
    for index in 0..4 {
        raw::to_device(device + index * 1024, host, KIB, stream).expect("copy");
    }
    raw::event_record(event, stream).expect("record");
    cuda.fake.kill_at_copy(3, 719);
    cuda.fake.release(Hold::All);
    assert_eq!(raw::event_synchronize(event), Err(719));
    let outcomes = [
        raw::event_query(event),
        raw::stream_query(stream),
        raw::to_device(device, host, KIB, stream),
        raw::alloc(1).map(|_| ()),
        raw::stream_create(1, 0).map(|_| ()),
        raw::unregister(host),
        raw::free(device),
        raw::retain(0).map(|_| ()),
        raw::synchronize(),
    ];
    assert_eq!(outcomes, [Err(719); 9]);
    let seen = cuda.on_device(device, 4 * KIB);
    assert_eq!((seen[0], seen[1024], seen[2048], seen[3072]), (0, 0, 0xA5, 0xA5));
    raw::release(0).expect("release");
    assert_eq!(cuda.fake.leaks(), [], "a dead device leaks nothing");
    assert_eq!(raw::retain(0), Err(719), "it stays dead");
}

#[test]
fn a_device_that_dies_ends_the_wait_of_whoever_is_blocked_and_leaves_others_alone() {
    let fake = fake();
    fake.set_device_count(2);
    raw::init().expect("init");
    let contexts = [raw::retain(0).expect("retain"), raw::retain(1).expect("retain")];
    raw::set_current(contexts[0]).expect("bind");
    let stream = raw::stream_create(1, 0).expect("stream");
    fake.hold(Hold::Stream(stream));
    fake.enqueue(stream, Compute::Nothing, Duration::ZERO).expect("compute");
    let context = contexts[0];
    let blocked = thread::spawn(move || {
        raw::set_current(context).expect("bind");
        raw::stream_synchronize(stream)
    });
    assert!(fake.wait_for_blocked(1));
    fake.kill(0, ILLEGAL_ADDRESS);
    assert_eq!(blocked.join().expect("it ends"), Err(ILLEGAL_ADDRESS));
    raw::set_current(contexts[1]).expect("bind");
    raw::alloc(1).expect("the other device lives");
}

#[test]
fn the_nth_call_fails_and_does_nothing() {
    let cuda = bound();
    cuda.fake.fail_calls("cuMemAlloc_v2", 2, 2, OUT_OF_MEMORY);
    let outcomes =
        [raw::alloc(1).is_ok(), raw::alloc(1).is_ok(), raw::alloc(1).is_ok(), raw::alloc(1).is_ok()];
    assert_eq!(outcomes, [true, false, false, true]);
    assert_eq!(cuda.fake.counts().allocations, 2);
    assert_eq!(cuda.fake.calls("cuMemAlloc_v2"), 4);
}

#[test]
fn memory_has_an_end() {
    let cuda = bound();
    cuda.fake.set_memory_bytes(MIB as u64);
    let first = cuda.alloc(MIB - 1);
    assert_eq!(raw::alloc(2), Err(OUT_OF_MEMORY));
    raw::free(first).expect("free");
    let second = cuda.alloc(MIB);
    assert_ne!(first, second, "addresses come back late");
    assert_eq!(raw::alloc(0), Err(INVALID_VALUE));
}

#[test]
fn a_write_past_an_allocation_is_found() {
    let cuda = bound();
    let (first, second) = (cuda.alloc(1000), cuda.alloc(5000));
    assert_eq!(cuda.fake.violations(), []);
    // The bytes of an allocation do not go on into its red zone.
    assert!(!cuda.fake.write_device(first, &[1; 1001]));
    // The shadow is one mapping, so whoever has gone too far by a byte has hit the zone.
    cuda.fake.spoil_device(first + 1000, &[1]);
    let found = Violation::RedZone { allocation: first, address: first + 1000 };
    assert_eq!(cuda.fake.violations(), [found]);
    cuda.fake.forget();
    cuda.fake.spoil_device(second - 1, &[1]);
    raw::free(second).expect("free");
    let found = Violation::RedZone { allocation: second, address: second - 1 };
    assert_eq!(cuda.fake.violations(), [found]);
}

#[test]
fn unregistering_under_a_copy_is_found() {
    let cuda = bound();
    let (host, device, stream) = (cuda.host(4 * KIB), cuda.alloc(KIB), cuda.stream());
    cuda.fake.hold(Hold::Stream(stream));
    raw::to_host(host, device, KIB, stream).expect("copy");
    raw::unregister(host).expect("a driver lets it happen");
    let found = Violation::UnregisteredInFlight { start: host, bytes: 4096 };
    assert_eq!(cuda.fake.violations(), [found]);
}

#[test]
fn a_host_function_runs_in_its_turn_and_may_not_call_the_driver() {
    static SEEN: AtomicU32 = AtomicU32::new(0);
    extern "C" fn call(event: *mut std::ffi::c_void) {
        let outcome = raw::event_query(event as u64).err().unwrap_or(0);
        SEEN.store(outcome + 1, Ordering::SeqCst);
    }
    let cuda = bound();
    let (stream, event) = (cuda.stream(), cuda.event());
    cuda.fake.hold(Hold::Stream(stream));
    raw::host_function(stream, call, event).expect("host function");
    assert_eq!(SEEN.load(Ordering::SeqCst), 0);
    cuda.fake.release(Hold::All);
    raw::stream_synchronize(stream).expect("synchronize");
    assert_eq!(SEEN.load(Ordering::SeqCst), 801);
    assert_eq!(cuda.fake.violations(), [Violation::HostFunctionCalls]);
}

#[test]
fn an_address_says_whose_it_is() {
    let cuda = bound();
    let (host, device) = (cuda.host(4 * KIB), cuda.alloc(3000));
    assert_eq!(raw::attributes(device + 7), Ok((2, 0, device, 3000)));
    assert_eq!(raw::attributes(host + 7), Ok((1, 0, host, 4096)));
    assert_eq!(raw::attributes(raw::host(KIB).as_ptr() as u64), Err(INVALID_VALUE));
}

#[test]
fn functions_are_found_by_the_version_that_asks() {
    let fake = fake();
    let at = |name: &str| raw::symbol::<usize>(name).expect("it is there");
    assert_eq!(raw::proc_address("cuMemAlloc", 12_080), Ok(at("cuMemAlloc_v2")));
    assert_eq!(raw::proc_address("cuMemcpyBatchAsync", 12_080), Ok(at("cuMemcpyBatchAsync")));
    assert_eq!(raw::proc_address("cuMemcpyBatchAsync", 13_000), Ok(at("cuMemcpyBatchAsync_v2")));
    assert_eq!(raw::proc_address("cuMemcpyBatchAsync", 12_000), Err((500, 2)), "the caller is too old");
    assert_eq!(raw::proc_address("cuNothing", 13_000), Err((500, 1)));
    fake.hide("cuMemcpyBatchAsync");
    assert_eq!(raw::proc_address("cuMemcpyBatchAsync", 12_080), Err((500, 2)), "the newer one is there");
    fake.hide("cuMemcpyBatchAsync_v2");
    assert_eq!(raw::proc_address("cuMemcpyBatchAsync", 12_080), Err((500, 1)));
    fake.set_driver_version(12_000);
    assert!(raw::proc_address("cuMemcpyBatchAsync", 13_000).is_err());
}

const IN_CHILD: &str = "KVO_FAKECUDA_TEST_TOUCHES";

#[test]
fn a_host_that_touches_a_device_address_dies() {
    use std::os::unix::process::ExitStatusExt;
    if std::env::var_os(IN_CHILD).is_some() {
        let cuda = bound();
        println!("touched {}", raw::touch(cuda.alloc(KIB)));
        return;
    }
    let program = std::env::current_exe().expect("a path");
    let name = "a_host_that_touches_a_device_address_dies";
    let child = Command::new(program).args(["--exact", name, "--nocapture"]).env(IN_CHILD, "1").output();
    let child = child.expect("it starts");
    let text = String::from_utf8_lossy(&child.stdout).into_owned();
    assert_eq!(child.status.signal(), Some(libc::SIGSEGV), "{text}");
    assert!(!text.contains("touched"), "{text}");
}

#[test]
fn allocations_side_by_side_are_asked_for_one_by_one_and_no_copy_leaves_one() {
    let cuda = bound();
    let first = cuda.fake.allocate_side_by_side(0, 8 * KIB as u64, 3).expect("there is room");
    let second = first + 8 * KIB as u64;
    for (address, start) in [(first, first), (second - 1, first), (second, second), (second + 9, second)] {
        assert_eq!(raw::attributes(address), Ok((2, 0, start, 8 * KIB)));
    }
    let (host, stream) = (cuda.host(24 * KIB), cuda.stream());
    assert_eq!(raw::to_device(second - 1, host, 2, stream), Err(INVALID_VALUE));
    assert_eq!(raw::to_device(second - 1, host, 1, stream), Ok(()));
    assert_eq!(raw::to_device(second, host, 8 * KIB, stream), Ok(()));
    assert_eq!(raw::free(second), Err(INVALID_VALUE));
    raw::stream_synchronize(stream).expect("it ends");
    assert_eq!(cuda.fake.violations(), []);
    cuda.fake.spoil_device(first + 24 * KIB as u64, &[1]);
    assert!(matches!(cuda.fake.violations()[..], [Violation::RedZone { .. }]));
    assert_eq!(cuda.fake.allocate_side_by_side(0, 100, 2), None);
    assert_eq!(cuda.fake.allocate_side_by_side(7, 4096, 2), None);
}
