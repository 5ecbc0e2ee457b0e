//! A job from its submission to its report.

use std::time::{Duration, Instant};

use hashbrown::HashSet;
use kvo_core::{EdgeStats, JobId, OffloadKey, RequestId, TierChunk, TierDirection, TierJob};
use tracing::Span;

use crate::engine::Fault;

/// A chunk of a write job that waits for another job's write of the same key.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiter {
    pub(super) job: JobId,
    pub(super) index: u32,
}

/// A job that was taken and is not reported yet.
pub(super) struct Job {
    pub(super) direction: TierDirection,
    chunks: Vec<TierChunk>,
    /// Chunks whose end is not known yet.
    undecided: u32,
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
    pub(super) fn new(job: TierJob, tier: &str, chunk_bytes: usize) -> Self {
        let TierJob { id, req: RequestId(req), direction, chunks } = job;
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
            direction,
            chunks,
            undecided: 0,
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

    /// One more chunk whose end is to be waited for.
    pub(super) fn await_one(&mut self) {
        self.undecided += 1;
    }

    /// A chunk fails that nothing was done for.
    pub(super) fn fail_at_once(&mut self, index: u32) {
        self.failed.push(index);
    }

    /// A chunk that was waited for has been moved.
    pub(super) fn chunk_moved(&mut self) {
        self.undecided -= 1;
        self.moved += 1;
    }

    /// A chunk that was waited for could not be moved.
    pub(super) fn chunk_failed(&mut self, index: u32, fault: Fault) {
        self.undecided -= 1;
        self.failed.push(index);
        self.faults += 1;
        self.last_fault = Some(fault);
    }

    /// The write of another job has decided a chunk of this one.
    pub(super) fn wait_ended(&mut self, index: u32, written: bool) {
        self.undecided -= 1;
        if !written {
            self.failed.push(index);
        }
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

    #[cfg(test)]
    pub(super) fn undecided(&self) -> usize {
        self.undecided as usize
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
