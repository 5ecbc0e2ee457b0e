//! The state that a manager keeps in a request's context.

use kvo_core::KeyPositions;
use kvo_policies::RequestAccesses;

/// What a request has met in one reset generation, and whether it is finished.
#[derive(Debug, Default)]
pub(crate) struct RequestState {
    generation: u64,
    accesses: RequestAccesses,
    /// Outlives resets.
    pub(crate) finished: bool,
}

impl RequestState {
    /// The accesses of `generation`. Those of an older one are void.
    pub(crate) fn accesses(&mut self, generation: u64, positions: &KeyPositions) -> &mut RequestAccesses {
        if self.generation != generation {
            self.generation = generation;
            self.accesses = RequestAccesses::default();
        }
        if positions.were_replaced() {
            self.accesses.on_positions_replaced();
        }
        &mut self.accesses
    }
}
