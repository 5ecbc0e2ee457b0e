//! Captures of streams: what becomes part of one, and what spoils it.

mod support;

use self::support::{bound, raw};

const GLOBAL: u32 = 0;
const THREAD_LOCAL: u32 = 1;
const RELAXED: u32 = 2;

const ILLEGAL_STATE: u32 = 401;
const UNSUPPORTED: u32 = 900;
const INVALIDATED: u32 = 901;
const MERGE: u32 = 902;
const UNMATCHED: u32 = 903;
const UNJOINED: u32 = 904;
const ISOLATION: u32 = 905;
const CAPTURED_EVENT: u32 = 907;

#[test]
fn a_stream_that_waits_for_a_captured_event_is_captured_until_the_end() {
    let cuda = bound();
    let (stream, other, event) = (cuda.stream(), cuda.stream(), cuda.event());
    raw::begin_capture(stream, RELAXED).unwrap();
    assert_eq!(raw::begin_capture(stream, RELAXED), Err(ILLEGAL_STATE));
    raw::event_record(event, stream).unwrap();
    raw::stream_wait(other, event).unwrap();
    assert_eq!([stream, other].map(raw::is_capturing), [Ok(1); 2]);
    raw::end_capture(stream).unwrap();
    assert_eq!([stream, other].map(raw::is_capturing), [Ok(0); 2]);
    assert_eq!(raw::end_capture(stream), Err(ILLEGAL_STATE));
    assert_eq!(raw::stream_wait(other, event), Err(CAPTURED_EVENT), "its capture is over");
    raw::event_record(event, stream).unwrap();
    raw::stream_wait(other, event).unwrap();
    raw::stream_synchronize(other).unwrap();
}

#[test]
fn what_is_put_on_a_captured_stream_does_not_run_and_must_be_joined() {
    for joins in [false, true] {
        let cuda = bound();
        let (stream, fork, event) = (cuda.stream(), cuda.stream(), cuda.event());
        let address = cuda.alloc(16);
        cuda.put_pattern(address, 16, 1);
        raw::begin_capture(stream, THREAD_LOCAL).unwrap();
        raw::event_record(event, stream).unwrap();
        raw::stream_wait(fork, event).unwrap();
        raw::fill(address, 7, 16, fork).unwrap();
        if joins {
            raw::event_record(event, fork).unwrap();
            raw::stream_wait(stream, event).unwrap();
        }
        assert_eq!(raw::end_capture(stream), if joins { Ok(()) } else { Err(UNJOINED) });
        raw::synchronize().unwrap();
        assert_eq!(cuda.on_device(address, 16), support::pattern(1, 16));
    }
}

#[test]
fn what_is_illegal_spoils_a_capture() {
    let cuda = bound();
    let (stream, other) = (cuda.stream(), cuda.stream());
    let (captured, event) = (cuda.event(), cuda.event());
    raw::exchange_mode(RELAXED).unwrap();
    let spoils = |code: u32, call: &dyn Fn() -> raw::Outcome| {
        raw::begin_capture(stream, RELAXED).unwrap();
        raw::event_record(captured, stream).unwrap();
        raw::event_record(event, other).unwrap();
        assert_eq!(call(), if code == 0 { Ok(()) } else { Err(code) });
        assert_eq!(raw::is_capturing(stream), Ok(2));
        assert_eq!(raw::end_capture(stream), Err(INVALIDATED));
    };
    spoils(CAPTURED_EVENT, &|| raw::event_query(captured));
    spoils(UNSUPPORTED, &|| raw::stream_query(stream));
    spoils(UNSUPPORTED, &|| raw::stream_synchronize(stream));
    spoils(ISOLATION, &|| raw::stream_wait(stream, event));
    spoils(0, &|| {
        let fork = cuda.stream();
        raw::stream_wait(fork, captured)?;
        raw::stream_destroy(fork)
    });
    spoils(UNMATCHED, &|| {
        let fork = cuda.stream();
        raw::stream_wait(fork, captured)?;
        raw::end_capture(fork)
    });
    spoils(MERGE, &|| {
        let second = cuda.stream();
        raw::begin_capture(second, RELAXED)?;
        raw::stream_wait(second, captured)
    });
}

#[test]
fn a_call_that_may_wait_spoils_a_capture_unless_modes_allow_it() {
    let cuda = bound();
    let (stream, event) = (cuda.stream(), cuda.event());
    for (mode, is_same_thread, own, spoils) in [
        (GLOBAL, false, GLOBAL, true),
        (GLOBAL, false, THREAD_LOCAL, false),
        (GLOBAL, true, RELAXED, false),
        (THREAD_LOCAL, false, GLOBAL, false),
        (THREAD_LOCAL, true, THREAD_LOCAL, true),
        (RELAXED, true, GLOBAL, false),
    ] {
        raw::begin_capture(stream, mode).unwrap();
        let asks = || {
            raw::set_current(cuda.context).unwrap();
            let before = raw::exchange_mode(own).unwrap();
            let asked = raw::event_query(event);
            assert_eq!(raw::exchange_mode(before), Ok(own));
            asked
        };
        let asked = if is_same_thread {
            asks()
        } else {
            std::thread::scope(|scope| scope.spawn(asks).join().unwrap())
        };
        let case = format!("{mode} {is_same_thread} {own}");
        assert_eq!(asked, if spoils { Err(UNSUPPORTED) } else { Ok(()) }, "{case}");
        assert_eq!(raw::end_capture(stream), if spoils { Err(INVALIDATED) } else { Ok(()) }, "{case}");
    }
}

#[test]
fn a_held_call_does_not_return_and_has_done_nothing() {
    let cuda = bound();
    let hold = kvo_fakecuda::Hold::Calls("cuMemAlloc_v2");
    cuda.fake.hold(hold);
    std::thread::scope(|scope| {
        let allocates = scope.spawn(|| {
            raw::set_current(cuda.context).unwrap();
            raw::alloc(16)
        });
        assert!(cuda.fake.wait_for_blocked(1));
        assert_eq!(cuda.fake.counts().allocations, 0);
        cuda.fake.release(hold);
        allocates.join().unwrap().unwrap();
    });
    assert_eq!(cuda.fake.counts().allocations, 1);
}
