//! Lanes: threads that copy.

use std::{
    sync::{Arc, MutexGuard},
    time::Duration,
};

use kvo_core::{CopyOp, DeviceHealth, Direction, HostMemory, SlotAccessError, TransferFailure};

use super::{
    copy::{Copier, Region},
    core::Core,
    link::LinkModel,
    shared::Shared,
};
use crate::queue::Piece;

/// What a lane works on.
pub(super) struct Lane {
    pub(super) shared: Arc<Shared>,
    pub(super) host: Arc<dyn HostMemory>,
    pub(super) direction: Direction,
    pub(super) link: Option<LinkModel>,
}

/// A piece to copy.
pub(super) struct Work {
    pub(super) piece: Piece,
    pub(super) regions: Arc<Vec<Option<Region>>>,
    pub(super) span: tracing::Span,
    pub(super) detects: bool,
}

impl Lane {
    /// The lane's thread: one piece after the other, until the device is stopped and nothing has begun.
    pub(super) fn run(&self) {
        let mut ops = Vec::new();
        let mut free_at = Duration::ZERO;
        while let Some(work) = self.next(&mut ops) {
            if let Some(link) = &self.link {
                let time = link.time(work.piece.bytes(), ops.len(), work.piece.is_first());
                free_at = free_at.max(self.shared.now()).saturating_add(time);
            }
            let copied = work.span.in_scope(|| self.shared.caught(|| self.copy(&work, &ops)));
            let Work { piece, regions, span, .. } = work;
            drop((regions, span));
            let mut core = self.shared.lock();
            while core.queue.is_wanted(&piece) && self.shared.now() < free_at {
                core = self.shared.wait_lane_for(
                    self.direction,
                    core,
                    free_at.saturating_sub(self.shared.now()),
                );
            }
            core.end(piece, copied, self.shared.now());
            self.wake(&core);
        }
    }

    /// Waits for a piece; `None` when there will be none.
    fn next(&self, ops: &mut Vec<CopyOp>) -> Option<Work> {
        let mut core = self.shared.lock();
        loop {
            core.queue.on_time(self.shared.now());
            if core.queue.has_done() {
                self.shared.wake_owner();
            }
            if let Some(piece) = core.next_piece(self.direction) {
                if !piece.marks().is_empty() {
                    // A stream may have waited for these copies to be on their way.
                    self.shared.wake_streams();
                }
                return Some(Work::new(&core, piece, ops));
            }
            if core.queue.health() != DeviceHealth::Healthy {
                return None;
            }
            core = self.shared.wait_lane(self.direction, core);
        }
    }

    /// Something has ended: whoever may wait for it is woken.
    fn wake(&self, core: &MutexGuard<'_, Core>) {
        if core.queue.has_done() || core.queue.has_released() {
            self.shared.wake_owner();
        }
        self.shared.wake_streams();
    }

    /// Copies slot by slot, holding each once for all neighbouring copies of it. The slot is locked first, then one
    /// segment of device memory after the other.
    fn copy(&self, work: &Work, ops: &[CopyOp]) -> Result<(), TransferFailure> {
        let copier = Copier { host: &*self.host, regions: &work.regions, direction: self.direction };
        if work.detects {
            work.poison(&self.shared, &copier)?;
        }
        for (nth, ops) in ops.chunk_by(|one, next| one.slot == next.slot).enumerate() {
            if nth > 0 && !self.shared.lock().queue.is_wanted(&work.piece) {
                break;
            }
            if work.detects {
                work.check_poison(&self.shared, &copier, ops);
            }
            copier.copy(ops)?;
        }
        Ok(())
    }
}

impl Work {
    /// Puts the copies of a piece into `ops`.
    pub(super) fn new(core: &Core, piece: Piece, ops: &mut Vec<CopyOp>) -> Self {
        ops.clear();
        core.queue.copies(&piece, ops);
        let (regions, span) = (Arc::clone(&core.regions), core.queue.span(&piece));
        Self { piece, regions, span, detects: core.detector.is_some() }
    }

    /// Poisons all that the transfer will bring, before its first copy.
    pub(super) fn poison(&self, shared: &Shared, copier: &Copier<'_>) -> Result<(), SlotAccessError> {
        if self.piece.is_first() {
            let mut all = Vec::new();
            shared.lock().queue.all_copies(&self.piece, &mut all);
            copier.poison(&all)?;
        }
        Ok(())
    }

    /// Reports what was written since it was poisoned.
    pub(super) fn check_poison(&self, shared: &Shared, copier: &Copier<'_>, ops: &[CopyOp]) {
        for op in ops.iter().filter(|op| !copier.is_poisoned(op)) {
            shared.lock().report_disturbed(&self.piece, op);
        }
    }
}
