//! What can be asked for.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::units::{Fingerprint, Size};

/// Makes stores of kvo-nvme, looks into them, checks and mends them.
///
/// A store is named by its directories, one a device, in the order in which it was made. No command but `create`,
/// `repair`, `wipe` and `bench` writes anything.
///
/// Exit status:
///   0  all is well
///   1  damage was found (also where it has been mended)
///   2  the command cannot be run as asked
///   3  the store cannot be opened, or the system fails
///   4  the store is in use by another process
///   130  stopped by Ctrl-C
///
/// With --json each command prints one object, the same fields every time; an error is an object with the field
/// `error`. Sizes are numbers of bytes, times are seconds.
#[derive(Debug, Parser)]
#[command(name = "kvo-store", version, verbatim_doc_comment)]
pub(crate) struct Cli {
    /// Prints JSON
    #[arg(long, global = true)]
    pub(crate) json: bool,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Create(CreateArgs),
    Stat(StatArgs),
    Ls(LsArgs),
    Verify(VerifyArgs),
    Repair(RepairArgs),
    Wipe(WipeArgs),
    Bench(BenchArgs),
}

/// The store that a command is about.
#[derive(Clone, Debug, Args)]
pub(crate) struct Dirs {
    /// The store's directories, one a device, in the order in which it was made
    #[arg(value_name = "DIR", required = true)]
    pub(crate) dirs: Vec<PathBuf>,
}

/// Makes a store, and takes all of its room at once
///
/// The directories must exist. A directory that holds another store is left alone, unless --empty is given.
#[derive(Debug, Args)]
pub(crate) struct CreateArgs {
    #[command(flatten)]
    pub(crate) dirs: Dirs,
    #[command(flatten)]
    pub(crate) capacity: Capacity,
    /// Bytes of a chunk, with a unit or without: 2MiB
    #[arg(long, value_name = "SIZE")]
    pub(crate) chunk_bytes: Size,
    /// What the chunks' bytes mean, as 64 hexadecimal digits; whoever opens the store must say the same
    #[arg(long, value_name = "HEX", default_value_t = Fingerprint([0; 32]))]
    pub(crate) fingerprint: Fingerprint,
    /// Makes the store smaller if there is too little room, instead of failing
    #[arg(long)]
    pub(crate) shrink: bool,
    /// Writes every block once, so that no later write is slower: minutes for a terabyte
    #[arg(long)]
    pub(crate) preinit: bool,
    /// Empties a store that is there already and is another one
    #[arg(long)]
    pub(crate) empty: bool,
}

#[derive(Clone, Copy, Debug, Args)]
#[group(required = true, multiple = false)]
pub(crate) struct Capacity {
    /// Chunks that the store holds
    #[arg(long, value_name = "N")]
    pub(crate) capacity_chunks: Option<u32>,
    /// As many chunks as fit this size, with a unit or without: 100GiB
    #[arg(long, value_name = "SIZE")]
    pub(crate) capacity_bytes: Option<Size>,
}

/// Says what a store is, how full it is, and what is wrong with it
#[derive(Debug, Args)]
pub(crate) struct StatArgs {
    #[command(flatten)]
    pub(crate) dirs: Dirs,
}

/// Lists the chunks of a store by its records, without reading them
#[derive(Debug, Args)]
pub(crate) struct LsArgs {
    #[command(flatten)]
    pub(crate) dirs: Dirs,
    /// Which come first
    #[arg(long, value_enum, default_value_t)]
    pub(crate) order: Order,
    /// Lists so many at most
    #[arg(long, value_name = "N")]
    pub(crate) limit: Option<usize>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Order {
    /// Those that were written last
    #[default]
    Newest,
    /// Those that are evicted next
    Eviction,
    /// Those in the first slots
    Slot,
}

/// Reads every chunk of a store and checks its checksum
///
/// What cannot be read or is wrong is listed, and the rest is checked all the same. Nothing is changed: `repair
/// --verify` drops what is bad.
#[derive(Debug, Args)]
pub(crate) struct VerifyArgs {
    #[command(flatten)]
    pub(crate) dirs: Dirs,
    /// Reads so much a second at most, as in 500MB
    #[arg(long, value_name = "SIZE")]
    pub(crate) rate: Option<Size>,
}

/// Mends what can be mended; only says what it would do, unless --yes is given
///
/// A damaged superblock is written again from its twin, damaged records are cleared. Chunks whose records are lost are
/// lost: the store is a cache, and its owner computes them again.
#[derive(Debug, Args)]
pub(crate) struct RepairArgs {
    #[command(flatten)]
    pub(crate) dirs: Dirs,
    /// Does it
    #[arg(long)]
    pub(crate) yes: bool,
    /// Reads every chunk first, as `verify` does, and drops those that are bad
    #[arg(long)]
    pub(crate) verify: bool,
    /// For --verify: reads so much a second at most
    #[arg(long, value_name = "SIZE", requires = "verify")]
    pub(crate) rate: Option<Size>,
    /// Uses slots again that failed; for a device that was replaced, or mended itself
    #[arg(long)]
    pub(crate) release_quarantined: bool,
}

/// Drops every chunk and overwrites its bytes; only says what it would do, unless --yes is given
///
/// When it has ended well no byte of a chunk is in the store's files. If it is stopped, no chunk is found any more, and it is
/// to be run again. The store stays, and is empty.
#[derive(Debug, Args)]
pub(crate) struct WipeArgs {
    #[command(flatten)]
    pub(crate) dirs: Dirs,
    /// Does it
    #[arg(long)]
    pub(crate) yes: bool,
}

/// Measures what a store in this directory would move, beside plain I/O
///
/// Makes a scratch store in the directory, of its own and in no store's files, and removes it again.
#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    /// Where: a directory on the device
    #[arg(value_name = "DIR")]
    pub(crate) dir: PathBuf,
    /// Bytes of a chunk
    #[arg(long, value_name = "SIZE", default_value = "1MiB")]
    pub(crate) chunk_bytes: Size,
    /// Bytes moved each way in each round
    #[arg(long, value_name = "SIZE", default_value = "256MiB")]
    pub(crate) round_bytes: Size,
    /// Rounds that count; one more goes before them
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) rounds: u32,
    /// Chunks under way at once
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) depth: u16,
}
