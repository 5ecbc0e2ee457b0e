//! Streams: a queue of work and a thread each. Events: points in them.
//!
//! A point is a stream's counter of ended work and the value it has to reach. An event remembers the point of its last
//! record; whoever waits for an event takes that point along, so that a later record changes nothing for him.

use std::{
    collections::VecDeque,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Instant,
};

use crate::{
    abi::{
        Code, Done, EVENT_DISABLE_TIMING, EVENT_FLAGS, LEGACY_STREAM, PER_THREAD_STREAM, STREAM_NON_BLOCKING,
    },
    state::{Driver, State, driver},
    tally,
    work::{self, Work},
};

/// The priorities of streams: the least and the greatest.
pub(crate) const PRIORITIES: (i32, i32) = (0, -5);

/// A point in a stream's work.
#[derive(Clone, Debug)]
pub(crate) struct Point {
    ended: Arc<AtomicU64>,
    sequence: u64,
}

impl Point {
    pub(crate) fn is_passed(&self) -> bool {
        self.ended.load(Ordering::Acquire) >= self.sequence
    }
}

/// One record of an event.
#[derive(Debug)]
pub(crate) struct Record {
    pub(crate) point: Point,
    /// When the stream passed it.
    pub(crate) time: OnceLock<Instant>,
}

#[derive(Debug)]
pub(crate) struct Event {
    pub(crate) context: u64,
    flags: u32,
    last: Option<Arc<Record>>,
    /// The capture in which it was last recorded, and the stream.
    captured: Option<(u64, u64)>,
}

impl Event {
    fn has_timing(&self) -> bool {
        self.flags & EVENT_DISABLE_TIMING == 0
    }
}

pub(crate) struct Stream {
    pub(crate) context: u64,
    pub(crate) flags: u32,
    pub(crate) priority: i32,
    queue: VecDeque<Arc<Work>>,
    running: Option<Arc<Work>>,
    submitted: u64,
    ended: Arc<AtomicU64>,
    /// Whether it was destroyed; what is queued still runs.
    pub(crate) is_closing: bool,
    /// The capture that it is part of.
    capture: Option<u64>,
    /// Whether what runs waits for another stream, an engine, or a hold.
    pub(crate) is_blocked: bool,
}

impl Stream {
    /// Behind all that is on it now.
    fn tail(&self) -> Point {
        Point { ended: Arc::clone(&self.ended), sequence: self.submitted }
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.tail().is_passed()
    }

    pub(crate) fn is_running(&self) -> bool {
        self.running.is_some()
    }

    pub(crate) fn has_work(&self) -> bool {
        self.is_running() || !self.queue.is_empty()
    }

    pub(crate) fn ended(&self) -> u64 {
        self.ended.load(Ordering::Acquire)
    }

    fn push(&mut self, work: Work) -> Point {
        self.queue.push_back(Arc::new(work));
        self.submitted += 1;
        self.tail()
    }

    /// What is queued or runs.
    fn open_work(&self) -> impl Iterator<Item = &Work> {
        self.running.iter().chain(&self.queue).map(AsRef::as_ref)
    }
}

impl State {
    /// Makes a stream and starts its thread.
    pub(crate) fn add_stream(&mut self, context: u64, flags: u32, priority: i32) -> Result<u64, Code> {
        if flags & !STREAM_NON_BLOCKING != 0 {
            return Err(Code::INVALID_VALUE);
        }
        let handle = self.new_handle();
        let stream = Stream {
            context,
            flags,
            priority: priority.clamp(PRIORITIES.1, PRIORITIES.0),
            queue: VecDeque::new(),
            running: None,
            submitted: 0,
            ended: Arc::default(),
            is_closing: false,
            capture: None,
            is_blocked: false,
        };
        let started = thread::Builder::new().name("fake-stream".into()).spawn(move || run(driver(), handle));
        started.map_err(|_| Code::OUT_OF_MEMORY)?;
        self.streams.insert(handle, stream);
        Ok(handle)
    }

    /// The stream that a caller means: 0 and 1 are the NULL stream of his context.
    pub(crate) fn stream_of(&self, context: u64, handle: u64) -> Result<u64, Code> {
        match handle {
            0 | LEGACY_STREAM => Ok(self.devices[self.usable(context)?].null_stream),
            PER_THREAD_STREAM => Err(Code::NOT_SUPPORTED),
            _ => {
                let stream = self.streams.get(&handle).filter(|stream| !stream.is_closing);
                let is_own = |device: &crate::device::Device| device.null_stream == handle;
                match stream {
                    Some(_) if !self.devices.iter().any(is_own) => Ok(handle),
                    _ => Err(Code::INVALID_HANDLE),
                }
            }
        }
    }

