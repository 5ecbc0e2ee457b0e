//! What a device's owner, its threads and its streams have in common.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use kvo_core::{DeviceInfo, Direction, OwnerId, TransferFailure};

use super::{HostDevice, core::Core, memory::DeviceMemory};

/// One device. Threads sleep on a condition of their own, and are woken by whoever changes what they wait for.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) info: DeviceInfo,
    pub(super) memory: DeviceMemory,
    pub(super) clock: DeviceClock,
    core: Mutex<Core>,
    /// By direction: there may be a piece to copy.
    lanes: [Condvar; 2],
    /// A stream may go on.
    streams: Condvar,
    /// Something may have ended, or a stream have gone on.
    ended: Condvar,
}

/// Where a device has its time from.
#[derive(Debug)]
pub(super) enum DeviceClock {
    /// The machine's, since the device was made.
    Real(Instant),
    /// Nanoseconds, as they were handed in.
    Virtual(AtomicU64),
}

impl DeviceClock {
    pub(super) fn now(&self) -> Duration {
        match self {
            Self::Real(start) => start.elapsed(),
            Self::Virtual(ns) => Duration::from_nanos(ns.load(Ordering::Relaxed)),
        }
    }

    /// Lets virtual time be `now`, unless it is later already.
    pub(super) fn advance_to(&self, now: Duration) {
        if let Self::Virtual(ns) = self {
            ns.fetch_max(u64::try_from(now.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
        }
    }

    pub(super) fn is_virtual(&self) -> bool {
        matches!(self, Self::Virtual(_))
    }
}

impl Shared {
    pub(super) fn new(info: DeviceInfo, memory: DeviceMemory, clock: DeviceClock, core: Core) -> Self {
        Self {
            info,
            memory,
            clock,
            core: Mutex::new(core),
            lanes: Default::default(),
            streams: Condvar::new(),
            ended: Condvar::new(),
        }
    }

    pub(super) fn id(&self) -> OwnerId {
        self.info.id
    }

    pub(super) fn now(&self) -> Duration {
        self.clock.now()
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Core> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn wake_lane(&self, direction: Direction) {
        self.lanes[direction as usize].notify_one();
    }

    pub(super) fn wake_streams(&self) {
        self.streams.notify_all();
    }

    pub(super) fn wake_owner(&self) {
        self.ended.notify_all();
    }

    pub(super) fn wake_all(&self) {
        self.lanes.iter().for_each(Condvar::notify_one);
        self.wake_streams();
        self.wake_owner();
    }

    pub(super) fn wait_lane<'a>(
        &self,
        direction: Direction,
        core: MutexGuard<'a, Core>,
    ) -> MutexGuard<'a, Core> {
        self.lanes[direction as usize].wait(core).unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn wait_lane_for<'a>(
        &self,
        direction: Direction,
        core: MutexGuard<'a, Core>,
        time: Duration,
    ) -> MutexGuard<'a, Core> {
        let waited = self.lanes[direction as usize].wait_timeout(core, time);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    pub(super) fn wait_streams<'a>(&self, core: MutexGuard<'a, Core>) -> MutexGuard<'a, Core> {
        self.streams.wait(core).unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until something has ended, or up to `time`, or a deadline.
    pub(super) fn wait_ended<'a>(&self, core: MutexGuard<'a, Core>, time: Duration) -> MutexGuard<'a, Core> {
        let deadline = core.queue.next_deadline();
        let to_deadline = deadline.map_or(Duration::MAX, |deadline| deadline.saturating_sub(self.now()));
        let waited = self.ended.wait_timeout(core, time.min(to_deadline));
        let mut core = waited.unwrap_or_else(PoisonError::into_inner).0;
        core.queue.on_time(self.now());
        core
    }

    /// Runs copies. Host memory comes from outside: should it panic, the device dies, and the ticket still completes.
    pub(super) fn caught(
        &self,
        copy: impl FnOnce() -> Result<(), TransferFailure>,
    ) -> Result<(), TransferFailure> {
        catch_unwind(AssertUnwindSafe(copy)).unwrap_or_else(|_| {
            self.fail(HostDevice::COPY_PANICKED);
            Err(TransferFailure::Device { code: HostDevice::COPY_PANICKED })
        })
    }

    /// Injects a fault.
    pub(super) fn fail(&self, code: u32) {
        let given_up = self.lock().fail(code, self.now());
        if given_up.is_some() {
            tracing::error!(device = %self.info.name, code, "the device failed");
            self.wake_all();
        }
    }
}
