//! Captures of streams into graphs, as far as they get in the way of others: there are no graphs, and what is put on a
//! stream that is being captured is gone.
//!
//! What the real driver documents as illegal spoils the capture, and so does what it does not say: the end of a stream
//! that is part of one.

use std::{cell::Cell, collections::BTreeMap, thread::ThreadId};

use crate::{
    abi::{Code, Done},
    state::State,
};

/// Ways of a thread with captures, and of captures with threads.
const GLOBAL: u32 = 0;
const RELAXED: u32 = 2;

/// Calls that the driver may have to wait in, which some captures forbid.
const UNSAFE_CALLS: [&str; 11] = [
    "cuEventQuery",
    "cuEventSynchronize",
    "cuStreamQuery",
    "cuStreamSynchronize",
    "cuCtxSynchronize",
    "cuMemAlloc_v2",
    "cuMemFree_v2",
    "cuMemHostRegister_v2",
    "cuMemHostUnregister",
    "cuModuleLoadData",
    "cuModuleUnload",
];

thread_local! {
    static MODE: Cell<u32> = const { Cell::new(GLOBAL) };
}

/// A capture that has begun.
pub(crate) struct Capture {
    origin: u64,
    mode: u32,
    thread: ThreadId,
    is_spoilt: bool,
    /// Streams that joined it, and whether there is something on them that the origin does not wait for.
    forks: BTreeMap<u64, bool>,
}

/// Sets how this thread gets on with captures, and says how it did.
pub(crate) fn exchange_mode(mode: u32) -> Result<u32, Code> {
    if mode > RELAXED { Err(Code::INVALID_VALUE) } else { Ok(MODE.replace(mode)) }
}

impl State {
    pub(crate) fn begin_capture(&mut self, stream: u64, mode: u32) -> Done {
        if self.capture_of(stream).is_some() {
            return Err(Code::ILLEGAL_STATE);
        }
        let id = self.new_handle();
        let thread = std::thread::current().id();
        let capture = Capture { origin: stream, mode, thread, is_spoilt: false, forks: BTreeMap::new() };
        self.captures.insert(id, capture);
        self.set_capture(stream, Some(id));
        Ok(())
    }

    pub(crate) fn end_capture(&mut self, stream: u64) -> Done {
        let id = self.capture_of(stream).ok_or(Code::ILLEGAL_STATE)?;
        if self.captures[&id].origin != stream {
            self.spoil(id);
            return Err(Code::STREAM_CAPTURE_UNMATCHED);
        }
        let capture = self.captures.remove(&id).ok_or(Code::ILLEGAL_STATE)?;
        for part in capture.forks.keys().chain([&stream]) {
            self.set_capture(*part, None);
        }
        if capture.is_spoilt {
            Err(Code::STREAM_CAPTURE_INVALIDATED)
        } else if capture.forks.values().any(|is_unjoined| *is_unjoined) {
            Err(Code::STREAM_CAPTURE_UNJOINED)
        } else {
            Ok(())
        }
    }

    /// 0, 1 if it is, 2 if its capture is spoilt.
    pub(crate) fn capture_status(&self, stream: u64) -> i32 {
        let capture = self.capture_of(stream).and_then(|id| self.captures.get(&id));
        capture.map_or(0, |capture| 1 + i32::from(capture.is_spoilt))
    }

    pub(crate) fn spoil(&mut self, id: u64) {
        if let Some(capture) = self.captures.get_mut(&id) {
            capture.is_spoilt = true;
        }
    }

    /// Something is put on a stream of a capture.
    pub(crate) fn capture_work(&mut self, id: u64, stream: u64) {
        let capture = self.captures.get_mut(&id);
        if let Some(is_unjoined) = capture.and_then(|capture| capture.forks.get_mut(&stream)) {
            *is_unjoined = true;
        }
    }

    /// A stream waits for an event that was recorded on the stream `from` of a capture: it becomes part of it.
    pub(crate) fn join_capture(&mut self, id: u64, from: u64, stream: u64) -> Done {
        if !self.captures.contains_key(&id) {
            return Err(Code::CAPTURED_EVENT);
        }
        match self.capture_of(stream) {
            Some(other) if other != id => {
                self.spoil(id);
                self.spoil(other);
                return Err(Code::STREAM_CAPTURE_MERGE);
            }
            Some(_) => {}
            None => self.set_capture(stream, Some(id)),
        }
        if let Some(capture) = self.captures.get_mut(&id) {
            if capture.origin == stream {
                capture.forks.entry(from).and_modify(|is_unjoined| *is_unjoined = false);
            } else {
                capture.forks.entry(stream).or_default();
            }
        }
        Ok(())
    }

    /// A call that waits for nothing that is being captured spoils what it would have to wait for.
    pub(crate) fn refuse_captured(&mut self, capture: Option<u64>, code: Code) -> Done {
        let Some(id) = capture else { return Ok(()) };
        self.spoil(id);
        Err(code)
    }

    /// Whether the captures that there are allow this thread the call; those that do not are spoilt.
    pub(crate) fn allow_beside_captures(&mut self, call: &str) -> Done {
        let mode = MODE.get();
        if mode == RELAXED || !UNSAFE_CALLS.contains(&call) {
            return Ok(());
        }
        let own = std::thread::current().id();
        let mut outcome = Ok(());
        for capture in self.captures.values_mut() {
            let is_own = capture.thread == own && capture.mode != RELAXED;
            if is_own || (mode == GLOBAL && capture.mode == GLOBAL) {
                capture.is_spoilt = true;
                outcome = Err(Code::STREAM_CAPTURE_UNSUPPORTED);
            }
        }
        outcome
    }
}
