//! Fences: events of kvo's own behind points of an engine's compute.
//!
//! A fence is a number. Until compute has passed it an event belongs to it, which is not recorded again before; then
//! the event is used for another. The engine's own events are never kept: a stream of kvo's waits for what one was
//! recorded behind at the time of the call, and an event of kvo's follows it. Each such stream has one fence at a time,
//! so that no fence waits for another.

use std::{collections::BTreeMap, sync::Arc};

use kvo_core::{ComputePoint, EventHandle, Fence, FenceError, OwnerId};

use super::driver::{CallError, Context, Event, Stream};
use crate::queue::FenceState;

/// Streams that wait for events of the engine, at most; so many fences behind events can be pending.
const WAITERS_MAX: usize = 64;

/// The fences of one device.
#[derive(Debug)]
pub(crate) struct Fences {
    device: OwnerId,
    next: u64,
    /// Those that compute was not seen to have passed.
    pending: BTreeMap<u64, Pending>,
    pending_max: usize,
    free: Vec<Event>,
    waiters: Vec<Waiter>,
}

#[derive(Debug)]
struct Pending {
    event: Event,
}

/// A stream that waits for an engine's event, and the fence behind it.
#[derive(Debug)]
struct Waiter {
    stream: Stream,
    fence: Option<u64>,
}

impl Fences {
    pub(crate) fn new(device: OwnerId, pending_max: usize) -> Self {
        Self { device, next: 0, pending: BTreeMap::new(), pending_max, free: Vec::new(), waiters: Vec::new() }
    }

    /// Makes a fence. The context is current.
    pub(crate) fn record(
        &mut self,
        context: &Arc<Context>,
        point: ComputePoint,
    ) -> Result<Fence, FenceError> {
        self.sweep(false).map_err(|error| refusal(error, 0))?;
        if self.pending.len() >= self.pending_max {
            self.sweep(true).map_err(|error| refusal(error, 0))?;
        }
        if self.pending.len() >= self.pending_max {
            return Err(FenceError::Full { pending: self.pending.len(), pending_max: self.pending_max });
        }
        let event = match self.free.pop() {
            Some(event) => event,
            None => context.event().map_err(|error| refusal(error, 0))?,
        };
        let recorded = match point {
            ComputePoint::Stream(stream) => {
                context.record_on(&event, stream).map_err(|error| refusal(error, stream.raw()))
            }
            ComputePoint::Event(handle) => self.follow(context, handle, &event),
        };
        if let Err(error) = recorded {
            self.free.push(event);
            return Err(error);
        }
        let fence = Fence::new(self.device, self.next);
        self.pending.insert(self.next, Pending { event });
        self.next += 1;
        Ok(fence)
    }

    /// Records `event` behind what the engine's event was last recorded behind.
    fn follow(
        &mut self,
        context: &Arc<Context>,
        handle: EventHandle,
        event: &Event,
    ) -> Result<(), FenceError> {
        let refused = |error| refusal(error, handle.raw());
        let waiter = self.idle_waiter(context)?;
        let Waiter { stream, fence } = &mut self.waiters[waiter];
        stream.wait_for(handle).map_err(refused)?;
        // From here on the stream is behind the engine's event, whatever comes of the rest.
        *fence = Some(self.next);
        event.record(stream).map_err(refused)
    }

    /// A stream whose last fence was passed, or a new one.
    fn idle_waiter(&mut self, context: &Arc<Context>) -> Result<usize, FenceError> {
        let is_idle = |waiter: &Waiter| waiter.fence.is_none_or(|fence| !self.pending.contains_key(&fence));
        if let Some(idle) = self.waiters.iter().position(is_idle) {
            return Ok(idle);
        }
        if self.waiters.len() < WAITERS_MAX {
            let stream = context.stream(0).map_err(|error| refusal(error, 0))?;
            self.waiters.push(Waiter { stream, fence: None });
            return Ok(self.waiters.len() - 1);
        }
        self.sweep(true).map_err(|error| refusal(error, 0))?;
        let is_idle = |waiter: &Waiter| waiter.fence.is_none_or(|fence| !self.pending.contains_key(&fence));
        let full = FenceError::Full { pending: self.waiters.len(), pending_max: WAITERS_MAX };
        self.waiters.iter().position(is_idle).ok_or(full)
    }

    /// Lets go of fences that compute has passed: from the oldest on to the first that it has not, or all.
    fn sweep(&mut self, is_whole: bool) -> Result<(), CallError> {
        let mut next = 0;
        while let Some((&sequence, pending)) = self.pending.range(next..).next() {
            if pending.event.has_passed()? {
                self.retire(sequence);
            } else if !is_whole {
                break;
            }
            next = sequence + 1;
        }
        Ok(())
    }

    fn retire(&mut self, sequence: u64) {
        if let Some(Pending { event, .. }) = self.pending.remove(&sequence) {
            self.free.push(event);
        }
    }

    /// Whether it was ever made here.
    pub(crate) fn knows(&self, fence: Fence) -> bool {
        fence.device() == self.device && fence.sequence() < self.next
    }

    /// How far compute is with it, and whether a transfer that `may_queue` waits for the rest on the device's queue.
    pub(crate) fn state(&mut self, fence: Fence, may_queue: bool) -> Result<FenceState, CallError> {
        let Some(pending) = self.pending.get(&fence.sequence()) else { return Ok(FenceState::Passed) };
        if pending.event.has_passed()? {
            self.retire(fence.sequence());
            return Ok(FenceState::Passed);
        }
        Ok(if may_queue { FenceState::OnDevice } else { FenceState::NotYet })
    }

    /// Makes a stream of kvo's own wait for a fence, as far as compute has not passed it.
    pub(crate) fn put_before(&self, fence: Fence, stream: &Stream) -> Result<(), CallError> {
        self.pending.get(&fence.sequence()).map_or(Ok(()), |pending| stream.wait_own(&pending.event))
    }

    /// Fences that compute was not seen to have passed.
    pub(crate) fn num_pending(&self) -> usize {
        self.pending.len()
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
