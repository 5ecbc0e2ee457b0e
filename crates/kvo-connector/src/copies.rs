//! The copies that are under way, and the blocks that they use.

use std::{collections::VecDeque, time::Duration};

use hashbrown::{HashMap, HashSet};
use kvo_core::{BlockId, Direction, GroupIdx, JobToken, OffloadKey, RequestId};

use crate::{ConnectorError, CopyId, plan::CopyPlan};

/// How a copy ended at a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CopyResult {
    /// Every byte is where it should be.
    Done,
    /// The bytes are not to be trusted, and the device touches slots and blocks no more.
    Failed,
    /// The bytes are not to be trusted, and the device may still touch slots and blocks, until the worker
    /// [releases](crate::Connector::copy_released) the copy.
    FailedAndHeld,
}

/// One copy that is under way.
#[derive(Debug)]
pub(crate) struct OpenCopy {
    pub(crate) copy: CopyId,
    pub(crate) direction: Direction,
    pub(crate) request: RequestId,
    /// Whose it is, also when the engine has used the number again.
    pub(crate) arrival: u64,
    pub(crate) token: JobToken,
    /// With the pools that they are of.
    blocks: Vec<(u32, BlockId)>,
    /// The first token that it brings, if it is a load.
    pub(crate) first_token: u32,
    /// Tokens that need not be computed after it.
    pub(crate) usable: u32,
    /// The chunks of a store.
    pub(crate) keys: Vec<OffloadKey>,
    /// The first chunk of each group that a store has, where it has one.
    pub(crate) first_chunks: Vec<Option<usize>>,
    workers: Vec<AtWorker>,
    pub(crate) has_failed: bool,
    /// Its request has been preempted, aborted or reset: what it brings is of no use to anybody.
    pub(crate) is_void: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AtWorker {
    Open,
    /// It was not reported in time: nobody waits for it, and it still uses what it uses.
    Late,
    Held,
    Over,
}

/// What a report has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reported {
    /// How it has ended is known since this report.
    pub(crate) is_decided: bool,
    /// No device touches anything of it any more.
    pub(crate) is_over: bool,
}

/// All copies that are under way.
#[derive(Debug, Default)]
pub(crate) struct Copies {
    open: HashMap<CopyId, OpenCopy>,
    next: u64,
    /// When copies came into a plan, in that order; some that have ended are among them.
    began: VecDeque<(Duration, CopyId)>,
    /// Which copies use a block, by pool and block.
    in_use: HashMap<(u32, BlockId), Vec<CopyId>>,
    /// Chunks of stores that have failed and are not over.
    lost: HashSet<OffloadKey>,
}

impl OpenCopy {
    pub(crate) fn new(
        plan: &CopyPlan,
        arrival: u64,
        token: JobToken,
        num_workers: u32,
        pool_of: impl Fn(GroupIdx) -> u32,
    ) -> Self {
        Self {
            copy: plan.copy,
            direction: plan.direction(),
            request: plan.request,
            arrival,
            token,
            blocks: plan.blocks().map(|(group, block)| (pool_of(group), block)).collect(),
            first_token: 0,
            usable: 0,
            keys: Vec::new(),
            first_chunks: Vec::new(),
            workers: vec![AtWorker::Open; num_workers as usize],
            has_failed: false,
            is_void: false,
        }
    }
}

impl OpenCopy {
    fn is_open(&self) -> bool {
        self.workers.contains(&AtWorker::Open)
    }

    pub(crate) fn is_over(&self) -> bool {
        self.workers.iter().all(|at| *at == AtWorker::Over)
    }
}

impl Copies {
    pub(crate) fn next_id(&mut self) -> CopyId {
        self.next += 1;
        CopyId(self.next - 1)
    }

    pub(crate) fn len(&self) -> usize {
        self.open.len()
    }

    /// Whether some worker is still to report one.
    pub(crate) fn has_open(&self) -> bool {
        self.open.values().any(OpenCopy::is_open)
    }

    /// Whether a chunk is one of a failed store that has its slot until some device lets go.
    pub(crate) fn is_lost(&self, key: &OffloadKey) -> bool {
        !self.lost.is_empty() && self.lost.contains(key)
    }

