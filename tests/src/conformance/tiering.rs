//! Runs a scenario of a tiering manager.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::Context;
use kvo_core::{JobId, ManualClock, OffloadManager, OffloadPolicy, SecondaryTier, TierDirection};
use kvo_cpu::CpuManager;
use kvo_policies::CachePolicy;
use kvo_tiering::{PressureOptions, TieringManager, TieringOptions};
use serde_json::{Value, json};

use super::{
    Driver,
    cpu::{OpenJobs, Requests, run_common, stats_json},
    scenario::{Level, Op, TierSpec, event_json, key_json, keys},
    scripted_tier::{Script, ScriptedTier, TierCall},
};

pub(super) struct TieringDriver {
    manager: TieringManager<Box<dyn CachePolicy>>,
    scripts: Vec<Arc<Mutex<Script>>>,
    requests: Requests,
    jobs: OpenJobs,
}

impl TieringDriver {
    pub(super) fn new(primary: CpuManager<Box<dyn CachePolicy>>, specs: &[TierSpec]) -> anyhow::Result<Self> {
        let scripts: Vec<Arc<Mutex<Script>>> = specs.iter().map(|_| Arc::default()).collect();
        let tiers = specs.iter().zip(&scripts).enumerate().map(|(index, (spec, script))| {
            let policy = match spec.level {
                Level::Chunk => OffloadPolicy::ChunkLevel,
                Level::Request => OffloadPolicy::RequestLevel,
            };
            let tier = ScriptedTier::new(format!("tier-{index}"), policy, spec.async_lookup, script.clone());
            Box::new(tier) as Box<dyn SecondaryTier>
        });
        // The recordings know no limit on cascades, nor on promotions or tiers that are slow or fail.
        let options = TieringOptions {
            inflight_cascades_max: u32::MAX,
            retry_failed_jobs: true,
            ..TieringOptions::new(1).with_pressure(PressureOptions::NONE)
        };
        let manager =
            TieringManager::new(primary, tiers.collect(), options, Box::new(ManualClock::default()))?;
        Ok(Self { manager, scripts, requests: Requests::default(), jobs: OpenJobs::default() })
    }

    fn script(&self, tier: usize) -> anyhow::Result<MutexGuard<'_, Script>> {
        let script = self.scripts.get(tier).with_context(|| format!("there is no tier {tier}"))?;
        Ok(script.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The calls that reached the tiers since the last operation, tier by tier.
    fn tier_calls(&self) -> anyhow::Result<Value> {
        let mut calls = Vec::new();
        for tier in 0..self.scripts.len() {
            for call in self.script(tier)?.calls.drain(..) {
                calls.push(match call {
                    TierCall::Job(job) => json!({
                        "kind": if job.direction == TierDirection::Write { "store" } else { "load" },
                        "tier": tier,
                        "job": job.id.0,
                        "req": self.requests.name(job.req),
                        "keys": job.chunks.iter().map(|chunk| key_json(&chunk.key)).collect::<Value>(),
                    }),
                    TierCall::RequestFinished(req) => {
                        json!({ "kind": "request_finished", "tier": tier, "req": self.requests.name(req) })
                    }
                });
            }
        }
        Ok(calls.into())
    }
}

impl Driver for TieringDriver {
    fn run(&mut self, op: &Op) -> anyhow::Result<Value> {
        let answer = match op {
            Op::NewRequest { req } => {
                let policy = match self.manager.new_request(self.requests.add(req)?)? {
                    OffloadPolicy::ChunkLevel => "chunk_level",
                    OffloadPolicy::RequestLevel => "request_level",
                };
                json!({ "policy": policy })
            }
            Op::Lookup { .. } => {
                let result = run_common(&mut self.manager, &mut self.requests, &mut self.jobs, op)?;
                json!({ "result": result, "tier_calls": self.tier_calls()? })
            }
            Op::PrepareStore { .. } => {
                let mut answer = run_common(&mut self.manager, &mut self.requests, &mut self.jobs, op)?;
                answer["tier_calls"] = self.tier_calls()?;
                answer
            }
            Op::CompleteStore { .. } | Op::RequestFinished { .. } => {
                run_common(&mut self.manager, &mut self.requests, &mut self.jobs, op)?;
                json!({ "tier_calls": self.tier_calls()? })
            }
            Op::TakeEvents => {
                let mut events = Vec::new();
                self.manager.take_events(&mut events);
                events.iter().map(event_json).collect()
            }
            Op::Stats => stats_json(self.manager.primary()),
            Op::ResetCache => {
                self.manager.reset_cache();
                self.jobs = OpenJobs::default();
                json!({ "tier_calls": self.tier_calls()? })
            }
            Op::ResetFlushed => {
                self.manager.on_reset_flushed();
                Value::Null
            }
            Op::TierJobDone { tier, job, success, successful_keys } => {
                let successful = successful_keys.as_deref().map(keys);
                self.script(*tier)?.finish(JobId(*job), *success, successful.as_deref())?;
                Value::Null
            }
            Op::ScheduleEnd => {
                self.manager.on_schedule_end();
                json!({ "tier_calls": self.tier_calls()?, "pending_work": self.manager.has_pending_work() })
            }
            _ => run_common(&mut self.manager, &mut self.requests, &mut self.jobs, op)?,
        };
        self.manager.primary().assert_consistent();
        Ok(answer)
    }
}
