//! Fences: events of kvo's own behind points of an engine's compute.
//!
//! A fence is a number. Until compute has passed it an event belongs to it, which is not recorded again before; then
//! the event is used for another, once nobody asks it any more. The engine's own events are never kept: a stream of
//! kvo's waits for what one was recorded behind at the time of the call, and an event of kvo's follows it. Each such
//! stream has one fence at a time, so that no fence waits for another.
//!
//! What is known of fences is under the lock of the state, under which the driver is not called. What they are made with
//! is under a lock of its own, which is the owner's until the device's thread ends.

use std::{collections::BTreeMap, sync::Arc};

use kvo_core::{ComputePoint, EventHandle, Fence, FenceError, OwnerId};

use super::{
    driver::{CallError, Event, Stream},
    state::Shared,
};

/// Streams that wait for events of the engine, at most; so many fences behind events can be pending.
const WAITERS_MAX: usize = 64;

/// The fences of one device.
#[derive(Debug)]
pub(crate) struct Fences {
    device: OwnerId,
    next: u64,
    /// Those that compute was not seen to have passed.
    pending: BTreeMap<u64, Arc<Event>>,
    /// Events of those that it was.
    retired: Vec<Arc<Event>>,
}

impl Fences {
    pub(crate) fn new(device: OwnerId) -> Self {
        Self { device, next: 0, pending: BTreeMap::new(), retired: Vec::new() }
    }

    /// A fence at what the event was recorded behind.
    fn add(&mut self, event: Arc<Event>) -> Fence {
        let fence = Fence::new(self.device, self.next);
        self.pending.insert(self.next, event);
        self.next += 1;
        fence
    }

    /// Compute has passed it.
    pub(crate) fn retire(&mut self, sequence: u64) {
        self.retired.extend(self.pending.remove(&sequence));
    }

    /// Whether it was ever made here.
    pub(crate) fn knows(&self, fence: Fence) -> bool {
        fence.device() == self.device && fence.sequence() < self.next
    }

    /// The event to ask for a fence, unless compute was seen to have passed it. It is not recorded again while it is
    /// shared.
    pub(crate) fn event_of(&self, fence: Fence) -> Option<Arc<Event>> {
        self.pending.get(&fence.sequence()).cloned()
    }

    /// The first fence from a number on that compute was not seen to have passed.
    fn first_from(&self, sequence: u64) -> Option<(u64, Arc<Event>)> {
        self.pending.range(sequence..).next().map(|(sequence, event)| (*sequence, Arc::clone(event)))
    }

    /// Fences that compute was not seen to have passed.
    pub(crate) fn num_pending(&self) -> usize {
        self.pending.len()
    }

    /// All events, to be dropped where the context is current. No fence is asked for any more.
    pub(crate) fn take_events(&mut self) -> Vec<Arc<Event>> {
        let mut events = std::mem::take(&mut self.retired);
        events.extend(std::mem::take(&mut self.pending).into_values());
        events
    }
}

/// What the owner makes fences with.
#[derive(Debug)]
pub(crate) struct Recorder {
    pending_max: usize,
    /// Events of fences that were passed; one that is shared is still asked.
    free: Vec<Arc<Event>>,
    waiters: Vec<Waiter>,
}

/// A stream that waits for an engine's event, and the fence behind it.
#[derive(Debug)]
struct Waiter {
    stream: Stream,
    fence: Option<u64>,
    /// Whether an event pulled it into a capture, which it leaves when that ends.
    is_captured: bool,
}

impl Recorder {
    pub(crate) fn new(pending_max: usize) -> Self {
        Self { pending_max, free: Vec::new(), waiters: Vec::new() }
    }

    /// Makes a fence. The context is current.
    pub(crate) fn record(&mut self, shared: &Shared, point: ComputePoint) -> Result<Fence, FenceError> {
        sweep(shared, false).map_err(|error| refusal(error, 0))?;
        if shared.lock().fences.num_pending() >= self.pending_max {
            sweep(shared, true).map_err(|error| refusal(error, 0))?;
            let pending = shared.lock().fences.num_pending();
            if pending >= self.pending_max {
                return Err(FenceError::Full { pending, pending_max: self.pending_max });
            }
        }
        let event = self.event(shared).map_err(|error| refusal(error, 0))?;
        let recorded = match point {
            ComputePoint::Stream(stream) => {
                let recorded = shared.context.record_on(&event, stream);
                recorded.map_err(|error| refusal(error, stream.raw()))
            }
            ComputePoint::Event(handle) => self.follow(shared, handle, &event),
        };
        if let Err(error) = recorded {
            self.free.push(event);
            return Err(error);
        }
        let mut state = shared.lock();
        // The thread of a device that died meanwhile may have let go of all fences.
        state.healthy().map_err(FenceError::Unhealthy)?;
        Ok(state.fences.add(event))
    }

