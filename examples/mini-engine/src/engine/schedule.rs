//! What a step computes: running requests first, then waiting ones, oldest first, as far as tokens and blocks go.

use std::ops::Range;

use kvo_connector::PrefixMatch;
use kvo_core::RequestId;

use super::{
    Engine,
    offload::{LoadStart, Offload},
};
use crate::EngineError;

/// What a step computes.
#[derive(Debug, Default)]
pub(super) struct Schedule {
    /// Each request once, oldest running ones first.
    pub(super) chunks: Vec<Chunk>,
    /// Requests that lost their blocks.
    pub(super) preempted: Vec<RequestId>,
}

/// Tokens of one request.
#[derive(Clone, Debug)]
pub(super) struct Chunk {
    pub(super) request: RequestId,
    pub(super) tokens: Range<usize>,
}

/// What came of a request that was to begin.
enum Admission {
    Runs(Chunk),
    WaitsForLoad,
    /// It is asked for again in the next step.
    Later,
    NoBlocks,
}

impl<O: Offload> Engine<O> {
    pub(super) fn schedule(&mut self) -> Result<Schedule, EngineError> {
        let mut schedule = Schedule::default();
        let mut budget = self.options.step_tokens as usize;
        let running: Vec<RequestId> = self.running.iter().copied().collect();
        for id in running {
            if budget > 0 && self.running.contains(&id) {
                self.schedule_running(id, &mut budget, &mut schedule);
            }
        }
        // Whoever comes in would take the blocks that were just made free.
        if schedule.preempted.is_empty() {
            self.schedule_waiting(budget, &mut schedule)?;
        }
        Ok(schedule)
    }

    /// Schedules a request that has blocks, at the cost of younger ones if there are no more.
    fn schedule_running(&mut self, id: RequestId, budget: &mut usize, schedule: &mut Schedule) {
        let request = self.requests.get_mut(&id).expect("a running request is known");
        let end = request.tokens.len().min(request.computed + *budget);
        let chunk = Chunk { request: id, tokens: request.computed..end };
        loop {
            let request = self.requests.get_mut(&id).expect("a running request is known");
            if self.groups.grow(&mut request.tables, end) {
                *budget -= chunk.tokens.len();
                schedule.chunks.push(chunk);
                return;
            }
            let youngest = *self.running.last().expect("this one runs");
            self.preempt(youngest);
            schedule.preempted.push(youngest);
            if youngest == id {
                return;
            }
        }
    }

    /// Takes a request's blocks. It begins again when there is room, and finds what is left of them by name.
    fn preempt(&mut self, id: RequestId) {
        let request = self.requests.get_mut(&id).expect("a running request is known");
        self.groups.release(&request.tables);
        request.tables.clear();
        request.computed = 0;
        request.hits.preemptions += 1;
        self.running.remove(&id);
        self.waiting.insert(id);
    }

    fn schedule_waiting(&mut self, mut budget: usize, schedule: &mut Schedule) -> Result<(), EngineError> {
        // One that has lost its blocks begins again once the offload knows of that: in the next step.
        let waiting = self.waiting.iter().copied().filter(|id| !self.lost.contains(id));
        for id in waiting.collect::<Vec<_>>() {
            if budget == 0 || self.running.len() + self.loading.len() >= self.options.requests_max {
                return Ok(());
            }
            match self.admit(id, budget)? {
                Admission::Runs(chunk) => {
                    self.waiting.remove(&id);
                    self.running.insert(id);
                    budget -= chunk.tokens.len();
                    schedule.chunks.push(chunk);
                }
                Admission::WaitsForLoad => {
                    self.waiting.remove(&id);
                }
                Admission::Later => {}
                Admission::NoBlocks => return Ok(()),
            }
        }
        Ok(())
    }

    /// Gives a request its first blocks: those of its prefix that the device has, and new ones for what is loaded and
    /// for the first tokens that are computed.
    fn admit(&mut self, id: RequestId, budget: usize) -> Result<Admission, EngineError> {
        let block_tokens = self.options.block_tokens as usize;
        let request = self.requests.get_mut(&id).expect("a waiting request is known");
        // The last token is computed whatever is known, for its logits.
        let matching = self.groups.matching(&request.hashes, (request.tokens.len() - 1) / block_tokens);
        request.computed = matching * block_tokens;
        let loadable = match self.offload.match_prefix(request.view())? {
            PrefixMatch::AskAgain => {
                request.computed = 0;
                return Ok(Admission::Later);
            }
            PrefixMatch::Loadable(tokens) => tokens as usize,
        };
        let load = request.computed..request.computed + loadable;
        let end = request.tokens.len().min(load.end + budget);
        request.tables = self.groups.adopt(&request.hashes, matching);
        let loaded = if load.is_empty() { 0 } else { load.end };
        if !self.groups.grow_from(&mut request.tables, loaded, end) {
            self.take_back(id);
            return Ok(Admission::NoBlocks);
        }
        let chunk = Chunk { request: id, tokens: load.end..end };
        let found = request.computed as u64;
        let admission =
            if load.is_empty() { Admission::Runs(chunk) } else { self.begin_load(id, load, chunk)? };
        if !matches!(admission, Admission::Later) {
            self.requests.get_mut(&id).expect("it is still there").hits.device_tokens += found;
        }
        Ok(admission)
    }

    fn begin_load(
        &mut self,
        id: RequestId,
        load: Range<usize>,
        chunk: Chunk,
    ) -> Result<Admission, EngineError> {
        let request = self.requests.get_mut(&id).expect("a waiting request is known");
        Ok(match self.offload.blocks_allocated(request.view())? {
            LoadStart::Gone => {
                self.take_back(id);
                Admission::Later
            }
            LoadStart::Wait => {
                self.loading.insert(id, load);
                Admission::WaitsForLoad
            }
            LoadStart::ByLayer => {
                request.computed = load.end;
                self.layered.insert(id, load);
                Admission::Runs(chunk)
            }
        })
    }

    /// Takes the blocks of a request back that is not to begin after all.
    pub(super) fn take_back(&mut self, id: RequestId) {
        let request = self.requests.get_mut(&id).expect("a waiting request is known");
        self.groups.release(&request.tables);
        request.tables.clear();
        request.computed = 0;
    }
}
