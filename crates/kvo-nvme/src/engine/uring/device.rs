//! The thread of one device: it owns the ring, decides what goes next, and takes in what has ended.
//!
//! ```text
//!   inbox ──▶ schedule ──▶ ring ──▶ kernel
//!                            ▲        │ short, or could not just now
//!                            └────────┤
//!                                     ├ a write that ended, a fault ──▶ report
//!                                     └ a read that ended ──▶ checksum threads ──▶ report
//! ```

use std::{
    fs::File,
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    thread,
    time::Duration,
};

use crossbeam_channel::{Receiver, Sender, TryRecvError};
use kvo_core::{ReadClaim, StableMemory};
use std::os::fd::AsFd;

use super::{
    doorbell::{Doorbell, WakeFor},
    probe,
    ring::{Buffer, Completion, On, Ring, Transfer},
    schedule::{Limits, Schedule, Turn},
    sums::{Unchecked, claim_target},
    ticket::Ticket,
};
use crate::{
    engine::{Action, Fault},
    options::Geometry,
    progress::{Progress, Step, Way},
    stats::EngineCounters,
};

/// How long a thread sleeps if the kernel can take nothing and has nothing to give.
const PAUSE: Duration = Duration::from_millis(1);

/// A chunk for a device.
#[derive(Debug)]
pub(super) enum Work {
    Read {
        ticket: Ticket,
        written: u64,
    },
    Write {
        ticket: Ticket,
        claim: ReadClaim,
        sum: u64,
    },
    #[cfg(test)]
    Panic,
}

/// The way to a device's thread. When the last one is dropped, the thread ends what it has, and itself.
pub(super) struct Inbox {
    /// `None` only while it is dropped.
    sender: Option<Sender<Work>>,
    doorbell: Arc<Doorbell>,
}

impl Inbox {
    pub(super) fn new(sender: Sender<Work>, doorbell: Arc<Doorbell>) -> Self {
        Self { sender: Some(sender), doorbell }
    }

    /// Hands work over. If the thread is gone, the work is dropped, and so reported as failed.
    pub(super) fn put(&self, work: Work) {
        let sender = self.sender.as_ref().expect("it is there until the drop");
        let wake_for = match work {
            Work::Read { .. } => WakeFor::READS,
            Work::Write { .. } => WakeFor::WRITES,
            #[cfg(test)]
            Work::Panic => WakeFor::ANYTHING,
        };
        if sender.send(work).is_ok() {
            self.doorbell.ring(wake_for);
        }
    }
}

impl Clone for Inbox {
    fn clone(&self) -> Self {
        Self { sender: self.sender.clone(), doorbell: Arc::clone(&self.doorbell) }
    }
}

impl Drop for Inbox {
    fn drop(&mut self) {
        self.sender = None;
        self.doorbell.ring(WakeFor::ANYTHING);
    }
}

/// What a transfer of the ring is for.
pub(super) enum Purpose {
    /// To be woken.
    Wake,
    /// To see whether the ring works.
    Probe,
    Chunk(Chunk),
}

/// A chunk that is with the kernel.
pub(super) struct Chunk {
    ticket: Ticket,
    progress: Progress,
    offset: u64,
    /// Of the bytes that are written, or that those read must have.
    sum: u64,
}

/// What a device's thread is made from.
pub(super) struct Parts {
    pub(super) file: Arc<File>,
    pub(super) doorbell: Arc<Doorbell>,
    pub(super) inbox: Receiver<Work>,
    /// Where reads go to be checked; without, they are believed.
    pub(super) unchecked: Option<Sender<Unchecked>>,
    pub(super) memory: Arc<dyn StableMemory>,
    pub(super) geometry: Geometry,
    pub(super) limits: Limits,
    pub(super) counters: Arc<EngineCounters>,
}

/// A device's thread, before and while it runs.
pub(super) struct Device {
    ring: Ring<Purpose>,
    doorbell: Arc<Doorbell>,
    inbox: Receiver<Work>,
    /// Whether all of its other ends are gone.
    is_closed: bool,
    unchecked: Option<Sender<Unchecked>>,
    schedule: Schedule<(Ticket, u64), (Ticket, ReadClaim, u64)>,
    /// Whether a read of the doorbell is with the kernel.
    is_armed: bool,
    memory: Arc<dyn StableMemory>,
    geometry: Geometry,
    counters: Arc<EngineCounters>,
}

