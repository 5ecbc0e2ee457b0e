//! What an offload is configured by.

use std::{path::PathBuf, time::Duration};

use kvo_policies::PolicyKind;
use kvo_tiering::{PressureOptions, Watermarks};
use serde::{Deserialize, Serialize};

use super::BuildError;

/// Everything that a deployment decides: sizes, places, policies, deadlines. What an engine knows of itself, its groups and
/// where its blocks are, it says to the [builder](super::OffloadBuilder).
///
/// In TOML (any format of serde's will do; fields that are not known are refused, those that are left out have the values
/// of [`OffloadConfig::new`]):
///
/// ```
/// let config: kvo_connector::OffloadConfig = toml::from_str(r#"
///     [cpu]
///     bytes = 64_000_000_000
///     policy = "arc"
///
///     [nvme]
///     dirs = ["/mnt/nvme0/kvo", "/mnt/nvme1/kvo"]
///     bytes = 2_000_000_000_000
///
///     [device]
///     kind = "auto"
///     deadline_ms = 5000
/// "#)?;
/// assert_eq!(config.nvme.expect("it has one").policy, "ylru");
/// # Ok::<(), toml::de::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OffloadConfig {
    /// The primary tier.
    pub cpu: CpuConfig,
    /// The tier below it, if there is one.
    #[serde(default)]
    pub nvme: Option<NvmeConfig>,
    /// What copies.
    #[serde(default)]
    pub device: DeviceConfig,
    /// How requests are served.
    #[serde(default)]
    pub requests: RequestsConfig,
    /// What tiers and waiting requests may take from running ones.
    #[serde(default)]
    pub pressure: PressureConfig,
}

/// The primary tier.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CpuConfig {
    /// Bytes of host memory; as many slots as they have room for.
    pub bytes: u64,
    /// Which chunk goes first, by a name that [`PolicyKind`] knows.
    #[serde(default = "default_policy")]
    pub policy: String,
    /// Offers of a chunk after which it is stored; 1 stores every one.
    #[serde(default = "one")]
    pub store_threshold: u32,
    /// Whether to ask for huge pages.
    #[serde(default = "yes")]
    pub huge_pages: bool,
    /// Whether events are recorded. If so, they are to be taken.
    #[serde(default)]
    pub record_events: bool,
}

/// A store on SSDs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NvmeConfig {
    /// One directory a device. They must exist.
    pub dirs: Vec<PathBuf>,
    /// Bytes over all of them; as many chunks as they have room for.
    pub bytes: u64,
    /// Which chunk goes first, by name.
    #[serde(default = "default_policy")]
    pub policy: String,
    /// Whether a write is done only when it would survive a loss of power.
    #[serde(default)]
    pub durable: bool,
    /// How long a chunk may take.
    #[serde(default = "thirty_seconds")]
    pub deadline_ms: u64,
}

/// Which kind of device copies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DeviceKind {
    /// A device whose memory is host memory.
    Host,
    /// A GPU.
    Cuda,
    /// A GPU if there is one, else the host's memory.
    #[default]
    Auto,
}

/// What copies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceConfig {
    /// Which kind.
    #[serde(default)]
    pub kind: DeviceKind,
    /// Which of the GPUs.
    #[serde(default)]
    pub ordinal: u32,
    /// How long a copy may take; without, as long as it takes.
    #[serde(default)]
    pub deadline_ms: Option<u64>,
}

/// How requests are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RequestsConfig {
    /// As [`recompute_last`](crate::ConnectorOptions::recompute_last).
    pub recompute_last: bool,
    /// As [`lookup_patience`](crate::ConnectorOptions::lookup_patience).
    pub lookup_patience_ms: u64,
    /// As [`copy_patience`](crate::ConnectorOptions::copy_patience).
    pub copy_patience_ms: u64,
    /// As [`offer_chunks_max`](crate::ConnectorOptions::offer_chunks_max).
    pub offer_chunks_max: usize,
    /// As [`load_chunks_max`](crate::ConnectorOptions::load_chunks_max); without, a load is one copy.
    pub load_chunks_max: Option<usize>,
    /// As [`failed_stores_max`](crate::ConnectorOptions::failed_stores_max).
    pub failed_stores_max: u32,
}

impl Default for RequestsConfig {
    fn default() -> Self {
        Self {
            recompute_last: true,
            lookup_patience_ms: 1000,
            copy_patience_ms: 60_000,
            offer_chunks_max: 64,
            load_chunks_max: None,
            failed_stores_max: 3,
        }
    }
}

