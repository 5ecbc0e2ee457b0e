//! The race detector: finds accesses that nothing orders, whether or not they happened to collide.
//!
//! Everything that orders work on a device goes through calls of its owner, so what is ordered is known when a job is
//! handed over, and does not depend on how threads run. A [`Clock`] says what is certain to be over when a job runs: so
//! many items of each stream, and the copies of some transfers up to a mark.
//!
//! - An item on a stream runs after the items before it there, after what the stream was told to wait for, and after
//!   all that the owner knew to be over when it put it there.
//! - A transfer runs after its fence, and after all that the owner knew to be over at its submission.
//! - The owner knows a transfer to be over once it has polled its completion, and with it all that was before; a held
//!   one, once it took its release. It knows a stream's items to be over once it has synchronized with it.
//!
//! What the owner knows to be over can collide with nothing that is still to come, and is forgotten.

use std::{
    collections::{BTreeMap, HashMap},
    ops::Range,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use kvo_core::{Fence, SlotId, Ticket, TransferClass};

/// Races that are kept until somebody takes them.
pub(super) const RACES_MAX: usize = 4096;

/// Two jobs that touch the same bytes, at least one of them writing, with nothing to order them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Race {
    /// What went wrong.
    pub kind: RaceKind,
    /// The job that was handed to the device first.
    pub first: Job,
    /// The other.
    pub second: Job,
    /// Where the bytes are.
    pub place: Place,
    /// The bytes that both touch: addresses on the device, or offsets in the slot.
    pub range: Range<u64>,
}

/// What went wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RaceKind {
    /// A transfer does not wait for a kernel that was launched before.
    MissingFence,
    /// Bytes that a transfer is to bring are read before it is known to have ended.
    ReadBeforeReady,
    /// Bytes that a transfer reads are written before it is known to have ended.
    WriteWhileRead,
    /// Bytes that a transfer is to bring are written before it is known to have ended.
    ReuseBeforeCompletion,
    /// Two kernels on streams that do not wait for one another.
    UnorderedKernels,
    /// Bytes that a transfer was about to bring, poisoned since it began, were written by something else.
    PoisonDisturbed,
    /// A kernel reached beyond an allocation.
    GuardZone,
    /// A kernel touched what it did not say it would.
    Undeclared,
}

/// A job that touches bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Job {
    /// A transfer.
    Transfer {
        /// Its ticket.
        ticket: Ticket,
        /// Its class.
        class: TransferClass,
    },
    /// A kernel.
    Kernel {
        /// Its stream, in the order in which streams were made.
        stream: u32,
        /// Its place among all that was put on that stream, from 0 on.
        position: u64,
    },
    /// None that the device knows of, or none at all.
    Outside,
}

/// Where bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Place {
    /// In the device's memory.
    Device,
    /// In a slot.
    Slot(SlotId),
}

/// Bytes that a job touches.
#[derive(Clone, Debug)]
pub(super) struct Touch {
    pub(super) place: Place,
    pub(super) range: Range<u64>,
    pub(super) writes: bool,
    /// Of a transfer: the part it belongs to.
    pub(super) part: u32,
}

/// What is over when a job runs, of that which the owner does not know to be over.
#[derive(Clone, Debug, Default)]
pub(super) struct Clock {
    /// By stream: so many items.
    streams: Vec<u64>,
    /// The copies of a transfer up to a mark.
    marks: Vec<(Ticket, u32)>,
}

impl Clock {
    fn join(&mut self, other: &Self) {
        if self.streams.len() < other.streams.len() {
            self.streams.resize(other.streams.len(), 0);
        }
        for (mine, other) in self.streams.iter_mut().zip(&other.streams) {
            *mine = (*mine).max(*other);
        }
        for mark in &other.marks {
            if !self.marks.contains(mark) {
                self.marks.push(*mark);
            }
        }
    }

    fn knows(&self, job: Job, part: u32) -> bool {
        match job {
            Job::Kernel { stream, position } => self.items(stream) > position,
            Job::Transfer { ticket, .. } => {
                self.marks.iter().any(|(of, mark)| *of == ticket && part <= *mark)
            }
            Job::Outside => false,
        }
    }

