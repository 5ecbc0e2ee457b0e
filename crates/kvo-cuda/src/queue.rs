//! The transfers of one device, from submission to completion: a state machine without thread, clock or I/O.
//!
//! ```text
//!   submit ─▶ queued, by class ─ next_piece ─▶ on the device ─ end ─▶ done ─▶ take_done
//!                 │                                 │
//!                 └──── on_time, die, shut_down ────┴─▶ failed ─▶ take_done
//!                                                       (held) ─ end of its last piece ─▶ take_released
//! ```
//!
//! A backend, which owns the threads and the driver, tells what happened and asks what to do next:
//! - [`submit`](TransferQueue::submit) checks a transfer and queues it.
//! - [`next_piece`](TransferQueue::next_piece) gives out as many bytes as a direction's window has room for, the most
//!   urgent first. A [`Piece`] is some copies of one transfer; what is not given out yet can still be overtaken.
//! - Each piece is given back to [`end`](TransferQueue::end) once the device does not touch its bytes any more.
//! - Time comes in as a [`Duration`] since any start that is the backend's.
//!
//! A ticket is reported exactly once. What the device still had of a transfer that was reported stays known, as held,
//! until its pieces have ended. In steady state nothing is allocated.

mod check;
mod entry;
mod stats;

#[cfg(test)]
mod tests;

use std::{
    collections::{HashMap, VecDeque},
    ops::Range,
    time::Duration,
};

use kvo_core::{
    AttachError, CopyOp, DeviceHealth, Direction, Fence, FenceError, RegionId, SlotId, SubmitError,
    SubmitErrorReason, Ticket, Transfer, TransferClass, TransferCompletion, TransferFailure,
};
use slab::Slab;

pub use self::stats::DeviceStats;
use self::{
    check::Checker,
    entry::{Cursor, Entry},
};

/// How a [`TransferQueue`] is made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueueOptions {
    /// Transfers that may be submitted and not yet taken as done; at least 1.
    pub(crate) inflight_max: usize,
    /// Bytes of a direction that may be on the device at once; a piece that is larger goes alone.
    pub(crate) window_bytes: u64,
    /// Bytes of a piece, at least 1. Only a copy that is longer than this is cut.
    pub(crate) quantum_bytes: u64,
    /// Copies of a piece, at least 1.
    pub(crate) piece_ops_max: usize,
    /// Slots of the host memory.
    pub(crate) num_slots: u32,
    /// Bytes of a slot.
    pub(crate) slot_bytes: u64,
}

impl QueueOptions {
    /// The defaults over so many slots: 64 transfers in flight, windows of 32 MiB, pieces of 8 MiB or 1024 copies.
    pub(crate) fn new(num_slots: u32, slot_bytes: u64) -> Self {
        Self {
            inflight_max: 64,
            window_bytes: 32 << 20,
            quantum_bytes: 8 << 20,
            piece_ops_max: 1024,
            num_slots,
            slot_bytes,
        }
    }
}

/// How far compute is with a fence, as the backend knows it at the moment of the question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FenceState {
    /// Compute has passed it.
    Passed,
    /// Not known to be passed, but the device's own queue will wait for it if it is told to.
    #[cfg_attr(
        not(any(test, feature = "cuda")),
        expect(dead_code, reason = "for a device that is driven by a driver")
    )]
    OnDevice,
    /// Not known to be passed: the transfer stays queued, and those of its class behind it.
    NotYet,
}

/// How far a transfer is with the copies up to a mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MarkState {
    /// Some were not given out yet.
    Queued,
    /// All were given out, some did not end.
    Issued,
    /// All ended.
    Copied,
    /// The transfer was reported.
    Over,
}

/// Some copies of one transfer, given out to the backend, which gives it back when the device is done with it.
#[derive(Debug)]
#[must_use = "a piece that does not end holds its slots and blocks for ever"]
pub(crate) struct Piece {
    index: usize,
    ticket: Ticket,
    class: TransferClass,
    /// The part of the transfer it belongs to: of the copies before the first mark, of those before the second, ...
    part: usize,
    start: Cursor,
    end: Cursor,
    bytes: u64,
    wait_for: Option<Fence>,
    marks: Range<u32>,
}

impl Piece {
    /// The transfer.
    pub(crate) fn ticket(&self) -> Ticket {
        self.ticket
    }

