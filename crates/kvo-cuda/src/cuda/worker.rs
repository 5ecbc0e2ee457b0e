//! The thread of a device: puts copies on its streams, and sees when they have ended.

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

use kvo_core::{CopyOp, DeviceHealth, Direction, SlotId, TransferClass, TransferFailure};

use super::{
    driver::{CallError, Context, Event, Stream},
    host_pool::{DeviceHost, HostMode},
    issue::{Claims, HostCopy, Lists, SlotCopy},
    numa::Near,
    paths::Paths,
    state::{Shared, State},
};
use crate::queue::{FenceState, Piece};

const DIRECTIONS: [Direction; 2] = [Direction::Load, Direction::Store];

/// How long the thread asks again and again after something happened: longer than a small copy takes.
const SPIN: Duration = Duration::from_micros(20);
/// How long it then lets others run in between.
const YIELD: Duration = Duration::from_micros(100);
/// How long it then sleeps at a time. A window of copies takes longer, so the device does not run dry.
const NAP: Duration = Duration::from_micros(100);
/// How long at a time it sleeps at most when it waits for the end of copies of a dead device.
const NAP_MAX: Duration = Duration::from_millis(5);

/// A piece on the device's queue.
struct OnDevice {
    piece: Piece,
    event: Arc<Event>,
    /// Those that it has claimed.
    slots: Vec<SlotId>,
    /// Those that its copies use.
    lists: Lists,
    /// Why its bytes are not to be trusted, if a part of it was refused.
    failure: Option<TransferFailure>,
}

/// How a rest ended.
enum Rest {
    /// It did not last, and things are as they were, as far as is known.
    Short,
    /// There was nothing to do before.
    Long,
    /// There will be nothing to do any more.
    Over,
}

/// See the module's head. It owns all that the device may still touch.
pub(crate) struct Worker {
    shared: Arc<Shared>,
    /// By direction: pieces in the order of the stream.
    on_device: [VecDeque<OnDevice>; 2],
    claims: Claims,
    events: Vec<Arc<Event>>,
    streams: [Stream; 2],
    paths: Paths,
    near: Option<Near>,
    /// Dropped last: it unregisters the memory.
    host: DeviceHost,
    ops: Vec<CopyOp>,
    slot_copies: Vec<SlotCopy>,
    copies: Vec<HostCopy>,
    spare_slots: Vec<Vec<SlotId>>,
    /// Fences, and the events that are asked for them.
    asked: Vec<(u64, Arc<Event>)>,
}

impl Worker {
    pub(crate) fn new(
        shared: Arc<Shared>,
        streams: [Stream; 2],
        host: DeviceHost,
        paths: Paths,
        near: Option<Near>,
    ) -> Self {
        Self {
            shared,
            on_device: [VecDeque::new(), VecDeque::new()],
            claims: Claims::new(Arc::clone(host.memory())),
            events: Vec::new(),
            streams,
            paths,
            near,
            host,
            ops: Vec::new(),
            slot_copies: Vec::new(),
            copies: Vec::new(),
            spare_slots: Vec::new(),
            asked: Vec::new(),
        }
    }

    /// Runs until the device is shut down and has ended all, or is dead and has ended what it still does. Says whether
    /// the device is done with what the worker owns, which otherwise must not be dropped.
    pub(crate) fn run(&mut self) -> bool {
        if let Some(near) = &self.near {
            near.bind_thread();
        }
        if let Err(CallError { call, code }) = self.context().bind() {
            self.shared.give_up(call, code);
        }
        let mut last = Instant::now();
        while self.shared.dead_of().is_none() {
            if !self.turn() {
                match self.rest(last.elapsed()) {
                    Rest::Over => return true,
                    Rest::Short => continue,
                    Rest::Long => {}
                }
            }
            last = Instant::now();
        }
        self.settle()
    }

    /// After the device's death: waits until the device has done what is on its streams, as far as the driver still
    /// says so, and gives all of it back. Says whether it has.
    pub(crate) fn settle(&mut self) -> bool {
        // What is open fails before.
        drop(self.shared.lock());
        let mut nap = NAP;
        while !self.streams.iter().all(|stream| matches!(stream.has_ended(), Ok(true))) {
            if self.context().broken().is_some() {
                return self.is_idle() && self.claims.is_empty();
            }
            std::thread::sleep(nap);
            nap = (2 * nap).min(NAP_MAX);
        }
        self.release();
        true
    }

