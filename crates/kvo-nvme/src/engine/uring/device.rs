//! The thread of one device: it owns the ring, decides what goes next, and takes in what has ended.
//!
//! ```text
//!             checksum threads
//!                 ▲     │ writes, a few ahead
//!                 │     ▼
//!   inbox ──▶ schedule ──▶ ring ──▶ kernel
//!                            ▲        │ short, or could not just now
//!                            └────────┤
//!                                     ├ a write that ended, a fault ──▶ report
//!                                     └ a read that ended ──▶ checksum threads ──▶ report
//! ```
//!
//! It ends when it was told that no more ops come, and everything that it was given has ended, with the checksum threads
//! too.

use std::{
    fs::File,
    io,
    os::fd::AsFd,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use crossbeam_channel::{Receiver, Sender};

use super::{
    claims::Claims,
    doorbell::{Doorbell, WakeFor},
    probe,
    ring::{Buffer, Completion, On, Ring, Transfer},
    schedule::{Limits, Schedule, Turn},
    sums::{Summed, ToSums, Unchecked, Unsummed},
    ticket::Ticket,
};
use crate::{
    engine::{Action, Fault},
    progress::{Progress, Step, Way},
    stats::EngineCounters,
};

/// How long a thread sleeps if the kernel can take nothing and has nothing to give.
const PAUSE: Duration = Duration::from_millis(1);

/// What a device is told.
#[derive(Debug)]
pub(super) enum Work {
    Read {
        ticket: Ticket,
        written: u64,
    },
    Write(Ticket),
    /// A write that was given to the checksum threads comes back.
    Summed(Summed),
    /// It does not, and has been reported.
    NotSummed,
    /// No more reads and writes come.
    End,
    #[cfg(test)]
    Panic,
}

/// A way to a device's thread.
#[derive(Clone, Debug)]
pub(super) struct Inbox {
    sender: Sender<Work>,
    doorbell: Arc<Doorbell>,
}

impl Inbox {
    pub(super) fn new(sender: Sender<Work>, doorbell: Arc<Doorbell>) -> Self {
        Self { sender, doorbell }
    }

    /// Hands work over. If the thread is gone, the work is dropped, and so reported as failed.
    pub(super) fn put(&self, work: Work) {
        let wake_for = match work {
            Work::Read { .. } => WakeFor::READS,
            Work::Write(_) => WakeFor::WRITES,
            Work::Summed(_) | Work::NotSummed => WakeFor::SUMS,
            Work::End => WakeFor::ANYTHING,
            #[cfg(test)]
            Work::Panic => WakeFor::ANYTHING,
        };
        if self.sender.send(work).is_ok() {
            self.doorbell.ring(wake_for);
        }
    }
}

/// Where ops for a device are put. When it is dropped, the device's thread ends what it has, and itself.
#[derive(Debug)]
pub(super) struct Intake(pub(super) Inbox);

impl Drop for Intake {
    fn drop(&mut self) {
        self.0.put(Work::End);
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
    /// The other end of the inbox, for work that is given away and comes back.
    pub(super) home: Inbox,
    /// Where writes are prepared and reads are checked; without, nothing has a checksum.
    pub(super) sums: Option<ToSums>,
    pub(super) claims: Claims,
    pub(super) limits: Limits,
    pub(super) counters: Arc<EngineCounters>,
}

/// A device's thread, before and while it runs.
pub(super) struct Device {
    ring: Ring<Purpose>,
    doorbell: Arc<Doorbell>,
    inbox: Receiver<Work>,
    home: Inbox,
    /// Whether no more ops come.
    is_closed: bool,
    sums: Option<ToSums>,
    schedule: Schedule<(Ticket, u64), Ticket, Summed>,
    /// When something was last given to the kernel, or taken from it.
    now: Instant,
    /// Whether a read of the doorbell is with the kernel.
    is_armed: bool,
    claims: Claims,
    counters: Arc<EngineCounters>,
}

impl Device {
    /// Sets up the ring, on the thread that will run it, and tries it.
    ///
    /// # Errors
    /// What the system refused, and its error.
    pub(super) fn new(parts: Parts) -> Result<Self, (&'static str, io::Error)> {
        let Parts { file, doorbell, inbox, home, sums, claims, limits, counters } = parts;
        // One more, for the doorbell.
        let capacity = limits.inflight_max() + 1;
        let mut ring = Ring::new(file, doorbell.as_fd(), Arc::clone(&claims.memory), capacity)?;
        probe::run(&mut ring)?;
        let schedule = Schedule::new(limits);
        Ok(Self {
            ring,
            doorbell,
            inbox,
            home,
            is_closed: false,
            sums,
            schedule,
            now: Instant::now(),
            is_armed: false,
            claims,
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
        self.prepare_writes();
        self.begin_chunks();
        // Those that began have made room.
        self.prepare_writes();
        if self.is_closed && self.schedule.is_idle() {
            return Ok(false);
        }
        self.arm();
        // Work that could not go on before something ends need not wake anyone.
        let schedule = &self.schedule;
        let may_write = schedule.may_write(self.now);
        let wake_for = WakeFor::of(schedule.may_read(), schedule.may_prepare(), may_write);
        debug_assert!(wake_for == WakeFor::ANYTHING || schedule.is_any_inflight() || schedule.ahead() > 0);
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
            Ok(Work::Write(ticket)) => self.schedule.put_write(ticket),
            Ok(Work::Summed(write)) => self.schedule.put_prepared(write),
            Ok(Work::NotSummed) => self.schedule.end_preparing(),
            Ok(Work::End) => self.is_closed = true,
            #[cfg(test)]
            Ok(Work::Panic) => panic!("this panic belongs to the test"),
            // It cannot be disconnected: `home` is its other end.
            Err(_) => return true,
        }
        false
    }

    /// Has as many writes prepared as there is room for.
    fn prepare_writes(&mut self) {
        while let Some(ticket) = self.schedule.next_to_prepare() {
            self.counters.write_chunks_ahead_max.raise(self.schedule.ahead() as u64);
            match &self.sums {
                Some(sums) => sums.prepare(Unsummed::new(ticket, self.home.clone())),
                None => self.claim_write(ticket),
            }
        }
    }

    /// Prepares a write that has no checksum.
    fn claim_write(&mut self, ticket: Ticket) {
        match self.claims.source(ticket.op()) {
            Ok((claim, sum)) => self.schedule.put_prepared(Summed { claim, ticket, sum }),
            Err(fault) => {
                self.schedule.end_preparing();
                ticket.report(Err(fault));
            }
        }
    }

    fn begin_chunks(&mut self) {
        self.now = Instant::now();
        while let Some(turn) = self.schedule.next(self.now) {
            match turn {
                Turn::Read((ticket, written)) => self.begin_read(ticket, written),
                Turn::Write(Summed { claim, ticket, sum }) => {
                    self.begin(Way::Write, ticket, Buffer::Source(claim), sum);
                }
            }
        }
    }

    fn begin_read(&mut self, ticket: Ticket, written: u64) {
        match self.claims.target(ticket.op()) {
            Ok(claim) => self.begin(Way::Read, ticket, Buffer::Target(claim), written),
            Err(fault) => {
                self.schedule.end_read(self.now);
                ticket.report(Err(fault));
            }
        }
    }

    fn begin(&mut self, way: Way, ticket: Ticket, buffer: Buffer, sum: u64) {
        let geometry = &self.claims.geometry;
        let offset = geometry.place(ticket.op().slot).offset;
        let progress = Progress::new(way, geometry.chunk_bytes);
        self.go_on(Chunk { ticket, progress, offset, sum }, buffer);
    }

    /// Gives what is left of a chunk, or the next piece of it, to the kernel.
    fn go_on(&mut self, chunk: Chunk, buffer: Buffer) {
        let way = chunk.progress.way();
        let range = chunk.progress.rest(self.schedule.piece_bytes(way == Way::Write, self.now));
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
        self.now = Instant::now();
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
            Action::Read { .. } => self.schedule.end_read(self.now),
            Action::Write => self.schedule.end_write(),
        }
        let buffer = match (buffer, error, &self.sums) {
            (Buffer::Target(claim), None, Some(sums)) => {
                return sums.compare(Unchecked { claim, ticket, written: sum });
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