/// What tiers and waiting requests may take from running ones: [`PressureOptions`] in numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PressureConfig {
    /// As [`promotion_share`](PressureOptions::promotion_share), in percent.
    pub promotion_share: u8,
    /// As [`cascade_share`](PressureOptions::cascade_share), in percent.
    pub cascade_share: u8,
    /// As [`unread_max`](PressureOptions::unread_max).
    pub unread_max_ms: u64,
    /// Milliseconds a MiB: writes that take longer are slow, as [`writes`](PressureOptions::writes).
    pub writes_slow_ms: u64,
    /// Writes that take less are fast again.
    pub writes_fast_ms: u64,
    /// The same of [`reads`](PressureOptions::reads).
    pub reads_slow_ms: u64,
    /// The same.
    pub reads_fast_ms: u64,
    /// As [`job_deadline`](PressureOptions::job_deadline); without, a minute, or twice as long as the store's own deadline
    /// if that is more.
    pub job_deadline_ms: Option<u64>,
    /// As [`failures_max`](PressureOptions::failures_max).
    pub failures_max: u32,
    /// As [`pause`](PressureOptions::pause).
    pub pause_ms: u64,
    /// As [`pause_max`](PressureOptions::pause_max).
    pub pause_max_ms: u64,
    /// As [`lookup_deadline`](PressureOptions::lookup_deadline).
    pub lookup_deadline_ms: u64,
}

impl Default for PressureConfig {
    fn default() -> Self {
        Self {
            promotion_share: 50,
            cascade_share: 50,
            unread_max_ms: 2000,
            writes_slow_ms: 200,
            writes_fast_ms: 50,
            reads_slow_ms: 400,
            reads_fast_ms: 100,
            job_deadline_ms: None,
            failures_max: 3,
            pause_ms: 1000,
            pause_max_ms: 60_000,
            lookup_deadline_ms: 10_000,
        }
    }
}

impl PressureConfig {
    /// What a tiering manager takes, above a store that has this deadline.
    pub(super) fn options(&self, store_deadline: Option<Duration>) -> Result<PressureOptions, BuildError> {
        let ms = Duration::from_millis;
        let usual =
            store_deadline.map_or(ms(0), |deadline| deadline.saturating_mul(2)).max(Duration::from_mins(1));
        let job_deadline =
            self.job_deadline_ms.map_or(Ok(usual), |ms| time("pressure.job_deadline_ms", ms))?;
        if let Some(store) = store_deadline.filter(|store| *store >= job_deadline) {
            return Err(BuildError::JobDeadline { job: job_deadline, store });
        }
        Ok(PressureOptions {
            promotion_share: Some(self.promotion_share),
            unread_max: time("pressure.unread_max_ms", self.unread_max_ms)?,
            cascade_share: Some(self.cascade_share),
            writes: Some(Watermarks { low: ms(self.writes_fast_ms), high: ms(self.writes_slow_ms) }),
            reads: Some(Watermarks { low: ms(self.reads_fast_ms), high: ms(self.reads_slow_ms) }),
            job_deadline: Some(job_deadline),
            failures_max: Some(self.failures_max),
            pause: time("pressure.pause_ms", self.pause_ms)?,
            pause_max: time("pressure.pause_max_ms", self.pause_max_ms)?,
            lookup_deadline: Some(time("pressure.lookup_deadline_ms", self.lookup_deadline_ms)?),
        })
    }
}

impl OffloadConfig {
    /// So many bytes of host memory, nothing below it, a GPU if there is one, and defaults.
    pub fn new(cpu_bytes: u64) -> Self {
        Self {
            cpu: CpuConfig {
                bytes: cpu_bytes,
                policy: default_policy(),
                store_threshold: 1,
                huge_pages: true,
                record_events: false,
            },
            nvme: None,
            device: DeviceConfig::default(),
            requests: RequestsConfig::default(),
            pressure: PressureConfig::default(),
        }
    }
}

impl NvmeConfig {
    /// A store in one directory.
    pub fn new(dir: impl Into<PathBuf>, bytes: u64) -> Self {
        Self {
            dirs: vec![dir.into()],
            bytes,
            policy: default_policy(),
            durable: false,
            deadline_ms: thirty_seconds(),
        }
    }
}

/// The policy of a name.
pub(super) fn policy(field: &'static str, name: &str) -> Result<PolicyKind, BuildError> {
    name.parse().map_err(|error| BuildError::Policy { field, error })
}

/// How many pieces of `each` bytes there are room for.
pub(super) fn pieces(field: &'static str, bytes: u64, each: u64) -> Result<u32, BuildError> {
    match bytes / each {
        0 => Err(BuildError::TooSmall { field, bytes, chunk_bytes: each }),
        num => u32::try_from(num).map_err(|_| BuildError::TooLarge { field, bytes, chunk_bytes: each }),
    }
}

/// A time that is at least a millisecond.
pub(super) fn time(field: &'static str, ms: u64) -> Result<Duration, BuildError> {
    if ms == 0 { Err(BuildError::Zero { field }) } else { Ok(Duration::from_millis(ms)) }
}

fn default_policy() -> String {
    PolicyKind::default().to_string()
}

fn one() -> u32 {
    1
}

fn yes() -> bool {
    true
}

fn thirty_seconds() -> u64 {
    30_000
}
