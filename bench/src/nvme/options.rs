//! What to measure of the store.

use std::path::PathBuf;

use clap::Args;

use super::Work;
use crate::micro::Preset;

/// Flags of `kvo-bench nvme`, and of the same beside other projects.
#[derive(Clone, Debug, Args)]
pub struct NvmeBenchOptions {
    /// Where to make the temporary directory of all files [default: that of the system]
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Bytes a chunk, each a multiple of 4096 [default: 524288,1048576,2097152; --smoke: 65536]
    #[arg(long, value_name = "N,N", value_delimiter = ',', value_parser = chunk_bytes)]
    pub chunk_bytes: Vec<u32>,
    /// Threads of the floor, each with one chunk under way
    #[arg(long, value_name = "N", default_value = "4", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub floor_threads: u16,
    /// Megabytes (MiB) that each subject moves one way in a round [default: 1024; --smoke: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=16384))]
    pub round_mib: Option<u16>,
    /// Interleaved rounds in the same files, after one that does not count [default: 5, beside other projects 2; --smoke: 2]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub rounds: Option<u16>,
    /// Times that all files are made anew, in other places of the disk, for as many rounds [default: 1, beside other
    /// projects 3; --full: 3; --smoke: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=100))]
    pub places: Option<u16>,
    /// A very short run against rot; the figures mean nothing
    #[arg(long, group = "preset")]
    pub smoke: bool,
    /// A minute or two on a fast disk; this is the default
    #[arg(long, group = "preset")]
    pub quick: bool,
    /// For figures to quote, and a store that is filled with a million chunks
    #[arg(long, group = "preset")]
    pub full: bool,
}

/// The measurements of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NvmePlan {
    /// How long.
    pub preset: Preset,
    /// By chunk size.
    pub works: Vec<Work>,
    /// Times that all files are made anew.
    pub places: u16,
    /// Threads of the floor.
    pub floor_threads: u16,
}

impl NvmeBenchOptions {
    /// The preset, with what was asked for in its place.
    pub fn plan(&self) -> NvmePlan {
        self.plan_of(|preset| match preset {
            Preset::Smoke => (1, 2),
            Preset::Quick => (1, 5),
            Preset::Full => (3, 5),
        })
    }

    /// The same beside other projects, whose files cannot be the same as the store's, so that their place is in every
    /// ratio.
    pub fn plan_beside_others(&self) -> NvmePlan {
        self.plan_of(|preset| match preset {
            Preset::Smoke => (1, 2),
            Preset::Quick => (3, 2),
            Preset::Full => (5, 3),
        })
    }

    /// With the times that files are made anew, and the rounds in each, where they were not asked for.
    fn plan_of(&self, places_and_rounds: impl Fn(Preset) -> (u16, u16)) -> NvmePlan {
        let preset = match (self.smoke, self.full) {
            (true, _) => Preset::Smoke,
            (_, true) => Preset::Full,
            _ => Preset::Quick,
        };
        let (places, rounds) = places_and_rounds(preset);
        let mib = if preset == Preset::Smoke { 1 } else { 1024 };
        let sizes = match (&self.chunk_bytes[..], preset) {
            ([], Preset::Smoke) => vec![64 << 10],
            ([], _) => vec![512 << 10, 1 << 20, 2 << 20],
            (asked, _) => asked.to_vec(),
        };
        let round_bytes = u64::from(self.round_mib.unwrap_or(mib)) << 20;
        let work = |chunk_bytes: u32| {
            // At least two, so that one can come back in the place of the other.
            let num_chunks = u32::try_from(round_bytes / u64::from(chunk_bytes)).unwrap_or(u32::MAX).max(2);
            Work { chunk_bytes, num_chunks, rounds: self.rounds.unwrap_or(rounds) }
        };
        NvmePlan {
            preset,
            works: sizes.into_iter().map(work).collect(),
            places: self.places.unwrap_or(places),
            floor_threads: self.floor_threads,
        }
    }
}

impl NvmePlan {
    /// The chunk sizes at which reads and stores run at once: all in a full run, else one.
    pub fn mixed_works(&self) -> &[Work] {
        const USUAL_BYTES: u32 = 1 << 20;
        if self.preset == Preset::Full {
            return &self.works;
        }
        let usual = self.works.iter().position(|work| work.chunk_bytes == USUAL_BYTES).unwrap_or_default();
        self.works.get(usual..=usual).unwrap_or_default()
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
        assert_eq!(quick, plan(&["--quick"]));
        let sizes: Vec<_> = quick.works.iter().map(|work| (work.chunk_bytes, work.num_chunks)).collect();
        assert_eq!(sizes, [(512 << 10, 2048), (1 << 20, 1024), (2 << 20, 512)]);
        assert_eq!((quick.places, plan(&["--full"]).places, plan(&["--places", "9"]).places), (1, 3, 9));
        assert_eq!(quick.mixed_works(), &quick.works[1..2]);
        assert_eq!(plan(&["--full"]).mixed_works().len(), 3);
        let other = plan(&["--full", "--chunk-bytes", "4096,2097152", "--round-mib", "1", "--rounds", "3"]);
        assert_eq!(
            other.works,
            [
                Work { chunk_bytes: 4096, num_chunks: 256, rounds: 3 },
                Work { chunk_bytes: 2 << 20, num_chunks: 2, rounds: 3 }
            ],
            "never less than two chunks"
        );
    }

    #[test]
    fn sizes_that_direct_io_cannot_move_are_refused() {
        for text in ["0", "4095", "5000", "x", "-4096", "1073741824"] {
            assert!(chunk_bytes(text).is_err(), "{text}");
        }
        assert_eq!(chunk_bytes("131072"), Ok(131_072));
    }
}
