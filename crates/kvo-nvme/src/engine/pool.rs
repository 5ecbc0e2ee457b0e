//! Threads that run one chunk each at a time, by positional I/O.

use std::{
    thread::{self, JoinHandle},
    time::Duration,
};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};

use super::{Engine, Event, Op, PATIENCE, Stuck};
use crate::{OpenError, worker::Worker};

/// The threads and the queue to them.
///
/// The queue has no bound of its own: the store counts the chunks that are on their way, and takes a job only if there
/// is room, so neither end ever waits for a full queue.
pub(crate) struct Pool {
    /// `None` once intake has stopped.
    ops: Option<Sender<Op>>,
    /// Ends, without a message, when the last thread has.
    ended: Receiver<()>,
    threads: Vec<JoinHandle<()>>,
}

impl Pool {
    pub(crate) fn start(
        num_threads: usize,
        worker: &Worker,
        events: &Sender<Event>,
    ) -> Result<Self, OpenError> {
        let (ops, queue) = crossbeam_channel::unbounded::<Op>();
        let (alive, ended) = crossbeam_channel::bounded(0);
        let mut pool = Self { ops: Some(ops), ended, threads: Vec::with_capacity(num_threads) };
        // Dropped before the pool, which would wait for it.
        let alive = alive;
        for index in 0..num_threads {
            let (queue, events, worker) = (queue.clone(), events.clone(), worker.clone());
            let alive: Sender<()> = alive.clone();
            let work = move || {
                // Ends when the store stops intake and the queue is empty.
                for op in queue {
                    // A store that is being dropped still receives; if not, nobody is left who would want to know.
                    let _ = events.send(Event::Moved(worker.run(op)));
                }
                drop(alive);
            };
            let thread = thread::Builder::new()
                .name(format!("kvo-nvme-{index}"))
                .spawn(work)
                .map_err(|source| OpenError::Thread { index, num_threads, source })?;
            pool.threads.push(thread);
        }
        Ok(pool)
    }
}

impl Engine for Pool {
    fn submit(&mut self, op: Op) -> Result<(), Op> {
        match &self.ops {
            Some(ops) => ops.send(op).map_err(|error| error.0),
            None => Err(op),
        }
    }

    fn stop(&mut self, timeout: Duration) -> Result<(), Stuck> {
        self.ops = None;
        match self.ended.recv_timeout(timeout) {
            // The last thread has ended, and let go of the other end.
            Ok(()) | Err(RecvTimeoutError::Disconnected) => {
                for thread in self.threads.drain(..) {
                    // A thread cannot panic outside `Worker::run`, and if it did, the others are still to be waited
                    // for.
                    let _ = thread.join();
                }
                Ok(())
            }
            Err(RecvTimeoutError::Timeout) => {
                let left = self.threads.iter().filter(|thread| !thread.is_finished()).count();
                if left == 0 { Ok(()) } else { Err(Stuck(left)) }
            }
        }
    }
}

impl Drop for Pool {
    /// For a pool that was not stopped: of a store that could not be opened.
    fn drop(&mut self) {
        if self.ops.is_some() {
            let _ = self.stop(PATIENCE);
        }
    }
}

/// The other ends of an engine without threads: a test decides when which op runs, and how it ends.
#[cfg(test)]
pub(crate) struct ByHand {
    pub(crate) queue: Receiver<Op>,
    pub(crate) events: Sender<Event>,
}

#[cfg(test)]
impl Pool {
    pub(crate) fn by_hand(events: Sender<Event>) -> (Self, ByHand) {
        let (ops, queue) = crossbeam_channel::unbounded();
        let (_, ended) = crossbeam_channel::bounded(0);
        (Self { ops: Some(ops), ended, threads: Vec::new() }, ByHand { queue, events })
    }
}