    /// Puts work on a stream, as seen from `context`. The NULL stream waits for all blocking ones, and they for it.
    pub(crate) fn enqueue(&mut self, context: u64, handle: u64, work: Work) -> Result<Point, Code> {
        let handle = self.stream_of(context, handle)?;
        let stream = &self.streams[&handle];
        if let Some(capture) = stream.capture {
            let tail = stream.tail();
            self.capture_work(capture, handle);
            return Ok(tail);
        }
        let device = self.usable(stream.context)?;
        let null = self.devices[device].null_stream;
        let is_blocking = |stream: &Stream| stream.flags & STREAM_NON_BLOCKING == 0;
        let before: Vec<Point> = if handle == null {
            let context = stream.context;
            let others = self.streams.iter().filter(|(other, stream)| {
                **other != handle && stream.context == context && is_blocking(stream)
            });
            others.map(|(_, stream)| stream.tail()).collect()
        } else if is_blocking(stream) {
            self.streams.get(&null).map(Stream::tail).into_iter().collect()
        } else {
            Vec::new()
        };
        let stream = self.streams.get_mut(&handle).ok_or(Code::INVALID_HANDLE)?;
        for point in before.into_iter().filter(|point| !point.is_passed()) {
            stream.push(Work::Wait(point));
        }
        let point = stream.push(work);
        driver().wake();
        Ok(point)
    }

    pub(crate) fn close_stream(&mut self, context: u64, handle: u64) -> Done {
        if handle == 0 || handle == LEGACY_STREAM || handle == PER_THREAD_STREAM {
            return Err(Code::INVALID_HANDLE);
        }
        let handle = self.stream_of(context, handle)?;
        if let Some(capture) = self.capture_of(handle) {
            self.spoil(capture);
        }
        let stream = self.streams.get_mut(&handle).ok_or(Code::INVALID_HANDLE)?;
        stream.is_closing = true;
        driver().wake();
        Ok(())
    }

    /// Streams of callers that are not destroyed.
    pub(crate) fn open_streams(&self) -> impl Iterator<Item = (u64, &Stream)> {
        let is_null = |handle: u64| self.devices.iter().any(|device| device.null_stream == handle);
        self.streams
            .iter()
            .filter(move |(handle, stream)| !stream.is_closing && !is_null(**handle))
            .map(|(handle, stream)| (*handle, stream))
    }

    /// Whether all work of a context is over.
    pub(crate) fn is_context_idle(&self, context: u64) -> bool {
        self.streams.values().filter(|stream| stream.context == context).all(Stream::is_idle)
    }

    /// Whether work that is not over touches these bytes of the host.
    pub(crate) fn is_in_flight(&self, start: u64, bytes: usize) -> bool {
        self.streams.values().flat_map(Stream::open_work).any(|work| work.touches(start, bytes as u64))
    }

    pub(crate) fn add_event(&mut self, context: u64, flags: u32) -> Result<u64, Code> {
        if flags & !EVENT_FLAGS != 0 {
            return Err(Code::INVALID_VALUE);
        }
        let handle = self.new_handle();
        self.events.insert(handle, Event { context, flags, last: None, captured: None });
        Ok(handle)
    }

    fn event(&self, handle: u64) -> Result<&Event, Code> {
        self.events.get(&handle).ok_or(Code::INVALID_HANDLE)
    }

    /// Records an event behind all that is on the stream now. Both are of one context.
    pub(crate) fn record(&mut self, context: u64, event: u64, stream: u64) -> Done {
        let handle = self.stream_of(context, stream)?;
        if self.event(event)?.context != self.streams[&handle].context {
            return Err(Code::INVALID_HANDLE);
        }
        let captured = self.capture_of(handle).map(|capture| (capture, handle));
        self.events.entry(event).and_modify(|event| event.captured = captured);
        if captured.is_some() {
            self.events.entry(event).and_modify(|event| event.last = None);
            return Ok(());
        }
        let cell: Arc<OnceLock<Arc<Record>>> = Arc::default();
        let point = self.enqueue(context, stream, Work::Record(Arc::clone(&cell)))?;
        let record = Arc::new(Record { point, time: OnceLock::new() });
        // The stream's thread needs the lock before it can look.
        cell.get_or_init(|| Arc::clone(&record));
        self.events.entry(event).and_modify(|event| event.last = Some(record));
        Ok(())
    }

