//! What lookups find below the primary, and what is brought up for them.

use std::time::Duration;

use kvo_core::{LookupResult, OffloadKey, RequestContext, TierDirection, TierLookup, TransferResult};
use kvo_cpu::TierHold;
use kvo_policies::CachePolicy;

use super::{QueuedPromotion, TieringManager};
use crate::{pressure::Grant, request::Owner};

/// The promotions of one request from one tier in one step.
#[derive(Debug)]
struct PromotionJob {
    tier: usize,
    of: Owner,
    holds: Vec<(TierHold, Option<u32>)>,
}

impl<P: CachePolicy> TieringManager<P> {
    /// Asks the secondary tiers for a key that the primary does not have.
    pub(super) fn lookup_below(&mut self, req: &mut RequestContext, key: &OffloadKey) -> LookupResult {
        let of = match self.requests.get(&req.id()) {
            Some(request) if request.may_promote(key) && !self.promotions_held && !self.is_shut_down => {
                Owner { req: req.id(), arrival: request.arrival }
            }
            _ => return LookupResult::Miss,
        };
        let now = self.now();
        let mut retry = false;
        for index in 0..self.tiers.all.len() {
            let tier = &mut self.tiers.all[index];
            if !req.tier_filter().allows(tier.inner.medium(), tier.inner.locality()) {
                continue;
            }
            if !self.may_read(index, of, now) {
                continue;
            }
            let tier = &mut self.tiers.all[index];
            tier.stats.queries += 1;
            match tier.inner.lookup(req.id(), key) {
                TierLookup::Miss => {}
                TierLookup::Retry => {
                    tier.stats.retries += 1;
                    retry = true;
                }
                TierLookup::Hit => {
                    tier.stats.hits += 1;
                    if !self.is_left_out(index, of, now) {
                        return self.promote(index, of, req, key, now);
                    }
                }
            }
        }
        if retry { self.put_off(of, key, now) } else { self.decide(of, key, LookupResult::Miss) }
    }

    /// Whether a tier is asked. One that is fenced off is tried by the chunks of one request.
    fn may_read(&self, tier: usize, of: Owner, now: Duration) -> bool {
        self.tiers.may_read(tier, now) && !self.tiers.is_tried_by_another(tier, of)
    }

    /// Whether the request is to do without a tier that is slow to read. That is decided once.
    fn is_left_out(&mut self, tier: usize, of: Owner, now: Duration) -> bool {
        let Some(request) = of.find(&mut self.requests) else { return false };
        if request.reads_let_in.contains(tier) || request.reads_left_out.contains(tier) {
            return request.reads_left_out.contains(tier);
        }
        let is_out = self.tiers.leaves_out_reads(tier, now);
        let sets = if is_out { &mut request.reads_left_out } else { &mut request.reads_let_in };
        sets.insert(tier);
        self.tiers.all[tier].stats.requests_left_out += u64::from(is_out);
        is_out
    }

    fn promote(
        &mut self,
        tier: usize,
        of: Owner,
        req: &mut RequestContext,
        key: &OffloadKey,
        now: Duration,
    ) -> LookupResult {
        let is_alone = self.requests.len() == 1;
        let (in_flight, stuck) = self.tiers.being_read(tier);
        let grant = match self.turns.ask(of, is_alone, key, now) {
            Grant::Now => self.turns.ask_of_tier(in_flight, stuck, self.tiers.all.len()),
            refused => refused,
        };
        match grant {
            Grant::Now => {}
            Grant::Later => {
                self.stats.promotions_put_off += 1;
                return self.put_off(of, key, now);
            }
            Grant::Never => {
                self.stats.promotions_left_out += 1;
                return self.decide(of, key, LookupResult::Miss);
            }
        }
        let Some(hold) = self.primary.hold_for_promotion(req, key) else {
            self.stats.promotions_without_room += 1;
            return self.decide(of, key, LookupResult::Miss);
        };
        let evicted = self.primary.evicted_for_promotion().first().copied();
        self.lose(evicted.as_slice(), now);
        self.turns.begin(of, *key);
        let end_token = req.positions().end_token(key);
        self.tiers.queue(tier, of);
        self.queued.push(QueuedPromotion { tier, of, hold, end_token });
        self.decide(of, key, LookupResult::HitPending)
    }

    /// Chunks were evicted: of those that nobody has loaded, what they were promoted for does without.
    pub(super) fn lose(&mut self, evicted: &[OffloadKey], now: Duration) {
        for key in evicted {
            let Some(of) = self.turns.on_evicted(key, now) else { continue };
            self.stats.promotions_lost += 1;
            if let Some(request) = of.find(&mut self.requests) {
                request.failed.insert(*key);
            }
        }
    }

    /// A lookup is to be asked again, unless that has gone on for too long.
    fn put_off(&mut self, of: Owner, key: &OffloadKey, now: Duration) -> LookupResult {
        let (Some(deadline), Some(request)) =
            (self.options.pressure.lookup_deadline, of.find(&mut self.requests))
        else {
            return LookupResult::Retry;
        };
        let (since, last) = request.retries.entry(*key).or_insert((now, now));
        if now.saturating_sub(*last) >= self.options.pressure.unread_max {
            // It did not wait for it meanwhile.
            *since = now;
        }
        *last = now;
        if now.saturating_sub(*since) < deadline {
            return LookupResult::Retry;
        }
        request.failed.insert(*key);
        self.stats.lookups_expired += 1;
        self.decide(of, key, LookupResult::Miss)
    }

    /// A lookup has its answer.
    fn decide(&mut self, of: Owner, key: &OffloadKey, result: LookupResult) -> LookupResult {
        if let Some(request) = of.find(&mut self.requests)
            && !request.retries.is_empty()
        {
            request.retries.remove(key);
        }
        result
    }

    /// Submits the promotions of the step: one job per tier and request, each in the order first queued.
    pub(super) fn submit_promotions(&mut self) {
        let mut jobs: Vec<PromotionJob> = Vec::new();
        let mut tier_order: Vec<usize> = Vec::new();
        for QueuedPromotion { tier, of, hold, end_token } in self.take_queued() {
            if !tier_order.contains(&tier) {
                tier_order.push(tier);
            }
            match jobs.iter_mut().find(|job| job.tier == tier && job.of == of) {
                Some(job) => job.holds.push((hold, end_token)),
                None => jobs.push(PromotionJob { tier, of, holds: vec![(hold, end_token)] }),
            }
        }
        jobs.sort_by_key(|job| tier_order.iter().position(|tier| *tier == job.tier));
        let now = self.now();
        for PromotionJob { tier, of, holds } in jobs {
            if let Err(holds) = self.tiers.submit(tier, of, TierDirection::Read, holds, now) {
                self.fail_promotions(of, holds);
            }
        }
    }

    /// Frees the slots of promotions that no tier will serve.
    fn fail_promotions(&mut self, of: Owner, holds: Vec<TierHold>) {
        let mut lost = Vec::with_capacity(holds.len());
        for hold in holds {
            lost.push(hold.key());
            self.primary
                .release(hold, TransferResult::Failed)
                .expect("the holds of promotions are the primary's own");
        }
        self.primary.record_promotions(&[], &lost);
        self.turns.fail(&lost);
        if let Some(request) = of.find(&mut self.requests) {
            request.failed.extend(lost);
        }
    }
}