    /// Its class.
    pub(crate) fn class(&self) -> TransferClass {
        self.class
    }

    /// How many bytes it copies.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The fence that the device's own queue waits for before this piece; only at the first piece of a transfer.
    #[cfg_attr(
        not(any(test, feature = "cuda")),
        expect(dead_code, reason = "for a device that is driven by a driver")
    )]
    pub(crate) fn wait_for(&self) -> Option<Fence> {
        self.wait_for
    }

    /// The marks up to which all copies are given out with this piece, and were not before.
    pub(crate) fn marks(&self) -> Range<u32> {
        self.marks.clone()
    }

    /// Whether it is the first of its transfer.
    pub(crate) fn is_first(&self) -> bool {
        self.start == Cursor::default()
    }

    /// The part of its transfer, which is the number of marks before it.
    pub(crate) fn part(&self) -> usize {
        self.part
    }
}

/// The transfers of one device. See the module's head.
#[derive(Debug)]
pub(crate) struct TransferQueue {
    options: QueueOptions,
    checker: Checker,
    entries: Slab<Entry>,
    index_of: HashMap<Ticket, usize>,
    /// By class: transfers with copies that were not given out, in the order of submission. Some may be over.
    queued: [VecDeque<(Ticket, usize)>; 4],
    /// By direction: bytes on the device.
    on_device: [u64; 2],
    next_ticket: u64,
    /// Submitted and not reported.
    num_open: usize,
    done: VecDeque<TransferCompletion>,
    released: VecDeque<Ticket>,
    /// No deadline is earlier.
    earliest: Option<Duration>,
    health: DeviceHealth,
    stats: DeviceStats,
    /// Of transfers that are over, to be used again.
    spare_counts: Vec<Vec<u32>>,
}

impl TransferQueue {
    /// A queue without regions.
    pub(crate) fn new(options: QueueOptions) -> Self {
        let QueueOptions { quantum_bytes, piece_ops_max, inflight_max, .. } = options;
        assert!(quantum_bytes > 0 && piece_ops_max > 0 && inflight_max > 0, "{options:?}");
        Self {
            options,
            checker: Checker::new(options.num_slots, options.slot_bytes),
            entries: Slab::new(),
            index_of: HashMap::new(),
            queued: Default::default(),
            on_device: [0; 2],
            next_ticket: 0,
            num_open: 0,
            done: VecDeque::new(),
            released: VecDeque::new(),
            earliest: None,
            health: DeviceHealth::Healthy,
            stats: DeviceStats::default(),
            spare_counts: Vec::new(),
        }
    }

    /// Lets transfers name a region of so many bytes. The backend has checked where it is.
    pub(crate) fn add_region(&mut self, bytes: u64) -> RegionId {
        self.checker.add_region(bytes)
    }

    /// Forgets a region.
    ///
    /// # Errors
    /// [`AttachError::UnknownRegion`], or [`AttachError::InUse`] while transfers of it are open or held.
    pub(crate) fn remove_region(&mut self, region: RegionId) -> Result<(), AttachError> {
        if !self.checker.has_region(region) {
            return Err(AttachError::UnknownRegion { region });
        }
        match self.users_of(|op| op.region == region) {
            0 => self.checker.remove_region(region),
            inflight => return Err(AttachError::InUse { region, inflight }),
        }
        Ok(())
    }

    /// How many transfers that are open or held name the slot.
    #[cfg_attr(not(test), expect(dead_code, reason = "for a device that is driven by a driver"))]
    pub(crate) fn slot_users(&self, slot: SlotId) -> usize {
        self.users_of(|op| op.slot == slot)
    }

    fn users_of(&self, names: impl Fn(&CopyOp) -> bool) -> usize {
        self.entries.iter().filter(|(_, entry)| entry.ops.iter().any(&names)).count()
    }

    /// Queues a transfer whose fence the backend knows.
    ///
    /// # Errors
    /// [`SubmitError`] hands the transfer back; nothing has changed.
    pub(crate) fn submit(&mut self, transfer: Transfer, now: Duration) -> Result<Ticket, SubmitError> {
        let size = match self.check(&transfer) {
            Ok(size) => size,
            Err(reason) => return Err(SubmitError { transfer, reason }),
        };
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        let class = transfer.class;
        let expires = transfer.deadline.and_then(|after| now.checked_add(after));
        self.earliest = [self.earliest, expires].into_iter().flatten().min();
        let counts = self.spare_counts.pop().unwrap_or_default();
        let index = self.entries.insert(Entry::new(ticket, transfer, size, now, counts));
        self.index_of.insert(ticket, index);
        self.queue_up(class, ticket, index);
        self.num_open += 1;
        Ok(ticket)
    }