    /// Makes the stream wait for the last record of the event: the one of now, whatever is recorded later.
    pub(crate) fn wait_for_event(&mut self, context: u64, stream: u64, event: u64) -> Done {
        let Event { last, captured, .. } = self.event(event)?;
        let (last, captured) = (last.clone(), *captured);
        let handle = self.stream_of(context, stream)?;
        self.usable(self.streams[&handle].context)?;
        if let Some((capture, from)) = captured {
            return self.join_capture(capture, from, handle);
        }
        self.refuse_captured(self.capture_of(handle), Code::STREAM_CAPTURE_ISOLATION)?;
        // An event that was never recorded is no reason to wait.
        if let Some(record) = last {
            self.enqueue(context, stream, Work::Wait(record.point.clone()))?;
        }
        Ok(())
    }

    /// The capture that a stream is part of.
    pub(crate) fn capture_of(&self, stream: u64) -> Option<u64> {
        self.streams.get(&stream)?.capture
    }

    pub(crate) fn set_capture(&mut self, stream: u64, capture: Option<u64>) {
        self.streams.entry(stream).and_modify(|stream| stream.capture = capture);
    }

    /// The point of the event's last record; `None` if it has none. One that was captured is not to be asked for.
    pub(crate) fn point_of(&mut self, event: u64) -> Result<Option<Point>, Code> {
        let captured = self.event(event)?.captured;
        self.refuse_captured(captured.map(|(capture, _)| capture), Code::CAPTURED_EVENT)?;
        Ok(self.event(event)?.last.as_ref().map(|record| record.point.clone()))
    }

    /// Milliseconds between two events.
    pub(crate) fn elapsed_ms(&self, from: u64, to: u64) -> Result<f32, Code> {
        let (from, to) = (self.event(from)?, self.event(to)?);
        if !from.has_timing() || !to.has_timing() {
            return Err(Code::INVALID_HANDLE);
        }
        let time = |event: &Event| {
            let record = event.last.as_ref().ok_or(Code::INVALID_HANDLE)?;
            if !record.point.is_passed() {
                return Err(Code::NOT_READY);
            }
            record.time.get().copied().ok_or(Code::NOT_READY)
        };
        let (from, to) = (time(from)?, time(to)?);
        let forward = to.saturating_duration_since(from).as_secs_f32();
        Ok((forward - from.saturating_duration_since(to).as_secs_f32()) * 1e3)
    }

    /// Notes what a context that ends leaves behind. What belongs to a dead device is no leak.
    pub(crate) fn note_leaks(&mut self, context: u64) {
        let streams: Vec<u64> = self
            .open_streams()
            .filter(|(_, stream)| stream.context == context)
            .map(|(handle, _)| handle)
            .collect();
        let events: Vec<u64> = self
            .events
            .iter()
            .filter(|(_, event)| event.context == context)
            .map(|(handle, _)| *handle)
            .collect();
        for handle in streams {
            self.tally.leak(tally::LEAKED_STREAM, handle);
        }
        for handle in events {
            self.tally.leak(tally::LEAKED_EVENT, handle);
        }
    }

    /// Takes the streams and events of a context away; nothing that is queued runs.
    pub(crate) fn drop_work_of(&mut self, context: u64) {
        self.events.retain(|_, event| event.context != context);
        for stream in self.streams.values_mut().filter(|stream| stream.context == context) {
            stream.queue.clear();
            stream.is_closing = true;
        }
    }
}

/// A stream's thread: one piece of work after the other, until the stream is destroyed and has none left.
fn run(driver: &'static Driver, handle: u64) {
    while let Some((context, work)) = next(driver, handle) {
        let outcome = work::run(driver, handle, &work);
        let mut state = driver.lock();
        if let (Err(code), Some(device)) = (outcome, state.contexts.get(&context).copied()) {
            state.kill(device, code);
        }
        let Some(stream) = state.streams.get_mut(&handle) else { return };
        stream.running = None;
        stream.is_blocked = false;
        stream.ended.fetch_add(1, Ordering::Release);
        driver.wake();
    }
    driver.wake();
}

/// The next work of a stream, and its context; `None` once there will be no more.
fn next(driver: &'static Driver, handle: u64) -> Option<(u64, Arc<Work>)> {
    let mut state = driver.lock();
    loop {
        let stream = state.streams.get(&handle)?;
        let context = stream.context;
        let (has_work, is_closing) = (!stream.queue.is_empty(), stream.is_closing);
        // A dead device does nothing more.
        let is_alive = state.usable(context).is_ok();
        if is_closing && !(has_work && is_alive) {
            state.streams.remove(&handle);
            return None;
        }
        if has_work && is_alive && state.holds.lets(handle) {
            let stream = state.streams.get_mut(&handle)?;
            let work = stream.queue.pop_front()?;
            stream.running = Some(Arc::clone(&work));
            return Some((context, work));
        }
        state = driver.wait(state);
    }
}