impl Device {
    /// Sets up the ring, on the thread that will run it, and tries it.
    ///
    /// # Errors
    /// What the system refused, and its error.
    pub(super) fn new(parts: Parts) -> Result<Self, (&'static str, io::Error)> {
        let Parts { file, doorbell, inbox, unchecked, memory, geometry, limits, counters } = parts;
        // One more, for the doorbell.
        let capacity = limits.inflight_max() + 1;
        let mut ring = Ring::new(file, doorbell.as_fd(), Arc::clone(&memory), capacity)?;
        probe::run(&mut ring)?;
        let schedule = Schedule::new(limits);
        Ok(Self {
            ring,
            doorbell,
            inbox,
            is_closed: false,
            unchecked,
            schedule,
            is_armed: false,
            memory,
            geometry,
            counters,
        })
    }

    pub(super) fn ring(&self) -> &Ring<Purpose> {
        &self.ring
    }

    /// Works until intake has stopped and everything that was taken has ended.
    pub(super) fn run(mut self) {
        let ended = catch_unwind(AssertUnwindSafe(|| {
            while self.turn()? {}
            self.drain()
        }));
        match ended {
            Ok(Ok(())) => {}
            Ok(Err(error)) => self.abandon(&error.to_string()),
            Err(_) => self.abandon("its thread panicked"),
        }
    }

    /// Takes work in, gives it to the kernel, waits for the kernel, and takes in what has ended. `false` when there
    /// is nothing left and nothing will come.
    fn turn(&mut self) -> io::Result<bool> {
        self.empty_inbox();
        self.begin_chunks();
        if self.is_closed && self.schedule.is_idle() {
            return Ok(false);
        }
        self.arm();
        // Work that could not begin before something ends need not wake anyone.
        let wake_for = WakeFor::of(self.schedule.may_read(), self.schedule.may_write());
        if wake_for != WakeFor::NOTHING {
            self.doorbell.parking().park(wake_for);
            if !self.is_quiet() {
                self.doorbell.parking().unpark();
                return Ok(true);
            }
        }
        let entered = self.enter(true);
        self.doorbell.parking().unpark();
        if self.take_completions() == 0 && !entered? {
            thread::sleep(PAUSE);
        }
        Ok(true)
    }

    fn enter(&mut self, wait: bool) -> io::Result<bool> {
        self.counters.enters.add(1);
        self.ring.enter(wait)
    }

    fn empty_inbox(&mut self) {
        while !self.is_quiet() {}
    }

    /// Whether the inbox has nothing to say; takes in what it has.
    fn is_quiet(&mut self) -> bool {
        match self.inbox.try_recv() {
            Ok(Work::Read { ticket, written }) => self.schedule.put_read((ticket, written)),
            Ok(Work::Write { ticket, claim, sum }) => self.schedule.put_write((ticket, claim, sum)),
            #[cfg(test)]
            Ok(Work::Panic) => panic!("this panic belongs to the test"),
            Err(TryRecvError::Empty) => return true,
            Err(TryRecvError::Disconnected) => return std::mem::replace(&mut self.is_closed, true),
        }
        false
    }

    fn begin_chunks(&mut self) {
        while let Some(turn) = self.schedule.next() {
            match turn {
                Turn::Read((ticket, written)) => self.begin_read(ticket, written),
                Turn::Write((ticket, claim, sum)) => {
                    self.begin(Way::Write, ticket, Buffer::Source(claim), sum);
                }
            }
        }
    }

    fn begin_read(&mut self, ticket: Ticket, written: u64) {
        let claimed =
            catch_unwind(AssertUnwindSafe(|| claim_target(&self.memory, &self.geometry, ticket.op())));
        match claimed.unwrap_or(Err(Fault::Engine("the host memory panicked"))) {
            Ok(claim) => self.begin(Way::Read, ticket, Buffer::Target(claim), written),
            Err(fault) => {
                self.schedule.end_read();
                ticket.report(Err(fault));
            }
        }
    }

    fn begin(&mut self, way: Way, ticket: Ticket, buffer: Buffer, sum: u64) {
        let offset = self.geometry.place(ticket.op().slot).offset;
        let progress = Progress::new(way, self.geometry.chunk_bytes);
        self.go_on(Chunk { ticket, progress, offset, sum }, buffer);
    }