    /// Puts a transfer behind the others of its class. Places of those that are over go when they come to the front; behind
    /// one that waits, which may be for ever, they go here, once they are as many as there may be transfers.
    fn queue_up(&mut self, class: TransferClass, ticket: Ticket, index: usize) {
        let (queue, entries) = (&mut self.queued[class as usize], &self.entries);
        if queue.len() >= self.options.inflight_max.saturating_mul(2) {
            queue.retain(|place| is_wanted(entries, *place));
        }
        queue.push_back((ticket, index));
    }

    fn check(&mut self, transfer: &Transfer) -> Result<check::Size, SubmitErrorReason> {
        if self.health != DeviceHealth::Healthy {
            return Err(SubmitErrorReason::Unhealthy(self.health));
        }
        let (inflight, inflight_max) = (self.inflight(), self.options.inflight_max);
        if inflight >= inflight_max {
            return Err(SubmitErrorReason::Full { inflight, inflight_max });
        }
        self.checker.check(transfer)
    }

    /// Gives out copies of the most urgent transfer of a direction, as far as its window has room. `state` is asked
    /// for the fence of a transfer of which nothing was given out; one that is not passed lets a less urgent class go
    /// first, but none behind it in its own.
    pub(crate) fn next_piece(
        &mut self,
        direction: Direction,
        mut state: impl FnMut(Fence, TransferClass) -> FenceState,
    ) -> Option<Piece> {
        for class in TransferClass::ALL.into_iter().filter(|class| class.direction() == direction) {
            let Some(index) = self.head(class) else { continue };
            let entry = &self.entries[index];
            let state = if entry.has_begun() { FenceState::Passed } else { state(entry.after, class) };
            let wait_for = match state {
                FenceState::Passed => None,
                FenceState::OnDevice => Some(entry.after),
                FenceState::NotYet => continue,
            };
            let (end, bytes) = entry.cut(self.options.quantum_bytes, self.options.piece_ops_max);
            let used = &mut self.on_device[direction as usize];
            if *used > 0 && used.saturating_add(bytes) > self.options.window_bytes {
                return None;
            }
            *used += bytes;
            return Some(self.give_out(index, end, bytes, wait_for));
        }
        None
    }

    /// Names the fences that [`next_piece`](Self::next_piece) would ask for, one a class at most.
    #[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "for a device that is driven by a driver"))]
    pub(crate) fn next_fences(&mut self, direction: Direction, mut name: impl FnMut(Fence)) {
        for class in TransferClass::ALL.into_iter().filter(|class| class.direction() == direction) {
            let head = self.head(class).map(|index| &self.entries[index]);
            if let Some(entry) = head.filter(|entry| !entry.has_begun()) {
                name(entry.after);
            }
        }
    }

    /// The first transfer of a class that has something to give out.
    fn head(&mut self, class: TransferClass) -> Option<usize> {
        let queue = &mut self.queued[class as usize];
        while let Some(&place) = queue.front() {
            if is_wanted(&self.entries, place) {
                return Some(place.1);
            }
            queue.pop_front();
        }
        None
    }

    fn give_out(&mut self, index: usize, end: Cursor, bytes: u64, wait_for: Option<Fence>) -> Piece {
        let entry = &mut self.entries[index];
        let (part, start, ticket, class) = (entry.part(), entry.cursor, entry.ticket, entry.class);
        let marks_before = entry.marks_issued();
        entry.advance(end, part);
        let marks = marks_before..entry.marks_issued();
        if entry.is_issued() {
            self.queued[class as usize].pop_front();
        }
        Piece { index, ticket, class, part, start, end, bytes, wait_for, marks }
    }

    /// Adds the copies of a piece to the end of `into`, each with the bytes of this piece only.
    pub(crate) fn copies(&self, piece: &Piece, into: &mut Vec<CopyOp>) {
        self.entries[piece.index].copies(piece.start, piece.end, into);
    }

    /// Adds all copies of the transfer that a piece is of to the end of `into`.
    pub(crate) fn all_copies(&self, piece: &Piece, into: &mut Vec<CopyOp>) {
        into.extend_from_slice(&self.entries[piece.index].ops);
    }

