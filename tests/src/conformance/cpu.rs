//! Runs a scenario of a CPU manager.

use std::collections::HashMap;

use anyhow::{Context, bail};
use kvo_core::{
    JobKind, JobToken, OffloadKey, OffloadManager, RequestContext, RequestError, RequestId, StoreOutcome,
    TransferResult,
};
use kvo_cpu::CpuManager;
use kvo_policies::CachePolicy;
use serde_json::{Value, json};

use super::{
    Driver,
    scenario::{Op, event_json, key, keys, keys_json, lookup_json},
};

pub(super) struct CpuDriver {
    manager: CpuManager<Box<dyn CachePolicy>>,
    requests: Requests,
    jobs: OpenJobs,
}

impl CpuDriver {
    pub(super) fn new(manager: CpuManager<Box<dyn CachePolicy>>) -> Self {
        Self { manager, requests: Requests::default(), jobs: OpenJobs::default() }
    }
}

impl Driver for CpuDriver {
    fn run(&mut self, op: &Op) -> anyhow::Result<Value> {
        let answer = match op {
            Op::NewRequest { req } => {
                let req = self.requests.add(req)?;
                self.manager.new_request(req)?;
                Value::Null
            }
            Op::TakeEvents => {
                let mut events = Vec::new();
                self.manager.take_events(&mut events);
                events.iter().map(event_json).collect()
            }
            Op::Stats => stats_json(&self.manager),
            Op::ResetCache => {
                self.manager.reset_cache();
                self.jobs = OpenJobs::default();
                Value::Null
            }
            Op::ResetFlushed | Op::TierJobDone { .. } | Op::ScheduleEnd => {
                bail!("a CPU manager has no such operation")
            }
            _ => run_common(&mut self.manager, &mut self.requests, &mut self.jobs, op)?,
        };
        self.manager.assert_consistent();
        Ok(answer)
    }
}

/// Runs an operation that every manager has, and answers as a CPU manager's recording does.
pub(super) fn run_common(
    manager: &mut impl OffloadManager,
    requests: &mut Requests,
    jobs: &mut OpenJobs,
    op: &Op,
) -> anyhow::Result<Value> {
    Ok(match op {
        Op::SetPositions { req, keys: recorded, end_tokens } => {
            requests.get(req)?.set_positions(keys(recorded).into_iter().zip(end_tokens.iter().copied()));
            Value::Null
        }
        Op::Lookup { req, key: recorded } => lookup_json(manager.lookup(requests.get(req)?, &key(*recorded))),
        Op::PrepareLoad { req, keys: recorded } => {
            let keys = keys(recorded);
            let job = manager.prepare_load(requests.get(req)?, &keys)?;
            jobs.open(req, keys, job.token);
            Value::Null
        }
        Op::CompleteLoad { req, keys: recorded } => {
            manager.complete_load(jobs.close(req, &keys(recorded), JobKind::Load)?)?;
            Value::Null
        }
        Op::PrepareStore { req, keys: recorded } => {
            match manager.prepare_store(requests.get(req)?, &keys(recorded))? {
                StoreOutcome::Refused(_) => json!({ "rejected": true }),
                StoreOutcome::NothingToStore => json!({ "keys_to_store": [], "evicted": [] }),
                StoreOutcome::Prepared(job) => {
                    let answer =
                        json!({ "keys_to_store": keys_json(&job.keys), "evicted": keys_json(&job.evicted) });
                    jobs.open(req, job.keys, job.token);
                    answer
                }
            }
        }
        Op::CompleteStore { req, keys: recorded, success } => {
            let result = if *success { TransferResult::Done } else { TransferResult::Failed };
            manager.complete_store(jobs.close(req, &keys(recorded), JobKind::Store)?, result)?;
            Value::Null
        }
        Op::Touch { keys: recorded } => {
            manager.touch(&keys(recorded));
            Value::Null
        }
        Op::RequestFinished { req } => {
            match manager.on_request_finished(requests.get(req)?) {
                Ok(()) | Err(RequestError::Finished { .. }) => {}
                Err(error) => return Err(error.into()),
            }
            Value::Null
        }
        op => bail!("{op:?} is not common to all managers"),
    })
}

pub(super) fn stats_json<P: CachePolicy>(manager: &CpuManager<P>) -> Value {
    let counts = manager.counts();
    json!({ "evictable": counts.evictable, "write_pending": counts.pending, "free": counts.free })
}

/// The contexts of a scenario's requests, by name.
#[derive(Default)]
pub(super) struct Requests {
    contexts: HashMap<String, RequestContext>,
}

impl Requests {
    pub(super) fn add(&mut self, name: &str) -> anyhow::Result<&mut RequestContext> {
        let id = RequestId(self.contexts.len() as u64);
        if self.contexts.contains_key(name) {
            bail!("request {name} begins twice");
        }
        Ok(self.contexts.entry(name.to_owned()).or_insert_with(|| RequestContext::new(id)))
    }

    pub(super) fn get(&mut self, name: &str) -> anyhow::Result<&mut RequestContext> {
        self.contexts.get_mut(name).with_context(|| format!("request {name} never began"))
    }

    pub(super) fn name(&self, id: RequestId) -> &str {
        let named = self.contexts.iter().find(|(_, context)| context.id() == id);
        named.map_or("an unknown request", |(name, _)| name)
    }
}

/// The tokens of open jobs. Recordings name a job by its request and keys.
#[derive(Default)]
pub(super) struct OpenJobs {
    jobs: Vec<(String, Vec<OffloadKey>, JobToken)>,
}

impl OpenJobs {
    pub(super) fn open(&mut self, req: &str, keys: Vec<OffloadKey>, token: JobToken) {
        self.jobs.push((req.to_owned(), keys, token));
    }

    pub(super) fn close(
        &mut self,
        req: &str,
        keys: &[OffloadKey],
        kind: JobKind,
    ) -> anyhow::Result<JobToken> {
        let index = self
            .jobs
            .iter()
            .position(|(of, of_keys, token)| of == req && *of_keys == keys && token.kind() == kind)
            .with_context(|| format!("{req} has no open {kind:?} job of the keys {keys:?}"))?;
        Ok(self.jobs.remove(index).2)
    }
}