    fn items(&self, stream: u32) -> u64 {
        self.streams.get(stream as usize).copied().unwrap_or(0)
    }

    fn raise(&mut self, stream: u32, items: u64) {
        let stream = stream as usize;
        if self.streams.len() <= stream {
            self.streams.resize(stream + 1, 0);
        }
        self.streams[stream] = self.streams[stream].max(items);
    }
}

#[derive(Debug)]
struct Seen {
    end: u64,
    job: Job,
    part: u32,
    writes: bool,
}

/// The detector of one device.
#[derive(Debug, Default)]
pub(super) struct Detector {
    /// What the owner knows to be over.
    owner: Clock,
    streams: Vec<Clock>,
    events: Vec<Clock>,
    /// By fence: what is over once it is passed, unless the owner knows all of it.
    fences: HashMap<u64, Clock>,
    /// By open or held transfer.
    transfers: HashMap<Ticket, Clock>,
    /// Accesses that the owner does not know to be over, by place, first byte and number.
    seen: BTreeMap<(Place, u64, u64), Seen>,
    next_seen: u64,
    longest: u64,
    races: Arc<Mutex<Vec<Race>>>,
}

impl Detector {
    /// Where kernels report what they find themselves.
    pub(super) fn sink(&self) -> Arc<Mutex<Vec<Race>>> {
        Arc::clone(&self.races)
    }

    fn races(&self) -> MutexGuard<'_, Vec<Race>> {
        self.races.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn take(&self) -> Vec<Race> {
        std::mem::take(&mut *self.races())
    }

    pub(super) fn add_stream(&mut self) {
        self.streams.push(Clock::default());
    }

    pub(super) fn add_event(&mut self) {
        self.events.push(Clock::default());
    }

    /// Something is put on a stream at `position`.
    pub(super) fn item(&mut self, stream: u32, position: u64, touches: &[Touch]) {
        let clock = &mut self.streams[stream as usize];
        clock.join(&self.owner);
        let clock = clock.clone();
        self.touch(Job::Kernel { stream, position }, &clock, touches);
        self.streams[stream as usize].raise(stream, position + 1);
    }

    /// An event is recorded behind what is on a stream.
    pub(super) fn record(&mut self, stream: u32, event: u32) {
        self.events[event as usize] = self.streams[stream as usize].clone();
    }

    /// What is put on a stream from now on runs after what the event was last recorded behind.
    pub(super) fn wait_event(&mut self, stream: u32, event: u32) {
        self.streams[stream as usize].join(&self.events[event as usize]);
    }

    /// What is put on a stream from now on runs after the copies of a transfer up to a mark.
    pub(super) fn wait_mark(&mut self, stream: u32, ticket: Ticket, mark: u32) {
        if let Some(clock) = self.transfers.get(&ticket) {
            let stream = &mut self.streams[stream as usize];
            stream.join(clock);
            stream.marks.push((ticket, mark));
        }
    }

    pub(super) fn fence_behind_stream(&mut self, fence: Fence, stream: u32) {
        self.fences.insert(fence.sequence(), self.streams[stream as usize].clone());
    }

    pub(super) fn fence_behind_event(&mut self, fence: Fence, event: u32) {
        self.fences.insert(fence.sequence(), self.events[event as usize].clone());
    }

    /// A transfer was submitted.
    pub(super) fn submit(&mut self, ticket: Ticket, class: TransferClass, after: Fence, touches: &[Touch]) {
        let mut clock = self.owner.clone();
        if let Some(fence) = self.fences.get(&after.sequence()) {
            clock.join(fence);
        }
        self.touch(Job::Transfer { ticket, class }, &clock, touches);
        self.transfers.insert(ticket, clock);
    }

    /// The owner has learned that the device does not touch anything of a transfer any more. Of a failed one it does
    /// not know that its fence was passed.
    pub(super) fn retire(&mut self, ticket: Ticket, copied: bool) {
        let Some(clock) = self.transfers.remove(&ticket) else { return };
        let is_of = |job: Job| matches!(job, Job::Transfer { ticket: of, .. } if of == ticket);
        self.seen.retain(|_, seen| !is_of(seen.job));
        let clocks = self.streams.iter_mut().chain(&mut self.events).chain(self.fences.values_mut());
        for clock in clocks.chain(self.transfers.values_mut()).chain([&mut self.owner]) {
            clock.marks.retain(|(of, _)| *of != ticket);
        }
        if copied {
            self.learn(&clock);
        }
    }

