//! The state that a manager keeps in a request's context.

use kvo_core::KeyPositions;
use kvo_policies::RequestAccesses;

/// What a request has met in one reset generation, and whether it is finished.
#[derive(Debug, Default)]
pub(crate) struct RequestState {
    generation: u64,
    accesses: RequestAccesses,
    /// Outlives resets.
    is_finished: bool,
}

impl RequestState {
    /// The request begins, with the room of another one's accesses.
    pub(crate) fn begin(&mut self, room: RequestAccesses) {
        self.accesses = room;
    }

    pub(crate) fn is_finished(&self) -> bool {
        self.is_finished
    }

    /// The accesses of `generation`. Those of an older one are void.
    pub(crate) fn accesses(&mut self, generation: u64, positions: &KeyPositions) -> &mut RequestAccesses {
        if self.generation != generation {
            self.generation = generation;
            self.accesses.clear();
        }
        if positions.were_replaced() {
            self.accesses.on_positions_replaced();
        }
        &mut self.accesses
    }

    /// The request ends; returns its accesses of `generation`.
    pub(crate) fn finish(&mut self, generation: u64, positions: &KeyPositions) -> RequestAccesses {
        self.is_finished = true;
        std::mem::take(self.accesses(generation, positions))
    }
}
