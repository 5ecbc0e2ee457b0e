//! Whose promotions go first, and how much of the primary they may have.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use hashbrown::HashMap;
use kvo_core::{JobId, OffloadKey};

use super::PressureOptions;
use crate::request::Owner;

/// Whether a chunk may be promoted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Grant {
    /// Yes. If a slot is found for it, the chunk [begins](Turns::begin).
    Now,
    /// Others come first.
    Later,
    /// Not for this request.
    Never,
}

/// The requests that wait for promotions, oldest first, and the chunks promoted for them that nobody has loaded.
#[derive(Debug)]
pub(crate) struct Turns {
    /// Slots for such chunks, if they have a bound.
    slots_max: Option<usize>,
    num_slots: usize,
    unread_max: Duration,
    unread: HashMap<OffloadKey, Unread>,
    /// How many of them are ending.
    num_ending: usize,
    /// Those that each load is loading.
    loads: HashMap<JobId, Vec<OffloadKey>>,
    /// By arrival.
    waiting: BTreeMap<u64, Waiting>,
    /// Chunks that were evicted before anybody had loaded them, by when; and the newest time of each.
    lost: VecDeque<(Duration, OffloadKey)>,
    lost_at: HashMap<OffloadKey, Duration>,
    /// Whether those that wait no more were looked for in this step.
    is_swept: bool,
}

/// A chunk that was promoted and that nobody has loaded.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unread {
    pub(super) of: Owner,
    pub(super) state: Coming,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Coming {
    UnderWay,
    Here,
    /// Its request waits for it no more. Its slot is in use until it is here.
    Unwanted,
    /// Its slot is pinned until that is over.
    Loading,
}

impl Coming {
    /// Whether the slot comes back whatever anybody waits for.
    pub(super) fn is_ending(self) -> bool {
        matches!(self, Self::Unwanted | Self::Loading)
    }
}

#[derive(Debug, Default)]
struct Waiting {
    /// Every chunk promoted for it; some are no longer unread, or another's.
    keys: Vec<OffloadKey>,
    /// When it asked last, or something came for it.
    active_at: Duration,
}

impl Turns {
    pub(crate) fn new(options: &PressureOptions, num_slots: u32) -> Self {
        let slots_max = options.promotion_share.map(|percent| {
            let slots = u64::from(num_slots) * u64::from(percent) / 100;
            usize::try_from(slots).unwrap_or(usize::MAX).max(1)
        });
        Self {
            slots_max,
            num_slots: num_slots as usize,
            unread_max: options.unread_max,
            unread: HashMap::new(),
            num_ending: 0,
            loads: HashMap::new(),
            waiting: BTreeMap::new(),
            lost: VecDeque::new(),
            lost_at: HashMap::new(),
            is_swept: false,
        }
    }

    /// Chunks that were promoted, or are being, and that nobody has loaded to the end.
    pub(crate) fn num_unread(&self) -> usize {
        self.unread.len()
    }

    /// Whether a tier that is to bring so many chunks, of which `stuck` may never come back, may be asked for another one: of
    /// the slots for such chunks each of `num_tiers` has its part, so that one that hangs does not take all of them. That
    /// holds for a request that is alone, too.
    pub(crate) fn ask_of_tier(&self, in_flight: usize, stuck: usize, num_tiers: usize) -> Grant {
        let Some(slots_max) = self.slots_max else { return Grant::Now };
        let of_tier = (slots_max / num_tiers.max(1)).max(1);
        match () {
            () if stuck >= of_tier => Grant::Never,
            () if in_flight >= of_tier => Grant::Later,
            () => Grant::Now,
        }
    }

    pub(crate) fn are_any_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// A request asks for what is under way.
    pub(crate) fn still_asks(&mut self, arrival: u64, now: Duration) {
        if let Some(waiting) = self.waiting.get_mut(&arrival) {
            waiting.active_at = now;
        }
    }

    /// Whether a chunk that a tier has may be promoted for a request, which may be alone: then there is nobody to leave
    /// room for. Costs the same whatever it answers, but for the first refusal of a step, which looks through the requests
    /// that wait.
    pub(crate) fn ask(&mut self, of: Owner, is_alone: bool, key: &OffloadKey, now: Duration) -> Grant {
        let Some(slots_max) = self.slots_max else { return Grant::Now };
        let slots_max = if is_alone { self.num_slots } else { slots_max };
        self.forget_lost(now);
        if self.lost_at.contains_key(key) {
            return Grant::Never;
        }
        self.waiting.entry(of.arrival).or_default().active_at = now;
        let mut grant = self.grant(of, slots_max);
        if grant != Grant::Now && !std::mem::replace(&mut self.is_swept, true) {
            self.sweep(now);
            grant = self.grant(of, slots_max);
        }
        grant
    }

    fn grant(&self, of: Owner, slots_max: usize) -> Grant {
        let is_oldest = self.waiting.first_key_value().is_some_and(|(arrival, _)| *arrival == of.arrival);
        let for_it = if is_oldest { slots_max } else { slots_max / 2 };
        if self.unread.len() < for_it {
            Grant::Now
        } else if is_oldest && self.num_ending == 0 {
            // It cannot wait for the others: they may wait for it.
            Grant::Never
        } else {
            Grant::Later
        }
    }

