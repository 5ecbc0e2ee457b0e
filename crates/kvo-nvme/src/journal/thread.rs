//! A thread that gathers records into batches and writes them.
//!
//! ```text
//!   store ── put ──▶ channel ──▶ thread: gather ──▶ Writer ──▶ index file
//!         ◀───────── Event::Recorded ─────────────────┘
//! ```
//!
//! A batch is as many records as make one write worth its call, or what there is after a while: until then a record is
//! lost if the process is killed, and no longer. In durable mode somebody waits for each record, so a batch is what has
//! come while the batch before was on its way to the device. The thread sleeps while there is nothing to write.

use std::{
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};

use super::{
    Entry, Journal,
    writer::{Outcome, Writer},
};
use crate::{NvmeOptions, OpenError, engine::Event, file::StableFile, files::Index, format::RecordState};

/// When a batch is written.
#[derive(Clone, Copy, Debug)]
struct Pace {
    /// Records that do not wait for more,
    entries: usize,
    /// and how long fewer wait.
    wait: Duration,
}

const PACE: Pace = Pace { entries: 32, wait: Duration::from_millis(100) };
/// How long the thread is waited for at the end. One that hangs in the system longer than that is left to itself, with
/// the file and its lock.
const PATIENCE: Duration = Duration::from_mins(2);
/// Records of a batch at most, however many wait: so that none waits for an endless batch.
const BATCH_ENTRIES_MAX: usize = 1024;

enum Message {
    Put(Entry),
    Close(Close),
}

struct Close {
    order: Vec<u32>,
    written_bytes: u64,
    reply: Sender<io::Result<()>>,
}

/// The journal of a store's index file, written by a thread of its own, which holds the file and its lock.
///
/// Dropped without a [`close`](Journal::close), it writes the records that it was given, and the store is one that was
/// not closed. Neither waits for ever for a device that hangs.
#[derive(Debug)]
pub(crate) struct FileJournal {
    /// Nobody listens after the close.
    messages: Option<Sender<Message>>,
    events: Sender<Event>,
    thread: Option<JoinHandle<()>>,
    /// Ends, without a message, when the thread does.
    ended: Receiver<()>,
    patience: Duration,
}

impl FileJournal {
    /// Starts the thread for the store whose index this is, with the files of its devices, in their order.
    ///
    /// # Errors
    /// [`OpenError::Io`] if the system has no thread; the index is closed then.
    pub(crate) fn start(
        index: Index,
        data: Vec<Arc<dyn StableFile>>,
        options: &NvmeOptions,
        events: Sender<Event>,
    ) -> Result<Self, OpenError> {
        let Index { file, path, superblock, block } = index;
        let writer = Writer::new(Box::new(file), (superblock, block), data, options.durable);
        Self::start_at("kvo-nvme-index", PACE, writer, events).map_err(|source| OpenError::Io {
            operation: "start the thread that writes",
            path,
            source,
        })
    }

    fn start_at(name: &str, pace: Pace, writer: Writer, events: Sender<Event>) -> io::Result<Self> {
        let (messages, receiver) = crossbeam_channel::unbounded();
        let served = Served {
            writer,
            batch: Vec::new(),
            pace,
            messages: receiver,
            events: events.clone(),
            is_lost: false,
        };
        let (alive, ended) = crossbeam_channel::bounded::<()>(0);
        let work = move || {
            served.run();
            drop(alive);
        };
        let thread = thread::Builder::new().name(name.to_owned()).spawn(work)?;
        Ok(Self { messages: Some(messages), events, thread: Some(thread), ended, patience: PATIENCE })
    }

    /// Waits for the thread, which ends once it has done what it was given.
    fn join(&mut self) {
        self.messages = None;
        let Some(thread) = self.thread.take() else { return };
        if self.ended.recv_timeout(self.patience) == Err(RecvTimeoutError::Timeout) {
            tracing::error!(waited = ?self.patience, "the thread that writes the index hangs; it is left to itself");
        } else if thread.join().is_err() {
            tracing::error!("the thread that writes the index panicked");
        }
    }
}