    /// The device has done all that there was, also what no event is behind.
    fn release(&mut self) {
        self.on_device = Default::default();
        self.paths.free_all();
        let mut state = self.shared.lock();
        // Before anybody can learn that it is over.
        self.claims.clear();
        state.queue.end_all();
        drop(state);
        self.shared.ended.ring();
    }

    fn context(&self) -> &Arc<Context> {
        &self.shared.context
    }

    fn is_idle(&self) -> bool {
        self.on_device.iter().all(VecDeque::is_empty)
    }

    /// Sees what has ended, and puts on the device what there is room for. Says whether there was either.
    fn turn(&mut self) -> bool {
        let mut has_moved = false;
        for direction in DIRECTIONS {
            has_moved |= self.reap(direction);
        }
        // One piece a direction in turn, so that neither waits for the calls of the other.
        loop {
            let gave = DIRECTIONS.map(|direction| self.give(direction));
            has_moved |= gave != [false; 2];
            if gave == [false; 2] || self.shared.dead_of().is_some() {
                return has_moved;
            }
            for direction in DIRECTIONS {
                self.reap(direction);
            }
        }
    }

    /// Ends the pieces of a direction that the device has done. Errors break the context, which ends the thread.
    fn reap(&mut self, direction: Direction) -> bool {
        let mut has_moved = false;
        while let Some(first) = self.on_device[direction as usize].front() {
            if !matches!(first.event.has_passed(), Ok(true)) {
                break;
            }
            let done = self.on_device[direction as usize].pop_front().expect("there is a first");
            self.end(done);
            has_moved = true;
        }
        has_moved
    }

    fn end(&mut self, done: OnDevice) {
        let OnDevice { piece, event, mut slots, lists, failure } = done;
        self.paths.free(lists);
        let now = self.shared.now();
        let mut state = self.shared.lock();
        for mark in piece.marks() {
            state.marks.remove(&(piece.ticket(), mark));
        }
        // Before anybody can learn that the transfer is over.
        self.claims.give_back(piece.ticket(), &slots);
        state.queue.end(piece, failure.map_or(Ok(()), Err), now);
        drop(state);
        self.shared.ended.ring();
        slots.clear();
        self.spare_slots.push(slots);
        self.events.push(event);
    }

    /// Puts one piece of a direction on the device, if there is room and one that may go.
    fn give(&mut self, direction: Direction) -> bool {
        self.ask_fences(direction);
        let shared = Arc::clone(&self.shared);
        let mut state = shared.lock();
        let is_registered = self.host.mode() == HostMode::Registered;
        let Some(piece) = next(&mut state, direction, is_registered) else { return false };
        state.queue.copies(&piece, &mut self.ops);
        self.slot_copies.extend(self.ops.drain(..).flat_map(|op| state.place(op)));
        let wait_for = piece.wait_for().and_then(|fence| state.fences.event_of(fence));
        let span = state.queue.span(&piece);
        drop(state);
        let stream = &self.streams[direction as usize];
        let waits = wait_for.map_or(Ok(()), |event| stream.wait_own(&event));
        span.in_scope(|| self.put(direction, piece, waits));
        self.slot_copies.clear();
        self.copies.clear();
        true
    }

    /// Lets go of the fences that the next transfers of a direction wait for, as far as compute has passed them. An error
    /// breaks the context, and then nothing is given out any more.
    fn ask_fences(&mut self, direction: Direction) {
        let mut state = self.shared.lock();
        let State { queue, fences, .. } = &mut *state;
        queue.next_fences(direction, |fence| {
            self.asked.extend(fences.event_of(fence).map(|event| (fence.sequence(), event)));
        });
        drop(state);
        for (sequence, event) in self.asked.drain(..) {
            if matches!(event.has_passed(), Ok(true)) {
                drop(event);
                self.shared.lock().fences.retire(sequence);
            }
        }
    }