    /// A slot was reserved for a chunk that was granted.
    pub(crate) fn begin(&mut self, of: Owner, key: OffloadKey) {
        if self.slots_max.is_some() {
            self.unread.insert(key, Unread { of, state: Coming::UnderWay });
            self.waiting.entry(of.arrival).or_default().keys.push(key);
        }
    }

    /// Promoted chunks are here.
    pub(crate) fn come(&mut self, keys: &[OffloadKey], now: Duration) {
        for key in keys {
            let Some(Unread { of, state }) = self.unread.get(key).copied() else { continue };
            if state == Coming::Unwanted {
                self.remove(key);
                continue;
            }
            self.set(key, Coming::Here);
            if let Some(waiting) = self.waiting.get_mut(&of.arrival) {
                waiting.active_at = now;
            }
        }
    }

    /// Promoted chunks do not come.
    pub(crate) fn fail(&mut self, keys: &[OffloadKey]) {
        for key in keys {
            self.remove(key);
        }
    }

    /// A load has begun. Chunks that were promoted for it or for others are among its own, or not.
    pub(crate) fn load(&mut self, job: JobId, keys: &[OffloadKey]) {
        if self.unread.is_empty() {
            return;
        }
        let is_here =
            |key: &&OffloadKey| self.unread.get(*key).is_some_and(|unread| unread.state == Coming::Here);
        let promoted: Vec<OffloadKey> = keys.iter().filter(is_here).copied().collect();
        if !promoted.is_empty() {
            for key in &promoted {
                self.set(key, Coming::Loading);
            }
            self.loads.insert(job, promoted);
        }
    }

    /// A load is over.
    pub(crate) fn end_load(&mut self, job: JobId) {
        if self.loads.is_empty() {
            return;
        }
        for key in self.loads.remove(&job).unwrap_or_default() {
            self.remove(&key);
        }
    }

    /// The request waits no more: it runs, or is over.
    pub(crate) fn end_all(&mut self, arrival: u64) {
        let Some(Waiting { keys, .. }) = self.waiting.remove(&arrival) else { return };
        for key in keys {
            match self.unread.get(&key) {
                Some(Unread { of, state: Coming::Here }) if of.arrival == arrival => self.remove(&key),
                Some(Unread { of, state: Coming::UnderWay }) if of.arrival == arrival => {
                    self.set(&key, Coming::Unwanted);
                }
                _ => {}
            }
        }
    }

    /// A chunk was evicted. If nobody had loaded it, gives the request that it was promoted for.
    pub(crate) fn on_evicted(&mut self, key: &OffloadKey, now: Duration) -> Option<Owner> {
        let Unread { of, .. } = self.unread.get(key).copied()?;
        self.remove(key);
        self.lost.push_back((now, *key));
        self.lost_at.insert(*key, now);
        Some(of)
    }

    fn set(&mut self, key: &OffloadKey, state: Coming) {
        if let Some(unread) = self.unread.get_mut(key) {
            self.num_ending -= usize::from(unread.state.is_ending());
            self.num_ending += usize::from(state.is_ending());
            unread.state = state;
        }
    }

    fn remove(&mut self, key: &OffloadKey) {
        if let Some(unread) = self.unread.remove(key) {
            self.num_ending -= usize::from(unread.state.is_ending());
        }
    }

    /// Every chunk is gone.
    pub(crate) fn reset(&mut self) {
        self.unread.clear();
        self.num_ending = 0;
        self.loads.clear();
        self.waiting.clear();
        self.lost.clear();
        self.lost_at.clear();
    }

    pub(crate) fn on_step_end(&mut self) {
        self.is_swept = false;
    }

    fn forget_lost(&mut self, now: Duration) {
        while let Some((at, key)) = self.lost.front().copied()
            && at.saturating_add(self.unread_max) <= now
        {
            self.lost.pop_front();
            if self.lost_at.get(&key) == Some(&at) {
                self.lost_at.remove(&key);
            }
        }
    }

    /// Ends the turns of requests that have not asked for a while, and for which nothing has come.
    fn sweep(&mut self, now: Duration) {
        let unread_max = self.unread_max;
        let is_gone = |waiting: &Waiting| waiting.active_at.saturating_add(unread_max) <= now;
        let gone: Vec<u64> = self
            .waiting
            .iter()
            .filter(|(_, waiting)| is_gone(waiting))
            .map(|(arrival, _)| *arrival)
            .collect();
        for arrival in gone {
            self.end_all(arrival);
        }
    }
}

#[cfg(test)]
impl Turns {
    pub(super) fn unread(&self) -> &HashMap<OffloadKey, Unread> {
        &self.unread
    }

    /// By arrival, the oldest first.
    pub(super) fn waiting(&self) -> impl Iterator<Item = u64> {
        self.waiting.keys().copied()
    }

    pub(super) fn was_lost(&self, key: &OffloadKey) -> bool {
        self.lost_at.contains_key(key)
    }

    pub(super) fn assert_consistent(&self) {
        let ending = self.unread.values().filter(|unread| unread.state.is_ending()).count();
        assert_eq!(self.num_ending, ending);
        for key in self.loads.values().flatten() {
            assert_eq!(self.unread.get(key).map(|unread| unread.state), Some(Coming::Loading), "{key:?}");
        }
        assert!(self.lost.len() >= self.lost_at.len());
    }
}