impl Journal for FileJournal {
    fn put(&mut self, entry: Entry) {
        let sent = self.messages.as_ref().is_some_and(|messages| messages.send(Message::Put(entry)).is_ok());
        if !sent {
            report(&self.events, &entry, Err(closed()));
        }
    }

    fn close(&mut self, order: &[u32], written_bytes: u64) -> io::Result<()> {
        let (reply, answer) = crossbeam_channel::bounded(1);
        let close = Close { order: order.to_vec(), written_bytes, reply };
        let messages = self.messages.take().ok_or_else(closed)?;
        let sent = messages.send(Message::Close(close));
        sent.map_err(|_| closed())?;
        match answer.recv_timeout(self.patience) {
            Ok(result) => {
                self.join();
                result
            }
            Err(RecvTimeoutError::Disconnected) => {
                self.join();
                Err(closed())
            }
            Err(RecvTimeoutError::Timeout) => {
                // Waited for long enough.
                self.thread = None;
                Err(io::ErrorKind::TimedOut.into())
            }
        }
    }
}

impl Drop for FileJournal {
    fn drop(&mut self) {
        self.join();
    }
}

fn closed() -> io::Error {
    io::Error::other("the journal is closed")
}

/// Says what became of a record, if it is one of a chunk.
fn report(events: &Sender<Event>, entry: &Entry, result: io::Result<()>) {
    let Entry { slot, state: RecordState::Chunk(record) } = *entry else { return };
    // Nobody listens to a store that is gone.
    let _ = events.send(Event::Recorded { slot, generation: record.generation, result });
}

/// What the thread works on.
struct Served {
    writer: Writer,
    batch: Vec<Entry>,
    pace: Pace,
    messages: Receiver<Message>,
    events: Sender<Event>,
    /// Whether the store was told that nothing is recorded any more.
    is_lost: bool,
}

impl Served {
    /// Serves until the journal is closed or dropped. A panic costs its batch and all trust, not the events.
    fn run(mut self) {
        while catch_unwind(AssertUnwindSafe(|| self.serve())).is_err() {
            let error = io::Error::other("the journal panicked");
            tracing::error!("the journal panicked: nothing is recorded any more");
            self.writer.give_up(&error);
            self.tell(&Outcome::Failed(error));
        }
    }

    fn serve(&mut self) {
        while let Ok(message) = self.messages.recv() {
            let close = match message {
                Message::Put(entry) => {
                    self.batch.push(entry);
                    self.gather()
                }
                Message::Close(close) => Some(close),
            };
            if !self.batch.is_empty() {
                let outcome = self.writer.write(&self.batch);
                self.tell(&outcome);
            }
            if let Some(Close { order, written_bytes, reply }) = close {
                // A store that does not wait for the answer is gone, and so is the reason to hold the lock.
                let _ = reply.send(self.writer.close(&order, written_bytes));
                return;
            }
        }
    }

    /// Adds to the batch what is to be written with it; a close that comes meanwhile.
    fn gather(&mut self) -> Option<Close> {
        let deadline = Instant::now() + self.pace.wait;
        while self.batch.len() < BATCH_ENTRIES_MAX {
            let is_due = self.writer.is_durable() || self.batch.len() >= self.pace.entries;
            let message = if is_due {
                self.messages.try_recv().ok()?
            } else {
                self.messages.recv_deadline(deadline).ok()?
            };
            match message {
                Message::Put(entry) => self.batch.push(entry),
                Message::Close(close) => return Some(close),
            }
        }
        None
    }

    /// Reports the batch: all of it in durable mode, else what failed.
    fn tell(&mut self, outcome: &Outcome) {
        let is_durable = self.writer.is_durable();
        outcome.tell(&mut self.is_lost, &self.events);
        for entry in self.batch.drain(..) {
            let result = outcome.of(entry.slot);
            if is_durable || result.is_err() {
                report(&self.events, &entry, result);
            }
        }
    }
}

#[cfg(test)]
mod tests;