    /// A store has failed, and is not over yet.
    pub(crate) fn lose(&mut self, id: CopyId) {
        self.lost.extend(self.open.get(&id).into_iter().flat_map(|copy| copy.keys.iter().copied()));
    }

    pub(crate) fn blocks_in_use(&self) -> usize {
        self.in_use.len()
    }

    pub(crate) fn all_mut(&mut self) -> impl Iterator<Item = &mut OpenCopy> {
        self.open.values_mut()
    }

    /// Adds the copies that use a block, but for some, to `users`, each once.
    pub(crate) fn users(&self, pool: u32, block: BlockId, but: &[CopyId], users: &mut Vec<CopyId>) {
        for copy in self.in_use.get(&(pool, block)).into_iter().flatten() {
            if !but.contains(copy) && !users.contains(copy) {
                users.push(*copy);
            }
        }
    }

    pub(crate) fn begin(&mut self, copy: OpenCopy) {
        for block in &copy.blocks {
            self.in_use.entry(*block).or_default().push(copy.copy);
        }
        self.open.insert(copy.copy, copy);
    }

    /// A copy is in a plan: its workers have their time from now on.
    pub(crate) fn planned(&mut self, copy: CopyId, now: Duration) {
        // Of those that have ended there are never many more than of those that have not.
        if self.began.len() >= 2 * self.open.len() + 64 {
            let open = &self.open;
            self.began.retain(|(_, copy)| open.get(copy).is_some_and(OpenCopy::is_open));
        }
        self.began.push_back((now, copy));
    }

    pub(crate) fn get_mut(&mut self, id: CopyId) -> Option<&mut OpenCopy> {
        self.open.get_mut(&id)
    }

    pub(crate) fn report(
        &mut self,
        id: CopyId,
        worker: u32,
        result: CopyResult,
    ) -> Result<Reported, ConnectorError> {
        let not_open = ConnectorError::NotOpen { copy: id, worker };
        let Some(copy) = self.open.get_mut(&id) else { return Err(not_open) };
        let was_open = copy.is_open();
        match copy.workers.get_mut(worker as usize) {
            Some(at @ (AtWorker::Open | AtWorker::Late)) => {
                *at = if result == CopyResult::FailedAndHeld { AtWorker::Held } else { AtWorker::Over };
            }
            _ => return Err(not_open),
        }
        copy.has_failed |= result != CopyResult::Done;
        let is_decided = was_open && !copy.is_open();
        Ok(Reported { is_decided, is_over: copy.is_over() })
    }

    /// The next copy that began at `since` or before and that a worker has not reported. Nobody waits for it any more.
    pub(crate) fn next_late(&mut self, since: Duration) -> Option<CopyId> {
        while let Some((_, id)) = self.began.pop_front_if(|(began, _)| *began <= since) {
            let Some(copy) = self.open.get_mut(&id) else { continue };
            if copy.is_open() {
                copy.has_failed = true;
                for at in copy.workers.iter_mut().filter(|at| **at == AtWorker::Open) {
                    *at = AtWorker::Late;
                }
                return Some(id);
            }
        }
        None
    }

    /// A worker holds nothing of a copy any more. Says whether none does.
    pub(crate) fn release(&mut self, id: CopyId, worker: u32) -> Result<bool, ConnectorError> {
        let not_open = ConnectorError::NotOpen { copy: id, worker };
        let Some(copy) = self.open.get_mut(&id) else { return Err(not_open) };
        match copy.workers.get_mut(worker as usize) {
            Some(at @ AtWorker::Held) => *at = AtWorker::Over,
            _ => return Err(not_open),
        }
        Ok(copy.is_over())
    }

    /// Forgets a copy that is over.
    pub(crate) fn end(&mut self, id: CopyId) -> OpenCopy {
        let copy = self.open.remove(&id).expect("a copy ends once, and is open until then");
        if !self.lost.is_empty() {
            self.lost.retain(|key| !copy.keys.contains(key));
        }
        for block in &copy.blocks {
            if let Some(users) = self.in_use.get_mut(block) {
                users.retain(|user| *user != id);
                if users.is_empty() {
                    self.in_use.remove(block);
                }
            }
        }
        copy
    }
}
