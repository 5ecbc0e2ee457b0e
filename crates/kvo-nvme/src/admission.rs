//! Which of the chunks that are offered are let in: the rules of [`Admission`], without I/O, thread or clock.
//!
//! A tail is of no use without its head, so what is let in is closed towards the head:
//! - of one job, the first keys are let in, up to the first that some rule refuses, and none behind it;
//! - a request that was refused a key is refused all that follow in later jobs too, until the last key that it was
//!   refused is in the store, by way of another request, or it offers the first of them again, and with it the rest.
//!
//! A key that is refused was offered all the same, and is remembered as such.

mod budget;
mod memory;

use std::{collections::TryReserveError, time::Duration};

use hashbrown::HashMap;
use kvo_core::{OffloadKey, RequestId};

use self::{budget::Budget, memory::OfferMemory};
use crate::{Admission, AdmissionRule};

/// What decides which chunks are let in.
///
/// It is asked for the chunks of a write job that the store does not have, before room is made for them. It costs in
/// proportion to them, and allocates nothing once its tables have grown to what there is at a time; what
/// [`AdmissionRule::SecondOffer`] remembers is reserved at once.
#[derive(Debug)]
pub(crate) struct Gate {
    /// With [`AdmissionRule::SecondOffer`].
    memory: Option<OfferMemory>,
    budget: Option<Budget>,
    skip_while_reads_wait: bool,
    /// Those that have offered something and are not finished.
    requests: HashMap<RequestId, Request>,
    next_serial: u64,
}

#[derive(Clone, Copy, Debug)]
struct Request {
    /// Numbers of requests may come again; serials do not.
    serial: u64,
    /// Where it was cut off from the store.
    cut: Option<Cut>,
}

/// A run of keys that a request was refused.
#[derive(Clone, Copy, Debug)]
struct Cut {
    /// Nearest the head, if it is known.
    first: Option<OffloadKey>,
    last: OffloadKey,
}

/// How a job stands to what its request was refused before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// Nothing lies before it that is missing.
    Open,
    /// It offers again what was refused.
    Again,
    /// What was refused lies before it.
    Behind,
}

impl Gate {
    /// A gate for chunks of `chunk_bytes` bytes, with nothing remembered and an empty budget.
    ///
    /// # Errors
    /// If there is no memory for the keys that are to be remembered.
    pub(crate) fn new(admission: &Admission, chunk_bytes: u64) -> Result<Self, TryReserveError> {
        let memory = match admission.rule {
            AdmissionRule::Always => None,
            AdmissionRule::SecondOffer { keys_max } => Some(OfferMemory::new(keys_max)?),
        };
        Ok(Self {
            memory,
            budget: admission.bytes_per_day_max.map(|bytes| Budget::new(bytes, chunk_bytes)),
            skip_while_reads_wait: admission.skip_while_reads_wait,
            requests: HashMap::new(),
            next_serial: 0,
        })
    }

    /// How many of `keys`, from the first on, are let in at `now`.
    ///
    /// They are those of a write job that the store neither has nor is writing, head to tail, without repeats.
    /// `reads_wait`: reads could not be started at once. `is_there` says whether the store has a key or is writing it;
    /// it is asked of one at most.
    ///
    /// The request is to be [finished](Self::finish), also one that nobody has announced.
    pub(crate) fn admit(
        &mut self,
        req: RequestId,
        keys: &[OffloadKey],
        now: Duration,
        reads_wait: bool,
        is_there: impl FnOnce(&OffloadKey) -> bool,
    ) -> usize {
        let Self { memory, budget, requests, next_serial, .. } = self;
        let request = requests.entry(req).or_insert_with(|| {
            *next_serial += 1;
            Request { serial: *next_serial, cut: None }
        });
        let mut count = match memory {
            None => keys.len(),
            Some(memory) => memory.offer(keys, request.serial),
        };
        let standing = request.standing(keys, is_there);
        if standing == Standing::Behind || self.skip_while_reads_wait && reads_wait {
            count = 0;
        }
        if let Some(budget) = budget {
            count = budget.take(count, now);
        }
        request.settle(standing, keys, count);
        count
    }

    /// The store has no room for `unwritten`, the last of the keys that it was just let in for `req`. They do not count
    /// for the budget, and for what follows it is as if they had been refused.
    pub(crate) fn give_back(&mut self, req: RequestId, unwritten: &[OffloadKey]) {
        if let Some(budget) = &mut self.budget {
            budget.give_back(unwritten.len());
        }
        if let [first, .., last] | [first @ last] = unwritten
            && let Some(request) = self.requests.get_mut(&req)
        {
            let last = request.cut.map_or(*last, |cut| cut.last);
            request.cut = Some(Cut { first: Some(*first), last });
        }
    }

    /// The request will offer nothing more. Another one may then have its number.
    pub(crate) fn finish(&mut self, req: RequestId) {
        self.requests.remove(&req);
    }
}

impl Request {
    fn standing(&self, keys: &[OffloadKey], is_there: impl FnOnce(&OffloadKey) -> bool) -> Standing {
        match self.cut {
            None => Standing::Open,
            Some(Cut { first: Some(first), .. }) if keys.contains(&first) => Standing::Again,
            // Its heads are there too: they were let in before it, and are evicted after it.
            Some(Cut { last, .. }) if is_there(&last) => Standing::Open,
            Some(_) => Standing::Behind,
        }
    }

    /// Of a job's keys the first `count` were let in.
    fn settle(&mut self, standing: Standing, keys: &[OffloadKey], count: usize) {
        let Some(last_of_job) = keys.last() else { return };
        let refused = keys.get(count).copied();
        self.cut = match (standing, self.cut) {
            (Standing::Behind, Some(Cut { first, .. })) => Some(Cut { first, last: *last_of_job }),
            // What was refused before goes on behind the job.
            (Standing::Again, Some(Cut { last, .. })) if !keys.contains(&last) => {
                Some(Cut { first: refused, last })
            }
            _ => refused.map(|_| Cut { first: refused, last: *last_of_job }),
        };
    }
}

#[cfg(test)]
mod tests;
