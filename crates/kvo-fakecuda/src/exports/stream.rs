//! Streams and events.

use std::ffi::c_int;

use super::exports;
use crate::{
    abi::{Code, LEGACY_STREAM},
    capture::exchange_mode,
    pointers::{CFunction, HostFunction, Out},
    streams::{Point, Stream},
    work::Work,
};

exports! {
    Context cuStreamCreate(call, stream: Out<u64>, flags: u32) {
        stream.put(call.driver.lock().add_stream(call.context, flags, 0)?)
    }

    Context cuStreamCreateWithPriority(call, stream: Out<u64>, flags: u32, priority: c_int) {
        stream.put(call.driver.lock().add_stream(call.context, flags, priority)?)
    }

    Context cuStreamDestroy_v2(call, stream: u64) {
        call.driver.lock().close_stream(call.context, stream)
    }

    Context cuStreamSynchronize(call, stream: u64) {
        let mut state = call.driver.lock();
        let handle = state.stream_of(call.context, stream)?;
        let capture = state.capture_of(handle);
        state.refuse_captured(capture, Code::STREAM_CAPTURE_UNSUPPORTED)?;
        drop(state);
        call.driver.wait_until(call.context, |state| state.streams.get(&handle).is_none_or(Stream::is_idle))
    }

    Context cuStreamQuery(call, stream: u64) {
        let mut state = call.driver.lock();
        let handle = state.stream_of(call.context, stream)?;
        let capture = state.capture_of(handle);
        state.refuse_captured(capture, Code::STREAM_CAPTURE_UNSUPPORTED)?;
        if state.streams[&handle].is_idle() { Ok(()) } else { Err(Code::NOT_READY) }
    }

    Context cuStreamWaitEvent(call, stream: u64, event: u64, flags: u32) {
        if flags > 1 {
            return Err(Code::INVALID_VALUE);
        }
        call.driver.lock().wait_for_event(call.context, stream, event)
    }

    Context cuStreamBeginCapture_v2(call, stream: u64, mode: u32) {
        let mut state = call.driver.lock();
        if stream == 0 || stream == LEGACY_STREAM {
            return Err(Code::STREAM_CAPTURE_UNSUPPORTED);
        }
        let handle = state.stream_of(call.context, stream)?;
        state.begin_capture(handle, mode)
    }

    // There are no graphs.
    Context cuStreamEndCapture(call, stream: u64, graph: Out<u64>) {
        let mut state = call.driver.lock();
        let handle = state.stream_of(call.context, stream)?;
        graph.put(0)?;
        state.end_capture(handle)
    }

    Context cuStreamIsCapturing(call, stream: u64, status: Out<c_int>) {
        let state = call.driver.lock();
        status.put(state.capture_status(state.stream_of(call.context, stream)?))
    }

    Nothing cuThreadExchangeStreamCaptureMode(_call, mode: Out<u32>) {
        mode.put(exchange_mode(mode.get()?)?)
    }

    Context cuStreamGetPriority(call, stream: u64, priority: Out<c_int>) {
        let state = call.driver.lock();
        priority.put(state.streams[&state.stream_of(call.context, stream)?].priority)
    }

    Context cuStreamGetFlags(call, stream: u64, flags: Out<u32>) {
        let state = call.driver.lock();
        flags.put(state.streams[&state.stream_of(call.context, stream)?].flags)
    }

    Context cuStreamGetCtx(call, stream: u64, context: Out<u64>) {
        let state = call.driver.lock();
        context.put(state.streams[&state.stream_of(call.context, stream)?].context)
    }

    Context cuLaunchHostFunc(call, stream: u64, function: Option<CFunction>, argument: u64) {
        let function = function.ok_or(Code::INVALID_VALUE)?;
        let work = Work::Host(HostFunction { function, argument });
        call.driver.lock().enqueue(call.context, stream, work).map(|_| ())
    }

    Context cuEventCreate(call, event: Out<u64>, flags: u32) {
        event.put(call.driver.lock().add_event(call.context, flags)?)
    }

    Context cuEventDestroy_v2(call, event: u64) {
        call.driver.lock().events.remove(&event).map(|_| ()).ok_or(Code::INVALID_HANDLE)
    }

    Context cuEventRecord(call, event: u64, stream: u64) {
        call.driver.lock().record(call.context, event, stream)
    }

    Context cuEventQuery(call, event: u64) {
        let point = call.driver.lock().point_of(event)?;
        if point.is_none_or(|point| point.is_passed()) { Ok(()) } else { Err(Code::NOT_READY) }
    }

    Context cuEventSynchronize(call, event: u64) {
        let point = call.driver.lock().point_of(event)?;
        call.driver.wait_until(call.context, |_| point.as_ref().is_none_or(Point::is_passed))
    }

    Context cuEventElapsedTime(call, ms: Out<f32>, from: u64, to: u64) {
        ms.put(call.driver.lock().elapsed_ms(from, to)?)
    }

    Context cuEventElapsedTime_v2(call, ms: Out<f32>, from: u64, to: u64) {
        ms.put(call.driver.lock().elapsed_ms(from, to)?)
    }
}
