//! The scripted secondary tier of the recordings.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, PoisonError},
};

use kvo_core::{
    JobId, JobRejected, Medium, OffloadKey, OffloadPolicy, RequestContext, RequestId, SecondaryTier,
    TierCompletion, TierDirection, TierJob, TierLookup,
};

/// What reached a tier.
#[derive(Debug)]
pub(super) enum TierCall {
    Job(TierJob),
    RequestFinished(RequestId),
}

/// The side of a scripted tier that the recording drives and reads.
#[derive(Debug, Default)]
pub(super) struct Script {
    /// Calls since the last operation, in order.
    pub(super) calls: Vec<TierCall>,
    open: HashMap<JobId, TierJob>,
    finished: Vec<TierCompletion>,
    resident: HashSet<OffloadKey>,
    /// With asynchronous lookups: the pairs that were asked, and whether the answer has arrived.
    asked: HashMap<(RequestId, OffloadKey), bool>,
}

impl Script {
    /// Ends an open job. `successful` names the keys that arrived where a load failed in part.
    pub(super) fn finish(
        &mut self,
        job: JobId,
        success: bool,
        successful: Option<&[OffloadKey]>,
    ) -> anyhow::Result<()> {
        let Some(job) = self.open.remove(&job) else { anyhow::bail!("tier job {job} is not open") };
        let keys = job.chunks.iter().map(|chunk| chunk.key);
        if success && job.direction == TierDirection::Write {
            self.resident.extend(keys.clone());
        }
        self.finished.push(match (success, successful) {
            (true, _) => TierCompletion::done(job.id),
            (false, None) => TierCompletion::failed(job.id),
            (false, Some(successful)) => {
                TierCompletion::except(job.id, keys.filter(|key| !successful.contains(key)).collect())
            }
        });
        Ok(())
    }
}

/// Holds the keys of the stores that succeeded, and answers from them, with or without delay.
#[derive(Debug)]
pub(super) struct ScriptedTier {
    name: String,
    policy: OffloadPolicy,
    async_lookup: bool,
    script: Arc<Mutex<Script>>,
}

impl ScriptedTier {
    pub(super) fn new(
        name: String,
        policy: OffloadPolicy,
        async_lookup: bool,
        script: Arc<Mutex<Script>>,
    ) -> Self {
        Self { name, policy, async_lookup, script }
    }

    fn script(&self) -> std::sync::MutexGuard<'_, Script> {
        self.script.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SecondaryTier for ScriptedTier {
    fn name(&self) -> &str {
        &self.name
    }

    fn medium(&self) -> Medium {
        Medium::Ssd
    }

    fn on_new_request(&mut self, _req: &RequestContext) -> OffloadPolicy {
        self.policy
    }

    fn lookup(&mut self, req: RequestId, key: &OffloadKey) -> TierLookup {
        let mut script = self.script();
        if self.async_lookup && !*script.asked.entry((req, *key)).or_insert(false) {
            return TierLookup::Retry;
        }
        if script.resident.contains(key) { TierLookup::Hit } else { TierLookup::Miss }
    }

    fn submit(&mut self, job: TierJob) -> Result<(), JobRejected> {
        let mut script = self.script();
        script.open.insert(job.id, job.clone());
        script.calls.push(TierCall::Job(job));
        Ok(())
    }

    fn poll(&mut self, done: &mut Vec<TierCompletion>) {
        done.append(&mut self.script().finished);
    }

    fn on_request_finished(&mut self, req: RequestId) {
        let mut script = self.script();
        script.asked.retain(|(of, _), _| *of != req);
        script.calls.push(TierCall::RequestFinished(req));
    }

    fn on_schedule_end(&mut self) {
        self.script().asked.values_mut().for_each(|answered| *answered = true);
    }
}
