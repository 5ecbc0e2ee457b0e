//! The end of all tiers below the primary.

use std::time::Duration;

use kvo_core::{ShutDown, TransferResult};
use kvo_policies::CachePolicy;

use super::{QueuedPromotion, TieringManager};

impl<P: CachePolicy> TieringManager<P> {
    /// Ends the tiers, in their order, with the time that those before have left; each is told to, however little that is.
    /// What they report on the way unpins and frees slots as ever.
    pub(super) fn shut_down_tiers(&mut self, timeout: Duration) -> ShutDown {
        self.is_shut_down = true;
        let mut lost = Vec::new();
        for QueuedPromotion { hold, .. } in self.take_queued() {
            // Nothing is copied yet.
            lost.push(hold.key());
            let released = self.primary.release(hold, TransferResult::Failed);
            released.expect("the holds of promotions are the primary's own");
        }
        self.primary.record_promotions(&[], &lost);
        self.turns.fail(&lost);
        for request in self.requests.values_mut() {
            request.parked.clear();
        }
        // Some waited for nothing else.
        for id in std::mem::take(&mut self.parking).into_values() {
            self.finalise_if_settled(id);
        }
        let (start, mut tiers_failed) = (self.now(), Vec::new());
        for index in 0..self.tiers.all.len() {
            let left = timeout.saturating_sub(self.now().saturating_sub(start));
            let tier = &mut self.tiers.all[index].inner;
            if let Err(error) = tier.shut_down(left) {
                tracing::error!(tier = tier.name(), %error, "a tier was not ended well");
                tiers_failed.push((tier.name().to_owned(), error));
            }
        }
        self.poll();
        let slots_held: u64 = self.tiers.stats().iter().map(|stats| stats.held_slots).sum();
        ShutDown {
            tiers_failed,
            jobs_open: self.tiers.open.len(),
            slots_held: usize::try_from(slots_held).unwrap_or(usize::MAX),
        }
    }
}
