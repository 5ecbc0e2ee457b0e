//! A job from its submission to its report.

use std::time::{Duration, Instant};

use hashbrown::HashSet;
use kvo_core::{EdgeStats, JobId, OffloadKey, RequestId, SlotId, TierChunk, TierDirection, TierJob};
use tracing::Span;

use crate::engine::Fault;

/// A chunk of a write job that waits for another job's write of the same key.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiter {
    pub(super) job: JobId,
    pub(super) index: u32,
}

/// How far a chunk of a job is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Its end is known, and nothing touches its slot of the host memory for this job.
    Ended,
    /// With the engine.
    Moving,
    /// With the engine for the second time: the first slot of the file failed.
    MovingAgain,
    /// Another job's write of the same key decides it.
    Waiting,
    /// Reported as failed, and still with the engine.
    Late,
}

/// A job that was taken, until it is reported and the engine has ended with its slots.
pub(super) struct Job {
    pub(super) req: RequestId,
    pub(super) direction: TierDirection,
    /// When it is late.
    pub(super) deadline: Duration,
    chunks: Vec<TierChunk>,
    states: Vec<State>,
    /// Chunks whose end is not known yet.
    undecided: u32,
    /// Chunks that are reported and still with the engine.
    late: u32,
    /// Their slots of the host memory, until the job is reported.
    held: Vec<SlotId>,
    is_reported: bool,
    /// Places of the chunks that failed.
    failed: Vec<u32>,
    /// Chunks that were moved by I/O of this job.
    moved: u64,
    /// Faults of the store's own I/O, and the last of them.
    faults: u32,
    last_fault: Option<Fault>,
    started: Instant,
    span: Span,
}

/// What is left of a job that ended.
pub(super) struct Ended {
    pub(super) direction: TierDirection,
    pub(super) failed: Vec<OffloadKey>,
    pub(super) moved: u64,
    pub(super) took: Duration,
}

impl Job {
    pub(super) fn new(job: TierJob, tier: &str, chunk_bytes: usize, deadline: Duration) -> Self {
        let TierJob { id, req: request, direction, chunks } = job;
        let RequestId(req) = request;
        let (num_chunks, bytes) = (chunks.len(), chunks.len().saturating_mul(chunk_bytes));
        let span = match direction {
            TierDirection::Write => {
                tracing::debug_span!("kvo.nvme.write", job = id.0, tier, req, num_chunks, bytes)
            }
            TierDirection::Read => {
                tracing::debug_span!("kvo.nvme.read", job = id.0, tier, req, num_chunks, bytes)
            }
        };
        Self {
            req: request,
            direction,
            deadline,
            states: vec![State::Ended; chunks.len()],
            chunks,
            undecided: 0,
            late: 0,
            held: Vec::new(),
            is_reported: false,
            failed: Vec::new(),
            moved: 0,
            faults: 0,
            last_fault: None,
            started: Instant::now(),
            span,
        }
    }

    pub(super) fn chunks(&self) -> &[TierChunk] {
        &self.chunks
    }

    pub(super) fn num_chunks(&self) -> u32 {
        u32::try_from(self.chunks.len()).expect("checked when the job was taken")
    }

    pub(super) fn chunk(&self, index: u32) -> TierChunk {
        self.chunks[index as usize]
    }

    pub(super) fn is_decided(&self) -> bool {
        self.undecided == 0
    }

    /// The report has been taken.
    pub(super) fn reported(&mut self) {
        self.is_reported = true;
    }

    /// Whether the job is reported, and the engine has nothing of it any more.
    pub(super) fn is_over(&self) -> bool {
        self.is_reported && self.late == 0
    }

    /// A chunk goes to the engine.
    pub(super) fn begin(&mut self, index: u32) {
        self.undecided += 1;
        self.set(index, State::Moving);
    }

    /// A chunk goes to the engine again, which may happen once; says whether it may.
    pub(super) fn begin_again(&mut self, index: u32) -> bool {
        let first = self.states[index as usize] == State::Moving;
        if first {
            self.set(index, State::MovingAgain);
        }
        first
    }

    /// A chunk's end depends on another write.
    pub(super) fn wait(&mut self, index: u32) {
        self.undecided += 1;
        self.set(index, State::Waiting);
    }

    /// A chunk fails that nothing was done for.
    pub(super) fn fail_at_once(&mut self, index: u32) {
        self.failed.push(index);
    }

    /// A chunk has left the engine. Says whether it was late, and with that reported before.
    pub(super) fn chunk_ended(&mut self, index: u32, result: Result<u64, Fault>) -> bool {
        let was_late = self.set(index, State::Ended) == State::Late;
        if was_late {
            self.late -= 1;
            return true;
        }
        self.undecided -= 1;
        match result {
            Ok(_) => self.moved += 1,
            Err(fault) => {
                self.failed.push(index);
                self.faults += 1;
                self.last_fault = Some(fault);
            }
        }
        false
    }

    /// The write of another job has decided a chunk of this one.
    pub(super) fn wait_ended(&mut self, index: u32, written: bool) {
        self.undecided -= 1;
        self.set(index, State::Ended);
        if !written {
            self.failed.push(index);
        }
    }

    /// Fails every chunk that is not decided; returns how many of them the engine still has.
    pub(super) fn give_up(&mut self) -> u32 {
        for index in 0..self.num_chunks() {
            match self.states[index as usize] {
                State::Moving | State::MovingAgain => {
                    self.held.push(self.chunk(index).slot);
                    self.late += 1;
                    self.set(index, State::Late);
                }
                State::Waiting => {
                    self.set(index, State::Ended);
                }
                State::Ended | State::Late => continue,
            }
            self.undecided -= 1;
            self.faults += 1;
            self.failed.push(index);
            self.last_fault = Some(Fault::Late);
        }
        self.late
    }

    /// The slots of the host memory that the engine still has although the job ends, for its report.
    pub(super) fn take_held(&mut self) -> Vec<SlotId> {
        std::mem::take(&mut self.held)
    }

    fn set(&mut self, index: u32, state: State) -> State {
        std::mem::replace(&mut self.states[index as usize], state)
    }

    /// Ends the job: failed keys head to tail, each once.
    pub(super) fn end(&mut self) -> Ended {
        self.failed.sort_unstable();
        let mut seen = HashSet::new();
        let keys = self.failed.iter().map(|&index| self.chunks[index as usize].key);
        let failed: Vec<OffloadKey> = keys.filter(|key| seen.insert(*key)).collect();
        let took = self.started.elapsed();
        self.span.in_scope(|| {
            let (num_failed, faults) = (failed.len(), self.faults);
            if let Some(last) = &self.last_fault {
                tracing::warn!(num_failed, faults, %last, ?took, "ended with faults");
            } else {
                tracing::debug!(num_failed, ?took, "ended");
            }
        });
        Ended { direction: self.direction, failed, moved: self.moved, took }
    }

    #[cfg(any(test, feature = "testing"))]
    pub(super) fn open_chunks(&self) -> usize {
        (self.undecided + self.late) as usize
    }
}

impl Ended {
    /// Adds the job to the counts of its direction.
    pub(super) fn count(&self, edge: &mut EdgeStats, chunk_bytes: usize) {
        if self.failed.is_empty() {
            edge.jobs_done += 1;
        } else {
            edge.jobs_failed += 1;
        }
        edge.chunks += self.moved;
        edge.bytes += self.moved * chunk_bytes as u64;
        edge.time += self.took;
    }
}