    /// Whether the bytes of a piece are still of use to anyone. A backend that can leave the rest of it out, does.
    pub(crate) fn is_wanted(&self, piece: &Piece) -> bool {
        self.entries[piece.index].is_wanted()
    }

    /// The span of a transfer that has a piece on the device.
    pub(crate) fn span(&self, piece: &Piece) -> tracing::Span {
        self.entries[piece.index].span.clone()
    }

    /// The device does not touch the bytes of a piece any more; a failed one fails its transfer. Pieces may end in any
    /// order.
    #[expect(clippy::needless_pass_by_value, reason = "a piece ends once, so it is used up")]
    pub(crate) fn end(&mut self, piece: Piece, result: Result<(), TransferFailure>, now: Duration) {
        let Piece { index, class, part, bytes, .. } = piece;
        self.on_device[class.direction() as usize] -= bytes;
        let entry = &mut self.entries[index];
        entry.end(part);
        if let Err(failure) = result {
            entry.failure.get_or_insert(failure);
        }
        if entry.num_on_device > 0 {
            return;
        }
        if entry.is_reported {
            self.released.push_back(entry.ticket);
            self.forget(index);
        } else if entry.is_issued() || entry.failure.is_some() {
            self.report(index, now);
        }
    }

    /// A part of a piece was not put on the device, and nothing more of its transfer is given out. The piece still
    /// ends, once the device is done with what there is of it.
    pub(crate) fn fail(&mut self, piece: &Piece, failure: TransferFailure) {
        self.entries[piece.index].failure.get_or_insert(failure);
    }

    /// How far a transfer is with the copies up to one of its marks.
    ///
    /// # Errors
    /// [`FenceError::UnknownMark`].
    pub(crate) fn mark(&self, ticket: Ticket, mark: u32) -> Result<MarkState, FenceError> {
        let unknown = FenceError::UnknownMark { ticket, mark };
        match self.index_of.get(&ticket).map(|index| &self.entries[*index]) {
            Some(entry) => entry.mark(mark).ok_or(unknown),
            None if ticket.0 < self.next_ticket => Ok(MarkState::Over),
            None => Err(unknown),
        }
    }

    /// Whether a transfer was reported and the device still has something of it.
    pub(crate) fn is_held(&self, ticket: Ticket) -> bool {
        self.index_of.get(&ticket).is_some_and(|index| self.entries[*index].is_reported)
    }

    /// Fails what has not ended by its deadline; what the device still has is held.
    pub(crate) fn on_time(&mut self, now: Duration) {
        if self.earliest.is_none_or(|earliest| now < earliest) {
            return;
        }
        self.earliest = None;
        let late = |entry: &Entry| entry.expires().is_some_and(|expires| expires <= now);
        self.fail_those(late, now, |entry| TransferFailure::TimedOut {
            after: entry.deadline.expect("only what has a deadline is late"),
        });
        let open = self.entries.iter().filter(|(_, entry)| !entry.is_reported);
        self.earliest = open.filter_map(|(_, entry)| entry.expires()).min();
    }

    /// When [`on_time`](Self::on_time) may have something to do next.
    pub(crate) fn next_deadline(&self) -> Option<Duration> {
        self.earliest
    }

    /// The device has failed: every open ticket fails, those of which it still has something as held.
    pub(crate) fn die(&mut self, code: u32, now: Duration) {
        if !matches!(self.health, DeviceHealth::Dead { .. }) {
            self.health = DeviceHealth::Dead { code };
            self.fail_those(|_| true, now, |_| TransferFailure::Device { code });
        }
    }

    /// No more is taken. Transfers of which nothing was given out fail, the others go on.
    pub(crate) fn shut_down(&mut self, now: Duration) {
        if self.health == DeviceHealth::Healthy {
            self.health = DeviceHealth::ShutDown;
            self.fail_those(|entry| !entry.has_begun(), now, |_| TransferFailure::ShutDown);
        }
    }

    /// Nobody waits any more: nothing further is given out, and what is open fails.
    #[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "for a device that is driven by a driver"))]
    pub(crate) fn give_up(&mut self, now: Duration) {
        self.shut_down(now);
        self.fail_those(|_| true, now, |_| TransferFailure::ShutDown);
    }

