//! What a device's owner and its thread know in common.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};
use kvo_core::{AttachError, CopyOp, DeviceHealth, DeviceSpan, RegionId, Ticket};

use super::{
    codes::DriverCode,
    driver::{Context, Event},
    fences::{Fences, Recorder},
    issue::SlotCopy,
    paths::PathStats,
    regions::Region,
};
use crate::queue::TransferQueue;

/// One device's state, under one lock, with a bell on each side.
///
/// The lock is held for bookkeeping alone, and the driver is not called under it: any call may wait for a lock of the
/// driver's, which another thread of the process has for as long as it takes to allocate. So neither of the two waits for
/// a call of the other, but the owner for his own in `attach`, `record_fence` and `order_after`. An event that is to be
/// asked, or waited for, is shared out from under the lock, and one that is shared is not recorded again.
pub(crate) struct Shared {
    pub(crate) context: Arc<Context>,
    state: Mutex<State>,
    /// The owner's until the thread ends; taken before the state's lock.
    recorder: Mutex<Recorder>,
    start: Instant,
    /// The code with which kvo gave the device up, though its driver works on; 0 while it did not.
    given_up: AtomicU32,
    /// Rung for the device's thread: there is something to do.
    pub(crate) work: Bell,
    /// Rung for the owner: something has ended.
    pub(crate) ended: Bell,
}

/// See [`Shared`].
pub(crate) struct State {
    pub(crate) queue: TransferQueue,
    /// By id; `None` once forgotten.
    regions: Vec<Option<Region>>,
    pub(crate) fences: Fences,
    /// Events behind the copies up to a mark, as long as these are on the device's queue.
    pub(crate) marks: HashMap<(Ticket, u32), Arc<Event>>,
    pub(crate) paths: PathStats,
}

impl Shared {
    pub(crate) fn new(
        context: Arc<Context>,
        queue: TransferQueue,
        fences: Fences,
        recorder: Recorder,
        paths: PathStats,
    ) -> Self {
        let state = State { queue, regions: Vec::new(), fences, marks: HashMap::new(), paths };
        Self {
            context,
            state: Mutex::new(state),
            recorder: Mutex::new(recorder),
            start: Instant::now(),
            given_up: AtomicU32::new(0),
            work: Bell::default(),
            ended: Bell::default(),
        }
    }

    /// From now on the device is dead, by a decision of kvo's: the driver is still asked when copies end.
    pub(crate) fn give_up(&self, why: &'static str, code: DriverCode) {
        if self.given_up.compare_exchange(0, code.0, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            tracing::error!(why, %code, "the device is given up");
        }
    }

    /// What the device is dead of: an error that broke its context, or a decision of kvo's.
    pub(crate) fn dead_of(&self) -> Option<DriverCode> {
        let given_up = self.given_up.load(Ordering::Acquire);
        self.context.broken().or((given_up != 0).then_some(DriverCode(given_up)))
    }

    /// The state, in which the device is dead if it is [dead of](Self::dead_of) something, and nothing is late that is
    /// not reported.
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(code) = self.dead_of()
            && !matches!(state.queue.health(), DeviceHealth::Dead { .. })
        {
            state.queue.die(code.0, self.now());
            self.ended.ring();
            self.work.ring();
        }
        state.queue.on_time(self.now());
        state
    }

    /// What the owner makes fences with.
    pub(crate) fn recorder(&self) -> MutexGuard<'_, Recorder> {
        self.recorder.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives fences and marks back, of which there are no more. For the device's thread, whose context is current: on the
    /// owner's it may not be, and then the driver would keep them.
    pub(crate) fn clear(&self) {
        self.recorder().clear();
        let (events, marks) = {
            let mut state = self.lock();
            (state.fences.take_events(), std::mem::take(&mut state.marks))
        };
        drop((events, marks));
    }

    /// Time since the device was made.
    pub(crate) fn now(&self) -> Duration {
        self.start.elapsed()
    }
}

impl Shared {
    /// Waits until something is so, for at most that long. The owner's thread only.
    pub(crate) fn wait_until(&self, timeout: Duration, is_so: impl Fn(&State) -> bool) {
        let deadline = Instant::now().checked_add(timeout);
        loop {
            let next = {
                let state = self.lock();
                if is_so(&state) {
                    return;
                }
                state.queue.next_deadline()
            };
            let left = deadline.map_or(FAR, |deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                return;
            }
            // The device's thread may be stuck in the driver, and then nobody else sees a deadline pass.
            let late = next.map_or(FAR, |next| next.saturating_sub(self.now()) + Duration::from_micros(1));
            self.ended.sleep_for(left.min(late));
        }
    }
}

impl State {
    pub(crate) fn healthy(&self) -> Result<(), DeviceHealth> {
        match self.queue.health() {
            DeviceHealth::Healthy => Ok(()),
            health => Err(health),
        }
    }

    /// The attached region that shares bytes with a span.
    pub(crate) fn overlapping(&self, span: DeviceSpan) -> Option<RegionId> {
        let overlaps = |region: &Region| region.overlaps(span.address(), span.bytes());
        let found = self.regions.iter().position(|region| region.as_ref().is_some_and(overlaps))?;
        u32::try_from(found).ok().map(RegionId)
    }

    pub(crate) fn add_region(&mut self, region: Region) -> RegionId {
        let bytes = region.bytes();
        self.regions.push(Some(region));
        self.queue.add_region(bytes)
    }

    pub(crate) fn remove_region(&mut self, region: RegionId) -> Result<(), AttachError> {
        self.queue.remove_region(region)?;
        self.regions[region.0 as usize] = None;
        Ok(())
    }

    /// A copy of a transfer, cut where allocations of the device end.
    pub(crate) fn place(&self, op: CopyOp) -> impl Iterator<Item = SlotCopy> {
        let region = self.regions[op.region.0 as usize].as_ref();
        region.expect("a region with transfers stays attached").place(op)
    }
}

/// Longer than anybody waits.
const FAR: Duration = Duration::from_hours(1);

/// Wakes a thread that sleeps, or the next time that it would.
pub(crate) struct Bell {
    ring: Sender<()>,
    rung: Receiver<()>,
}

impl Default for Bell {
    fn default() -> Self {
        let (ring, rung) = crossbeam_channel::bounded(1);
        Self { ring, rung }
    }
}

impl Bell {
    pub(crate) fn ring(&self) {
        // It may be rung already, which is as good.
        let _ = self.ring.try_send(());
    }

    /// Sleeps until it is rung.
    pub(crate) fn sleep(&self) {
        let _ = self.rung.recv();
    }

    /// Sleeps until it is rung, for at most that long. Says whether it was.
    pub(crate) fn sleep_for(&self, timeout: Duration) -> bool {
        self.rung.recv_timeout(timeout) != Err(RecvTimeoutError::Timeout)
    }
}