    /// An event that nobody else has.
    fn event(&mut self, shared: &Shared) -> Result<Arc<Event>, CallError> {
        if self.free.is_empty() {
            std::mem::swap(&mut self.free, &mut shared.lock().fences.retired);
        }
        let unshared = self.free.iter().position(|event| Arc::strong_count(event) == 1);
        match unshared {
            Some(unshared) => Ok(self.free.swap_remove(unshared)),
            None => shared.context.event().map(Arc::new),
        }
    }

    /// Records `event` behind what the engine's event was last recorded behind.
    ///
    /// Of an event nobody can be asked whether it is part of a capture: to wait for one that is, makes the stream part of
    /// it too, without a node. Such a stream is left alone until the capture has ended, as its end would be an end of
    /// the capture's.
    fn follow(&mut self, shared: &Shared, handle: EventHandle, event: &Event) -> Result<(), FenceError> {
        let refused = |error| refusal(error, handle.raw());
        let nth = self.idle_waiter(shared)?;
        let next = shared.lock().fences.next;
        let waiter = &mut self.waiters[nth];
        waiter.stream.wait_for(handle).map_err(refused)?;
        waiter.fence = Some(next);
        let recorded = match waiter.stream.is_capturing() {
            Ok(true) => {
                (waiter.is_captured, waiter.fence) = (true, None);
                return Err(FenceError::Refused { code: CAPTURED_EVENT });
            }
            Ok(false) => event.record(&waiter.stream),
            Err(error) => Err(error),
        };
        recorded.map_err(|error| {
            // It is behind the engine's event without a fence that says when it has passed.
            self.waiters.swap_remove(nth);
            refused(error)
        })
    }

    /// A stream whose last fence was passed, or a new one.
    fn idle_waiter(&mut self, shared: &Shared) -> Result<usize, FenceError> {
        if let Some(idle) = self.find_idle(shared) {
            return Ok(idle);
        }
        if self.waiters.len() < WAITERS_MAX {
            let stream = shared.context.stream(0).map_err(|error| refusal(error, 0))?;
            self.waiters.push(Waiter { stream, fence: None, is_captured: false });
            return Ok(self.waiters.len() - 1);
        }
        sweep(shared, true).map_err(|error| refusal(error, 0))?;
        let full = FenceError::Full { pending: self.waiters.len(), pending_max: WAITERS_MAX };
        self.find_idle(shared).ok_or(full)
    }

    fn find_idle(&mut self, shared: &Shared) -> Option<usize> {
        for waiter in self.waiters.iter_mut().filter(|waiter| waiter.is_captured) {
            waiter.is_captured = !matches!(waiter.stream.is_capturing(), Ok(false));
        }
        let state = shared.lock();
        let is_idle = |waiter: &Waiter| {
            let is_pending = waiter.fence.is_some_and(|fence| state.fences.pending.contains_key(&fence));
            !is_pending && !waiter.is_captured
        };
        self.waiters.iter().position(is_idle)
    }

    /// Gives everything back. The context is current, unless it is broken.
    pub(crate) fn clear(&mut self) {
        self.free.clear();
        for mut waiter in self.waiters.drain(..) {
            if waiter.is_captured && !matches!(waiter.stream.is_capturing(), Ok(false)) {
                tracing::debug!("a stream that is part of an engine's capture is left");
                waiter.stream.leak();
            }
        }
    }
}

/// Lets go of fences that compute has passed: from the oldest on to the first that it has not, or all.
fn sweep(shared: &Shared, is_whole: bool) -> Result<(), CallError> {
    let mut next = 0;
    loop {
        let Some((sequence, event)) = shared.lock().fences.first_from(next) else { return Ok(()) };
        if event.has_passed()? {
            drop(event);
            shared.lock().fences.retire(sequence);
        } else if !is_whole {
            return Ok(());
        }
        next = sequence + 1;
    }
}

/// What a call's failure means for a fence at the handle `raw`.
fn refusal(error: CallError, raw: u64) -> FenceError {
    match error.code.0 {
        INVALID_HANDLE => FenceError::UnknownHandle { raw },
        code if error.code.is_sticky() => FenceError::Unhealthy(kvo_core::DeviceHealth::Dead { code }),
        code => FenceError::Refused { code },
    }
}

const INVALID_HANDLE: u32 = 400;
/// In the driver's words: the event is part of a capture.
const CAPTURED_EVENT: u32 = 907;
