//! What to measure.

use std::{fmt, str::FromStr};

use clap::Args;
use kvo_policies::PolicyKind;
use serde::Serialize;

use super::{CHAIN, Job};

/// Flags of the micro-benchmarks, here and beside other projects.
#[derive(Clone, Debug, Args)]
#[expect(clippy::struct_excessive_bools, reason = "they are flags of a command line")]
pub struct MicroOptions {
    /// Chunks that the tier holds, each with k or M behind it [default: as --quick and --full say]
    #[arg(long, value_name = "N,N", value_delimiter = ',')]
    pub sizes: Vec<Size>,
    /// Eviction policies by name
    #[arg(long, value_name = "NAME,NAME", value_delimiter = ',', default_value = "lru")]
    pub policy: Vec<PolicyKind>,
    /// Jobs to run, in the order in which they always run [default: all]
    #[arg(long, value_name = "NAME,NAME", value_delimiter = ',')]
    pub jobs: Vec<Job>,
    /// Interleaved rounds of every job [default: as the preset says]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub rounds: Option<u16>,
    /// A very short run against rot; the figures mean nothing
    #[arg(long, group = "preset")]
    pub smoke: bool,
    /// 10k, 100k and 1M chunks in a minute or two; this is the default
    #[arg(long, group = "preset")]
    pub quick: bool,
    /// Up to 8M chunks, and twice as many rounds
    #[arg(long, group = "preset")]
    pub full: bool,
    /// Print the bytes a chunk of one size and policy, and nothing else. What the program runs for itself.
    #[arg(long, hide = true)]
    pub only_bytes: bool,
}

/// How long to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Preset {
    /// Against rot.
    Smoke,
    /// A minute or two.
    Quick,
    /// For figures to quote.
    Full,
}

impl MicroOptions {
    /// The preset that was chosen.
    pub fn preset(&self) -> Preset {
        match (self.smoke, self.full) {
            (true, _) => Preset::Smoke,
            (_, true) => Preset::Full,
            _ => Preset::Quick,
        }
    }

    /// Interleaved rounds of a job.
    pub fn rounds(&self, job: Job) -> usize {
        let (warm, cold) = match self.preset() {
            Preset::Smoke => (1, 1),
            Preset::Quick => (21, 15),
            Preset::Full => (51, 31),
        };
        self.rounds.map_or(if job.is_cold() { cold } else { warm }, usize::from)
    }

    /// The sizes to measure.
    pub fn sizes(&self) -> Vec<Size> {
        if !self.sizes.is_empty() {
            return self.sizes.clone();
        }
        let sizes: &[u32] = match self.preset() {
            Preset::Smoke => &[10_000],
            Preset::Quick => &[10_000, 100_000, 1_000_000],
            Preset::Full => &[10_000, 100_000, 1_000_000, 8_000_000],
        };
        sizes.iter().map(|size| Size(*size)).collect()
    }
}

impl Preset {
    /// Chains of the untimed part of a round, at most: those of 100k chunks fit into a large cache.
    pub fn warm_up_chains_max(self) -> u64 {
        match self {
            Self::Smoke => 8,
            Self::Quick | Self::Full => 400,
        }
    }

    /// Chains that a round times.
    pub fn chains_per_round(self) -> usize {
        match self {
            Self::Smoke => 4,
            Self::Quick | Self::Full => 64,
        }
    }
}

/// How many chunks a tier holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Size(u32);

impl Size {
    const MAX: u32 = 64_000_000;

    /// Whole chains.
    pub fn chunks(self) -> u32 {
        let chain = u32::try_from(CHAIN).unwrap_or(1);
        self.0 / chain * chain
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            chunks if chunks % 1_000_000 == 0 => f.pad(&format!("{}M", chunks / 1_000_000)),
            chunks if chunks % 1000 == 0 => f.pad(&format!("{}k", chunks / 1000)),
            chunks => f.pad(&chunks.to_string()),
        }
    }
}

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (number, factor) = match text.as_bytes().last() {
            Some(b'k' | b'K') => (&text[..text.len() - 1], 1000),
            Some(b'M' | b'm') => (&text[..text.len() - 1], 1_000_000),
            _ => (text, 1),
        };
        let chunks = number.parse::<u32>().ok().and_then(|number| number.checked_mul(factor));
        // Some chains more than are in flight at a time.
        let least = 16 * u32::try_from(CHAIN).unwrap_or(1);
        match chunks {
            Some(chunks) if (least..=Self::MAX).contains(&chunks) => Ok(Self(chunks)),
            _ => Err(format!("{text:?} is no size: use {least} to 64M, such as 10k, 100k or 1M")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_and_shown() {
        for (text, chunks) in [("10k", 9984), ("100k", 99_840), ("1M", 999_936), ("4096", 4096)] {
            let size = text.parse::<Size>().unwrap();
            assert_eq!((size.chunks(), size.to_string().as_str()), (chunks, text));
        }
        for text in ["", "k", "0", "1k", "65M", "9999999999", "-1", "10 k", "5000M", "é"] {
            assert!(text.parse::<Size>().is_err(), "{text:?}");
        }
    }
}
