//! What to measure of the store.

use std::path::PathBuf;

use clap::Args;

use crate::micro::Preset;

/// Flags of `kvo-bench nvme`.
#[derive(Clone, Debug, Args)]
pub struct NvmeBenchOptions {
    /// Where to make the temporary directory of the two files [default: that of the system]
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Bytes a chunk, each a multiple of 4096 [default: 131072,2097152]
    #[arg(long, value_name = "N,N", value_delimiter = ',', value_parser = chunk_bytes)]
    pub chunk_bytes: Vec<u32>,
    /// I/O threads, each with one chunk under way [default: 1,4; --full: 1,4,16]
    #[arg(long, value_name = "N,N", value_delimiter = ',', value_parser = clap::value_parser!(u16).range(1..=256))]
    pub depth: Vec<u16>,
    /// Megabytes (MiB) that a round moves each way [default: 64; --full: 256]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=16384))]
    pub round_mib: Option<u16>,
    /// Interleaved rounds, after one that does not count [default: 7; --full: 11]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub rounds: Option<u16>,
    /// A very short run against rot; the figures mean nothing
    #[arg(long, group = "preset")]
    pub smoke: bool,
    /// 10 GiB of I/O; this is the default
    #[arg(long, group = "preset")]
    pub quick: bool,
    /// 70 GiB of I/O
    #[arg(long, group = "preset")]
    pub full: bool,
}

/// The measurements of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NvmePlan {
    /// How long.
    pub preset: Preset,
    /// Bytes a chunk and threads.
    pub cases: Vec<(u32, u16)>,
    /// Bytes that a round moves each way.
    pub round_bytes: u64,
    /// Rounds that count.
    pub rounds: u16,
}

impl NvmeBenchOptions {
    /// The preset, with what was asked for in its place.
    pub fn plan(&self) -> NvmePlan {
        let preset = match (self.smoke, self.full) {
            (true, _) => Preset::Smoke,
            (_, true) => Preset::Full,
            _ => Preset::Quick,
        };
        let (depths, mib, rounds): (&[u16], _, _) = match preset {
            Preset::Smoke => (&[2], 1, 2),
            Preset::Quick => (&[1, 4], 64, 7),
            Preset::Full => (&[1, 4, 16], 256, 11),
        };
        let or =
            |asked: &[u16], default: &[u16]| if asked.is_empty() { default.to_vec() } else { asked.to_vec() };
        let sizes = match (&self.chunk_bytes[..], preset) {
            ([], Preset::Smoke) => vec![128 << 10],
            ([], _) => vec![128 << 10, 2 << 20],
            (asked, _) => asked.to_vec(),
        };
        let depths = or(&self.depth, depths);
        NvmePlan {
            preset,
            cases: sizes.iter().flat_map(|&size| depths.iter().map(move |&depth| (size, depth))).collect(),
            round_bytes: u64::from(self.round_mib.unwrap_or(mib)) << 20,
            rounds: self.rounds.unwrap_or(rounds),
        }
    }
}

impl NvmePlan {
    /// Chunks of a round: at least two, so that each can be read into the place of another.
    pub fn chunks(&self, chunk_bytes: u32) -> u32 {
        u32::try_from(self.round_bytes / u64::from(chunk_bytes)).unwrap_or(u32::MAX).max(2)
    }
}

fn chunk_bytes(text: &str) -> Result<u32, String> {
    // What direct I/O wants of offsets and lengths.
    const ALIGN: u32 = 4096;
    const MAX: u32 = 256 << 20;
    match text.parse::<u32>() {
        Ok(bytes) if bytes > 0 && bytes <= MAX && bytes.is_multiple_of(ALIGN) => Ok(bytes),
        _ => Err(format!("{text:?} is no chunk size: use a multiple of {ALIGN} up to {MAX}, such as 131072")),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Cli {
        #[command(flatten)]
        options: NvmeBenchOptions,
    }

    fn plan(arguments: &[&str]) -> NvmePlan {
        let arguments = ["nvme"].iter().chain(arguments);
        Cli::try_parse_from(arguments).unwrap().options.plan()
    }

    #[test]
    fn a_flag_replaces_what_the_preset_says() {
        let quick = plan(&[]);
        assert_eq!((quick.cases.len(), quick.round_bytes, quick.rounds), (4, 64 << 20, 7));
        assert_eq!(quick, plan(&["--quick"]));
        let other = plan(&["--full", "--chunk-bytes", "4096", "--depth", "3,2", "--round-mib", "1"]);
        assert_eq!(other.cases, [(4096, 3), (4096, 2)]);
        assert_eq!((other.round_bytes, other.rounds, other.chunks(4096)), (1 << 20, 11, 256));
        assert_eq!(other.chunks(2 << 20), 2, "never less than two");
    }

    #[test]
    fn sizes_that_direct_io_cannot_move_are_refused() {
        for text in ["0", "4095", "5000", "x", "-4096", "1073741824"] {
            assert!(chunk_bytes(text).is_err(), "{text}");
        }
        assert_eq!(chunk_bytes("131072"), Ok(131_072));
    }
}
