//! The recorded format.

use anyhow::bail;
use kvo_core::{BlockHash, EventKind, GroupIdx, LookupResult, OffloadEvent, OffloadKey};
use kvo_cpu::{CpuManager, CpuOptions};
use kvo_policies::{CachePolicy, GhostHits, PolicyKind};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Driver, cpu::CpuDriver, tiering::TieringDriver};

/// The first line of a scenario.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Header {
    format: u32,
    manager: String,
    policy: String,
    num_chunks: u32,
    store_threshold: Option<u32>,
    max_tracker_size: Option<u32>,
    #[serde(default)]
    tiers: Vec<TierSpec>,
    #[expect(dead_code, reason = "it says where the scenario came from; the replay needs no randomness")]
    seed: u64,
}

/// A scripted tier.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TierSpec {
    pub(super) level: Level,
    pub(super) async_lookup: bool,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Level {
    Chunk,
    Request,
}

/// A line after the first: an operation and what the reference answered.
#[derive(Debug, Deserialize)]
pub(super) struct Step {
    #[serde(flatten)]
    pub(super) op: Op,
    #[serde(default)]
    pub(super) expect: Value,
}

/// A key as recorded: the block hash as an integer, and the group.
pub(super) type RecordedKey = (u64, u32);

#[derive(Debug, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub(super) enum Op {
    NewRequest { req: String },
    SetPositions { req: String, keys: Vec<RecordedKey>, end_tokens: Vec<u32> },
    Lookup { req: String, key: RecordedKey },
    PrepareLoad { req: String, keys: Vec<RecordedKey> },
    CompleteLoad { req: String, keys: Vec<RecordedKey> },
    PrepareStore { req: String, keys: Vec<RecordedKey> },
    CompleteStore { req: String, keys: Vec<RecordedKey>, success: bool },
    Touch { keys: Vec<RecordedKey> },
    RequestFinished { req: String },
    TakeEvents,
    Stats,
    ResetCache,
    ResetFlushed,
    TierJobDone { tier: usize, job: u64, success: bool, successful_keys: Option<Vec<RecordedKey>> },
    ScheduleEnd,
}

impl Header {
    /// Builds the manager that the scenario drives.
    pub(super) fn driver(&self) -> anyhow::Result<Box<dyn Driver>> {
        if self.format != 1 {
            bail!("the format is {}, this runner reads format 1", self.format);
        }
        let policy = match self.policy.as_str() {
            "lru" => PolicyKind::Lru,
            "arc" => PolicyKind::Arc(GhostHits::T1),
            other => bail!("the policy is {other:?}, this runner knows \"lru\" and \"arc\""),
        };
        let mut options = CpuOptions { record_events: true, ..CpuOptions::new(self.num_chunks) };
        if let Some(threshold) = self.store_threshold {
            options.store_threshold = threshold;
        }
        if let Some(keys_max) = self.max_tracker_size {
            options.tracker_keys_max = keys_max;
        }
        let manager: CpuManager<Box<dyn CachePolicy>> =
            CpuManager::new(options, policy.build(self.num_chunks))?;
        match self.manager.as_str() {
            "cpu" if self.tiers.is_empty() => Ok(Box::new(CpuDriver::new(manager))),
            "tiering" => Ok(Box::new(TieringDriver::new(manager, &self.tiers)?)),
            other => bail!("the manager is {other:?}, this runner knows \"cpu\" and \"tiering\""),
        }
    }
}

pub(super) fn key((hash, group): RecordedKey) -> OffloadKey {
    OffloadKey::new(BlockHash::from_u64(hash), GroupIdx(group))
}

pub(super) fn keys(recorded: &[RecordedKey]) -> Vec<OffloadKey> {
    recorded.iter().copied().map(key).collect()
}

pub(super) fn key_json(key: &OffloadKey) -> Value {
    let hash = key.hash().0;
    let hash = hash[24..].iter().fold(0u64, |hash, byte| hash << 8 | u64::from(*byte));
    json!([hash, key.group().0])
}

pub(super) fn keys_json(keys: &[OffloadKey]) -> Value {
    keys.iter().map(key_json).collect()
}

pub(super) fn lookup_json(result: LookupResult) -> Value {
    json!(match result {
        LookupResult::Miss => "MISS",
        LookupResult::HitPending => "HIT_PENDING",
        LookupResult::Hit => "HIT",
        LookupResult::Retry => "RETRY",
    })
}

pub(super) fn event_json(event: &OffloadEvent) -> Value {
    json!({
        "keys": keys_json(&event.keys),
        "removed": event.kind != EventKind::Stored,
        "metadata_only": event.kind == EventKind::Discarded,
    })
}
