//! The NVMe store beside plain I/O on the same file system: what `kvo-bench nvme` measures.
//!
//! ```text
//!   a round:  store writes ─▶ plain writes ─▶ store reads ─▶ plain reads      (every other round, plain first)
//!             + fdatasync     + fdatasync     from the       around the
//!                                             device         page cache
//! ```
//!
//! The store runs as a tier does: jobs of [`CHUNKS_PER_JOB`] chunks between its file and slots of host memory, its
//! own threads, eviction, and a checksum at every write and read. The limit is as many threads that do nothing but
//! positional I/O of the same size on a file beside it, with `O_DIRECT` where the file system allows it.
//!
//! The store's file goes through the page cache, so a write counts until `fdatasync` has returned, and the cached
//! pages of the file are dropped before every read. Whether the bytes then came from a device is asked of the kernel
//! and shown. Every byte that the store reads is compared, outside the time that counts.

mod case;
mod device_bytes;
mod file_system;
mod limit;
mod options;
mod store;

use serde::Serialize;

pub use self::{
    case::{NvmeCaseResult, run_nvme_case},
    file_system::file_system_of,
    limit::allows_direct_io,
    options::{NvmeBenchOptions, NvmePlan},
    store::CHUNKS_PER_JOB,
};

/// Which way the bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Direction {
    /// Into the file.
    Write,
    /// Out of it.
    Read,
}

impl std::fmt::Display for Direction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::Write => "write",
            Self::Read => "read",
        })
    }
}
