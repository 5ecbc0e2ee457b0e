//! Rules that hold whatever a manager decides, checked on nothing but the calls that were made.

use std::collections::BTreeMap;

use kvo_core::{JobId, ReleasedSlot, RequestId, SlotId, TierDirection, TierJob};

use super::fake_tier::Call;

/// Who copies from and into which slots, and what each tier has been told of each request.
#[derive(Debug, Default)]
pub struct Audit {
    tier_jobs: Vec<(usize, TierJob)>,
    /// Jobs that were reported, with the chunks whose slots are still held.
    late: Vec<(usize, TierJob)>,
    stores: Vec<(JobId, Vec<SlotId>)>,
    loads: Vec<(JobId, Vec<SlotId>)>,
    /// How often a tier was told that a request is finished, once it was told that the request begins.
    finishes: BTreeMap<(usize, RequestId), u32>,
    last_job: Option<JobId>,
}

impl Audit {
    pub fn call(&mut self, tier: usize, call: &Call) -> Result<(), String> {
        match call {
            Call::NewRequest(req) => {
                let known = self.finishes.insert((tier, *req), 0);
                fail_if(known.is_some(), || format!("tier {tier} is told of {req} twice"))
            }
            Call::Lookup(req, _) => self.expect_told(tier, *req),
            Call::Job(job) => {
                self.number(tier, job)?;
                self.job(tier, job)
            }
            Call::Rejected(job) => self.number(tier, job),
            Call::Ended(id) => {
                self.tier_jobs.retain(|(_, job)| job.id != *id);
                Ok(())
            }
            Call::Held(id, slots) => {
                let of = self.tier_jobs.iter().find(|(_, job)| job.id == *id).cloned();
                let Some((tier, mut job)) = of else { return Err(format!("job {id} is not open")) };
                job.chunks.retain(|chunk| slots.contains(&chunk.slot));
                self.late.push((tier, job));
                Ok(())
            }
            Call::Released(ReleasedSlot { job: id, slot }) => {
                for (_, job) in self.late.iter_mut().filter(|(_, job)| job.id == *id) {
                    job.chunks.retain(|chunk| chunk.slot != *slot);
                }
                self.late.retain(|(_, job)| !job.chunks.is_empty());
                Ok(())
            }
            Call::Finished(req) => {
                self.expect_told(tier, *req)?;
                let finishes = self.finishes.entry((tier, *req)).or_default();
                *finishes += 1;
                fail_if(*finishes > 1, || {
                    format!("tier {tier} is told {finishes} times that {req} is finished")
                })
            }
            Call::Poll | Call::ScheduleEnd | Call::TakeEvents => Ok(()),
        }
    }

    fn expect_told(&self, tier: usize, req: RequestId) -> Result<(), String> {
        fail_if(!self.finishes.contains_key(&(tier, req)), || format!("tier {tier} was never told of {req}"))
    }

    fn number(&mut self, tier: usize, job: &TierJob) -> Result<(), String> {
        let last = self.last_job.replace(job.id);
        fail_if(last.is_some_and(|last| last >= job.id), || {
            format!("job {} at tier {tier} comes after job {last:?}", job.id)
        })
    }

    fn job(&mut self, tier: usize, job: &TierJob) -> Result<(), String> {
        fail_if(job.chunks.is_empty(), || format!("job {} is empty", job.id))?;
        self.expect_told(tier, job.req)?;
        let slots: Vec<SlotId> = job.chunks.iter().map(|chunk| chunk.slot).collect();
        let what = format!("tier job {}", job.id);
        match job.direction {
            TierDirection::Write => {
                fail_if(self.finishes.get(&(tier, job.req)) != Some(&0), || {
                    format!("{what} writes for {}, which tier {tier} knows to be finished", job.req)
                })?;
                self.expect_unwritten(&what, &slots)?;
            }
            TierDirection::Read => self.expect_unused(&what, &slots)?,
        }
        self.tier_jobs.push((tier, job.clone()));
        Ok(())
    }

    /// A device will copy into these slots.
    pub fn store(&mut self, id: JobId, slots: &[SlotId]) -> Result<(), String> {
        self.expect_unused(&format!("store {id}"), slots)?;
        self.stores.push((id, slots.to_vec()));
        Ok(())
    }

    /// A device will copy from these slots.
    pub fn load(&mut self, id: JobId, slots: &[SlotId]) -> Result<(), String> {
        self.expect_unwritten(&format!("load {id}"), slots)?;
        self.loads.push((id, slots.to_vec()));
        Ok(())
    }

    /// The device's copies of a job have ended.
    pub fn completed(&mut self, id: JobId) {
        self.stores.retain(|(of, _)| *of != id);
        self.loads.retain(|(of, _)| *of != id);
    }

    /// The manager was reset; the engine has seen to it that no copy of its own runs.
    pub fn reset(&mut self) {
        self.stores.clear();
        self.loads.clear();
    }

    /// Nothing is open, and every tier has been told once of the end of every request.
    pub fn expect_quiet(&self) -> Result<(), String> {
        let open = (self.tier_jobs.len(), self.late.len(), self.stores.len(), self.loads.len());
        fail_if(open != (0, 0, 0, 0), || {
            format!("tier jobs, late ones, stores and loads still open: {open:?}")
        })?;
        let not_once: Vec<_> = self.finishes.iter().filter(|(_, finishes)| **finishes != 1).collect();
        fail_if(!not_once.is_empty(), || format!("not finished once: {not_once:?}"))
    }

    /// Whose slots tiers may touch.
    fn in_use(&self) -> impl Iterator<Item = &TierJob> {
        self.tier_jobs.iter().chain(&self.late).map(|(_, job)| job)
    }

    fn expect_unused(&self, what: &str, slots: &[SlotId]) -> Result<(), String> {
        self.expect_unwritten(what, slots)?;
        let of_writes = self.in_use().flat_map(|job| &job.chunks).map(|chunk| chunk.slot);
        let of_loads = self.loads.iter().flat_map(|(_, slots)| slots.iter().copied());
        let shared = of_writes.chain(of_loads).find(|slot| slots.contains(slot));
        let twice = slots.iter().enumerate().find(|(at, slot)| slots[..*at].contains(slot));
        fail_if(shared.is_some() || twice.is_some(), || {
            format!("{what} would write slots that are in use: {slots:?}, {shared:?}, {twice:?}")
        })
    }

    fn expect_unwritten(&self, what: &str, slots: &[SlotId]) -> Result<(), String> {
        let reads = self.in_use().filter(|job| job.direction == TierDirection::Read);
        let of_reads = reads.flat_map(|job| &job.chunks).map(|chunk| chunk.slot);
        let of_stores = self.stores.iter().flat_map(|(_, slots)| slots.iter().copied());
        let written = of_reads.chain(of_stores).find(|slot| slots.contains(slot));
        fail_if(written.is_some(), || format!("{what} would use slot {written:?}, which is being written"))
    }
}

fn fail_if(wrong: bool, message: impl FnOnce() -> String) -> Result<(), String> {
    if wrong { Err(message()) } else { Ok(()) }
}