    /// The device is dead and has done all that it had, also pieces that never ended: what is held is released.
    #[cfg_attr(
        not(any(test, feature = "cuda")),
        expect(dead_code, reason = "for a device that is driven by a driver")
    )]
    pub(crate) fn end_all(&mut self) {
        self.on_device = [0; 2];
        let held = |(_, entry): &(usize, &Entry)| entry.is_reported && entry.num_on_device > 0;
        let mut held: Vec<(Ticket, usize)> =
            self.entries.iter().filter(held).map(|(index, entry)| (entry.ticket, index)).collect();
        held.sort_unstable();
        for (ticket, index) in held {
            self.released.push_back(ticket);
            self.forget(index);
        }
    }

    /// Fails open transfers, the oldest first.
    fn fail_those(
        &mut self,
        which: impl Fn(&Entry) -> bool,
        now: Duration,
        failure: impl Fn(&Entry) -> TransferFailure,
    ) {
        let fails = |(_, entry): &(usize, &Entry)| !entry.is_reported && which(entry);
        let mut indexes: Vec<(Ticket, usize)> =
            self.entries.iter().filter(fails).map(|(index, entry)| (entry.ticket, index)).collect();
        indexes.sort_unstable();
        for (_, index) in indexes {
            let entry = &mut self.entries[index];
            let failure = failure(entry);
            entry.failure.get_or_insert(failure);
            self.report(index, now);
        }
    }

    /// Makes the end of a transfer known, once.
    fn report(&mut self, index: usize, now: Duration) {
        let entry = &mut self.entries[index];
        assert!(!std::mem::replace(&mut entry.is_reported, true), "{:?} was reported before", entry.ticket);
        self.stats.count(entry, now);
        let result = match entry.failure.clone() {
            None => Ok(entry.size.bytes),
            Some(failure) => {
                let ticket = entry.ticket.0;
                entry.span.in_scope(|| tracing::debug!(ticket, %failure, "the transfer failed"));
                Err(failure)
            }
        };
        let held = entry.num_on_device > 0;
        self.done.push_back(TransferCompletion { ticket: entry.ticket, result, held });
        self.num_open -= 1;
        if !held {
            self.forget(index);
        }
    }

    fn forget(&mut self, index: usize) {
        let entry = self.entries.remove(index);
        self.index_of.remove(&entry.ticket);
        self.spare_counts.push(entry.into_counts());
    }

    /// Moves the ends that were not taken before to the end of `done`.
    pub(crate) fn take_done(&mut self, done: &mut Vec<TransferCompletion>) {
        done.extend(self.done.drain(..));
    }

    /// Moves the held tickets that the device is done with to the end of `released`.
    pub(crate) fn take_released(&mut self, released: &mut Vec<Ticket>) {
        released.extend(self.released.drain(..));
    }

    /// Whether an end waits to be taken.
    pub(crate) fn has_done(&self) -> bool {
        !self.done.is_empty()
    }

    /// Whether a release waits to be taken.
    pub(crate) fn has_released(&self) -> bool {
        !self.released.is_empty()
    }

    /// Transfers that are not reported.
    pub(crate) fn num_open(&self) -> usize {
        self.num_open
    }

    /// Transfers that count towards the limit: not reported, or reported and not taken.
    pub(crate) fn inflight(&self) -> usize {
        self.num_open + self.done.len()
    }

    /// Transfers that are reported and of which the device still has something.
    pub(crate) fn num_held(&self) -> usize {
        self.entries.len() - self.num_open
    }

    /// Whether no transfer is open or held.
    #[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "for a device that is driven by a driver"))]
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Bytes of a direction that are on the device.
    #[cfg_attr(not(test), expect(dead_code, reason = "for a device that is driven by a driver"))]
    pub(crate) fn on_device_bytes(&self, direction: Direction) -> u64 {
        self.on_device[direction as usize]
    }

    pub(crate) fn health(&self) -> DeviceHealth {
        self.health
    }

    pub(crate) fn stats(&self) -> DeviceStats {
        DeviceStats { inflight: self.inflight(), held: self.num_held(), ..self.stats }
    }
}

/// Whether a transfer with a place in a queue is not over. Its index may be another's by now.
fn is_wanted(entries: &Slab<Entry>, (ticket, index): (Ticket, usize)) -> bool {
    entries.get(index).is_some_and(|entry| entry.ticket == ticket && entry.is_wanted())
}
