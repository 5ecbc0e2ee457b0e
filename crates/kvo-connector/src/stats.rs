//! Counters.

use kvo_core::Direction;

/// What a connector has done, and what is under way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConnectorStats {
    /// Requests that run.
    pub open_requests: usize,
    /// Copies that are under way.
    pub open_copies: usize,
    /// Blocks that they use.
    pub blocks_in_use: usize,
    /// Chunks of which something is kept for block events.
    pub chunks_known: usize,
    /// Matches that found something to load.
    pub matches: u64,
    /// Tokens that they found.
    pub tokens_matched: u64,
    /// Matches that were told to ask again.
    pub asked_again: u64,
    /// Matches that went on without chunks that did not come in time.
    pub patience_ended: u64,
    /// Loads that arrived.
    pub loads: u64,
    /// Loads that failed at one worker at least.
    pub loads_failed: u64,
    /// Stores that arrived.
    pub stores: u64,
    /// Stores that failed at one worker at least.
    pub stores_failed: u64,
    /// Copies that a worker had not reported in time.
    pub copies_late: u64,
    /// Offers that the primary tier had no room for.
    pub offers_refused: u64,
    /// Copies that a step or a load had to wait for, as it uses their blocks.
    pub waits: u64,
}

impl ConnectorStats {
    pub(crate) fn count(&mut self, direction: Direction, has_failed: bool) {
        *match (direction, has_failed) {
            (Direction::Load, false) => &mut self.loads,
            (Direction::Load, true) => &mut self.loads_failed,
            (Direction::Store, false) => &mut self.stores,
            (Direction::Store, true) => &mut self.stores_failed,
        } += 1;
    }
}