    fn put(&mut self, direction: Direction, piece: Piece, waits: Result<(), CallError>) {
        let mut slots = self.spare_slots.pop().unwrap_or_default();
        // Before anything is put there: the end of copies that no event is behind cannot be known.
        let event = match self.event() {
            Ok(event) => event,
            Err(error) => return self.refuse(piece, slots, refused(&error)),
        };
        let taken =
            self.claims.take(piece.ticket(), direction, &self.slot_copies, &mut self.copies, &mut slots);
        if let Err(busy) = taken {
            self.events.push(event);
            return self.refuse(piece, slots, busy.into());
        }
        let stream = &self.streams[direction as usize];
        // Without the wait no copy is put there; the event shows when those are over that were.
        let (lists, put) = match waits {
            Ok(()) => self.paths.put(&self.shared.context, &self.host, direction, &self.copies, stream),
            Err(error) => (Lists::default(), Err(error)),
        };
        let failure = put.err().map(|error| {
            tracing::warn!(ticket = piece.ticket().0, %error, copies = self.copies.len(), "copies were refused");
            refused(&error)
        });
        match event.record(stream) {
            Ok(()) => self.keep(direction, OnDevice { piece, event, slots, lists, failure }),
            // No event says when these copies end: the device is given up, and its streams are asked.
            Err(CallError { call, code }) => self.shared.give_up(call, code),
        }
    }

    fn keep(&mut self, direction: Direction, on_device: OnDevice) {
        let shared = Arc::clone(&self.shared);
        let mut state = shared.lock();
        let OnDevice { piece, event, failure, .. } = &on_device;
        if let Some(failure) = failure {
            // Before the next piece is given out, which would not wait for the fence either.
            state.queue.fail(piece, failure.clone());
        }
        for mark in piece.marks() {
            state.marks.insert((piece.ticket(), mark), Arc::clone(event));
        }
        if let Some(news) = self.paths.news() {
            state.paths.clone_from(news);
        }
        drop(state);
        self.on_device[direction as usize].push_back(on_device);
    }

    /// Ends a piece of which nothing was put on the device.
    fn refuse(&mut self, piece: Piece, slots: Vec<SlotId>, failure: TransferFailure) {
        let now = self.shared.now();
        self.shared.lock().queue.end(piece, Err(failure), now);
        self.shared.ended.ring();
        self.spare_slots.push(slots);
    }

    /// An event that nobody else has.
    fn event(&mut self) -> Result<Arc<Event>, CallError> {
        while let Some(event) = self.events.pop() {
            if Arc::strong_count(&event) == 1 {
                return Ok(event);
            }
        }
        self.context().event().map(Arc::new)
    }

    /// Waits for something to happen: by asking on, by letting others run, or asleep.
    fn rest(&mut self, since: Duration) -> Rest {
        let (num_open, health, deadline) = {
            let state = self.shared.lock();
            (state.queue.num_open(), state.queue.health(), state.queue.next_deadline())
        };
        if self.is_idle() && num_open == 0 {
            if health != DeviceHealth::Healthy {
                return Rest::Over;
            }
            self.shared.work.sleep();
            return Rest::Long;
        }
        if since < SPIN {
            std::hint::spin_loop();
        } else if since < YIELD {
            std::thread::yield_now();
        } else {
            let left = deadline.map_or(NAP, |deadline| deadline.saturating_sub(self.shared.now()));
            self.shared.work.sleep_for(NAP.min(left));
        }
        Rest::Short
    }
}

/// The piece of a direction that goes next, if there is room for one. A fence that was not let go of is not passed, as
/// far as is known.
///
/// A load that a running step waits for is put on the device's queue before compute has passed its fence, with a wait
/// in front: so the engine can order its next kernels behind it at once. Others are not, as they would hold up what is
/// more urgent behind them in the same queue; and none is where a copy keeps the thread until it is over.
fn next(state: &mut State, direction: Direction, is_registered: bool) -> Option<Piece> {
    let State { queue, fences, .. } = state;
    queue.next_piece(direction, |fence, class| {
        let may_queue = is_registered && class == TransferClass::Demand;
        match fences.event_of(fence) {
            None => FenceState::Passed,
            Some(_) if may_queue => FenceState::OnDevice,
            Some(_) => FenceState::NotYet,
        }
    })
}

fn refused(error: &CallError) -> TransferFailure {
    TransferFailure::Refused { code: error.code.0 }
}