    /// What is over once all that is on a stream now is.
    pub(super) fn behind(&self, stream: u32) -> Clock {
        self.streams[stream as usize].clone()
    }

    /// The owner has learned that this is over.
    pub(super) fn learn(&mut self, clock: &Clock) {
        self.owner.join(clock);
        let owner = &self.owner;
        self.seen.retain(|_, seen| !owner.knows(seen.job, seen.part));
        self.fences.retain(|_, fence| {
            let streams = || (0..).zip(&fence.streams);
            !fence.marks.is_empty() || streams().any(|(stream, items)| owner.items(stream) < *items)
        });
    }

    /// Compares what a job touches with what is not ordered before it, and keeps it.
    fn touch(&mut self, job: Job, clock: &Clock, touches: &[Touch]) {
        for touch in touches {
            self.compare(job, clock, touch);
        }
        for Touch { place, range, writes, part } in touches {
            if let Job::Kernel { stream, .. } = job {
                self.supersede(stream, *place, range, *writes);
            }
            self.longest = self.longest.max(range.end - range.start);
            let seen = Seen { end: range.end, job, part: *part, writes: *writes };
            self.seen.insert((*place, range.start, self.next_seen), seen);
            self.next_seen += 1;
        }
    }

    /// What was seen that shares bytes with a range.
    fn overlapping(
        &self,
        place: Place,
        range: &Range<u64>,
    ) -> impl Iterator<Item = (&(Place, u64, u64), &Seen)> + use<'_> {
        let start = range.start;
        let from = (place, start.saturating_sub(self.longest), 0);
        self.seen.range(from..(place, range.end, 0)).filter(move |(_, seen)| seen.end > start)
    }

    fn compare(&self, job: Job, clock: &Clock, touch: &Touch) {
        for ((_, start, _), seen) in self.overlapping(touch.place, &touch.range) {
            if seen.job == job || !(seen.writes || touch.writes) || clock.knows(seen.job, seen.part) {
                continue;
            }
            let kind = kind(seen, job, touch.writes);
            let range = touch.range.start.max(*start)..touch.range.end.min(seen.end);
            self.report(Race { kind, first: seen.job, second: job, place: touch.place, range });
        }
    }

    /// Keeps a race, but only the first of two jobs in a row.
    pub(super) fn report(&self, race: Race) {
        let mut races = self.races();
        let same =
            |other: &Race| (other.kind, other.first, other.second) == (race.kind, race.first, race.second);
        if races.len() < RACES_MAX && !races.iter().rev().take(64).any(same) {
            tracing::warn!(?race, "two jobs race");
            races.push(race);
        }
    }

    /// Whoever waits for a later access of a stream waits for an earlier one too: that is forgotten if it says no more.
    fn supersede(&mut self, stream: u32, place: Place, range: &Range<u64>, writes: bool) {
        let is_old = |(key, seen): &(&(Place, u64, u64), &Seen)| {
            let same_stream = matches!(seen.job, Job::Kernel { stream: of, .. } if of == stream);
            same_stream && range.start <= key.1 && seen.end <= range.end && (writes || !seen.writes)
        };
        let old: Vec<_> = self.overlapping(place, range).filter(is_old).map(|(key, _)| *key).collect();
        for key in old {
            self.seen.remove(&key);
        }
    }
}

fn kind(first: &Seen, second: Job, second_writes: bool) -> RaceKind {
    match (first.job, second) {
        (Job::Kernel { .. }, Job::Kernel { .. }) => RaceKind::UnorderedKernels,
        (Job::Kernel { .. }, _) => RaceKind::MissingFence,
        _ if !first.writes => RaceKind::WriteWhileRead,
        _ if second_writes => RaceKind::ReuseBeforeCompletion,
        _ => RaceKind::ReadBeforeReady,
    }
}