    /// Gives what is left of a chunk, or the next piece of it, to the kernel.
    fn go_on(&mut self, chunk: Chunk, buffer: Buffer) {
        let way = chunk.progress.way();
        let range = chunk.progress.rest(self.schedule.piece_bytes(way == Way::Write));
        if way == Way::Write {
            self.schedule.begin_piece(range.len());
            self.counters.write_bytes_inflight_max.raise(self.schedule.write_bytes_inflight() as u64);
        }
        let offset = chunk.offset + range.start as u64;
        self.push(Transfer { way, on: On::Data, offset, range, buffer, state: Purpose::Chunk(chunk) });
    }

    /// Sees to it that the doorbell is heard.
    fn arm(&mut self) {
        if !self.is_armed {
            self.is_armed = true;
            let buffer = Buffer::Word(Box::new([0; 8]));
            let state = Purpose::Wake;
            self.push(Transfer { way: Way::Read, on: On::Wake, offset: 0, range: 0..8, buffer, state });
        }
    }

    fn push(&mut self, transfer: Transfer<Purpose>) {
        self.counters.sqes.add(1);
        self.ring.push(transfer);
    }

    /// Takes in what the kernel is done with; returns how much that was.
    fn take_completions(&mut self) -> usize {
        let mut count = 0;
        let strange = self.ring.num_strange();
        while let Some(completion) = self.ring.reap() {
            count += 1;
            self.take_completion(completion);
        }
        self.counters.strange_completions.add(self.ring.num_strange() - strange);
        count
    }

    fn take_completion(&mut self, completion: Completion<Purpose>) {
        let Completion { asked, result, buffer, state } = completion;
        let mut chunk = match state {
            Purpose::Chunk(chunk) => chunk,
            Purpose::Wake => {
                self.is_armed = false;
                self.counters.wakeups.add(1);
                return;
            }
            Purpose::Probe => return,
        };
        if chunk.progress.way() == Way::Write {
            self.schedule.end_piece(asked);
        }
        match chunk.progress.take(asked, result) {
            Step::Done => self.end(chunk, buffer, None),
            Step::Failed(error) => self.end(chunk, buffer, Some(error)),
            Step::Next => self.go_on(chunk, buffer),
            Step::Short => {
                self.counters.short_transfers.add(1);
                self.go_on(chunk, buffer);
            }
            Step::Retry => {
                self.counters.retries.add(1);
                self.go_on(chunk, buffer);
            }
        }
    }

    /// A chunk is through, or has failed.
    fn end(&mut self, chunk: Chunk, buffer: Buffer, error: Option<io::Error>) {
        let Chunk { ticket, sum, .. } = chunk;
        match ticket.op().action {
            Action::Read { .. } => self.schedule.end_read(),
            Action::Write => self.schedule.end_write(),
        }
        let buffer = match (buffer, error, &self.unchecked) {
            (Buffer::Target(claim), None, Some(unchecked)) => {
                // If the threads are gone, dropping it reports it.
                let _ = unchecked.send(Unchecked { ticket, claim, written: sum });
                return;
            }
            (buffer, Some(error), _) => {
                drop(buffer);
                return ticket.report(Err(Fault::Io(error)));
            }
            (buffer, None, _) => buffer,
        };
        drop(buffer);
        ticket.report(Ok(sum));
    }

    /// Waits for what is with the kernel; at the end that is the doorbell alone.
    fn drain(&mut self) -> io::Result<()> {
        self.doorbell.ring_anyway();
        while self.ring.num_inflight() > 0 {
            let entered = self.enter(true);
            if self.take_completions() == 0 && !entered? {
                thread::sleep(PAUSE);
            }
        }
        Ok(())
    }

    /// Fails what waits, and waits for what is with the kernel, as far as that can be done.
    fn abandon(mut self, why: &str) {
        tracing::error!(%why, inflight = self.ring.num_inflight(), "an io_uring ended; its chunks fail");
        // Whatever is dropped reports itself.
        self.inbox = crossbeam_channel::never();
        self.schedule.clear();
        let drained = catch_unwind(AssertUnwindSafe(|| {
            self.doorbell.ring_anyway();
            while self.ring.num_inflight() > 0 {
                let entered = self.ring.enter(true)?;
                let reaped = std::iter::from_fn(|| self.ring.reap()).count();
                if reaped == 0 && !entered {
                    thread::sleep(PAUSE);
                }
            }
            Ok::<(), io::Error>(())
        }));
        // What is still in flight is leaked by the ring's drop, which says so.
        drop(drained);
    }
}
