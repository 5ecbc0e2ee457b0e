//! What a device's owner, its threads and its compute streams know in common.

use std::{
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use crossbeam_channel::{Receiver, Sender};
use kvo_core::{DeviceHealth, Fence, OwnerId};

use crate::{ComputeError, DeviceMemory};

/// Work on the compute stream.
pub(crate) type Kernel = Box<dyn FnOnce(&DeviceMemory) + Send>;

/// One device's state, under one lock.
///
/// The lock is held for a few instructions only: never while bytes are copied, a kernel runs, or another lock is
/// taken. Sending on an unbounded channel while holding it is fine, and makes "counted" and "sent" one event.
#[derive(Debug)]
pub(crate) struct Control {
    id: OwnerId,
    name: String,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    /// Kernels put on the compute stream.
    launched: u64,
    /// Kernels that the compute stream has passed, in order.
    passed: u64,
    /// The way to the compute stream; gone once the device is shut down.
    kernels: Option<Sender<Kernel>>,
    stop: Option<Stop>,
}

/// Why a device takes no more work. The first reason stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// It failed: nothing that is open will succeed.
    Dead { code: u32 },
    /// It was shut down: what has begun is finished, the rest is not started.
    ShutDown,
}

impl Control {
    /// A healthy device and the receiving end of its compute stream.
    pub(crate) fn new(name: String) -> (Self, Receiver<Kernel>) {
        let (kernels, stream) = crossbeam_channel::unbounded();
        let state = State { launched: 0, passed: 0, kernels: Some(kernels), stop: None };
        let control = Self { id: OwnerId::unique(), name, state: Mutex::new(state), changed: Condvar::new() };
        (control, stream)
    }

    pub(crate) fn id(&self) -> OwnerId {
        self.id
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Why the device takes no more work, if it does not.
    pub(crate) fn stop(&self) -> Option<Stop> {
        self.lock().stop
    }

    pub(crate) fn health(&self) -> DeviceHealth {
        health(self.stop())
    }

    /// The device fails. Whoever waits for the compute stream wakes up.
    pub(crate) fn fail(&self, code: u32) {
        let mut state = self.lock();
        if state.stop.is_some() {
            return;
        }
        state.stop = Some(Stop::Dead { code });
        drop(state);
        self.changed.notify_all();
        tracing::error!(device = %self.name, code, "the device failed");
    }

    /// No more work comes in. The compute stream ends after what is on it.
    pub(crate) fn shut_down(&self) {
        let mut state = self.lock();
        state.stop.get_or_insert(Stop::ShutDown);
        state.kernels = None;
        drop(state);
        self.changed.notify_all();
    }

    /// Puts a kernel on the compute stream.
    pub(crate) fn launch(&self, kernel: Kernel) -> Result<(), ComputeError> {
        let mut state = self.lock();
        let unhealthy = ComputeError::Unhealthy(health(state.stop));
        if state.stop.is_some() {
            return Err(unhealthy);
        }
        let sent = state.kernels.as_ref().is_some_and(|kernels| kernels.send(kernel).is_ok());
        assert!(sent, "the compute stream of a device that was not stopped is open");
        state.launched += 1;
        Ok(())
    }

    /// A fence behind everything that was launched.
    pub(crate) fn record_fence(&self) -> Fence {
        Fence::new(self.id, self.lock().launched)
    }

    /// Whether that much was ever launched.
    pub(crate) fn has_recorded(&self, fence: Fence) -> bool {
        fence.sequence() <= self.lock().launched
    }

    /// The compute stream has passed one more kernel.
    pub(crate) fn pass(&self) {
        self.lock().passed += 1;
        self.changed.notify_all();
    }

    /// Waits until the compute stream has passed `fence`, or the device was stopped: then says why.
    pub(crate) fn wait_for(&self, fence: Fence) -> Result<(), Stop> {
        let mut state = self.lock();
        loop {
            match state.stop {
                Some(stop) => return Err(stop),
                None if state.passed >= fence.sequence() => return Ok(()),
                None => state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    /// Waits up to `timeout` until the compute stream has passed everything that was launched before the call.
    pub(crate) fn synchronize(&self, timeout: Duration) -> Result<(), ComputeError> {
        let deadline = Instant::now().checked_add(timeout);
        let mut state = self.lock();
        let launched = state.launched;
        loop {
            if let Some(Stop::Dead { code }) = state.stop {
                return Err(ComputeError::Unhealthy(DeviceHealth::Dead { code }));
            }
            if state.passed >= launched {
                return Ok(());
            }
            let left =
                deadline.map_or(timeout, |deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                return Err(ComputeError::TimedOut { waited: timeout });
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Calls `end` with the code of a dead device, or with `None`. The device cannot die before `end` returns: what
    /// it makes known as good was good while the device lived.
    pub(crate) fn decide<R>(&self, end: impl FnOnce(Option<u32>) -> R) -> R {
        let state = self.lock();
        end(match state.stop {
            Some(Stop::Dead { code }) => Some(code),
            Some(Stop::ShutDown) | None => None,
        })
    }
}

fn health(stop: Option<Stop>) -> DeviceHealth {
    match stop {
        None => DeviceHealth::Healthy,
        Some(Stop::Dead { code }) => DeviceHealth::Dead { code },
        Some(Stop::ShutDown) => DeviceHealth::ShutDown,
    }
}
