//! The NVMe store beside the fastest plain I/O of the same file system: what `kvo-bench nvme` measures.
//!
//! ```text
//!   a round, in an order of its own:                each of them, before the next:
//!
//!     fio     io_uring                ┐               fresh bytes in the host memory
//!     floor   threads                 │ one file,     every chunk written          timed
//!     raw     the store, no checksum  │ in turns      host memory cleared
//!     full    the store, XXH3         │               every chunk read             timed
//!     pool    the store, by threads   ┘               every byte compared
//! ```
//!
//! A figure is a ratio to the floor of the same round: fio where that is installed and can have huge pages, else the
//! [`Floor`], which does nothing but positional I/O from the same host memory. All go around the page cache where the
//! file system allows that, and through the blocks of the same [`SlotFile`]: from one place of a disk to another, writes
//! differ by more than the store costs. [`StoreRun`] drives the store as a tier is driven. [`Subject`] is what is
//! measured, so that `bench/compare` can put other projects in the same rounds.
//!
//! CPU time is that of the process, user and system, of all its threads.

mod at_rest;
mod case;
mod cost;
mod file_system;
mod fio;
mod floor;
mod host;
mod huge_pages;
mod keys;
mod mixed;
mod options;
mod place;
mod point;
mod range;
mod ratio;
mod results;
mod slot_file;
mod store;
mod subject;
mod surroundings;

pub(crate) use self::ratio::quotients;
pub use self::{
    at_rest::{AtRest, ManySlots, measure_at_rest},
    case::{NvmeCaseResult, Work, run_rounds},
    cost::{Cost, DeviceBytes, Meter, process_time},
    file_system::{bytes_on_disk, file_system_of, free_bytes},
    fio::{Fio, FioRun},
    floor::{Floor, allows_direct_io},
    host::{Checked, HostChunks},
    huge_pages::HugePages,
    keys::Keys,
    mixed::{MixedKept, MixedResult, READ_DEPTH, STORE_JOBS, run_mixed},
    options::{NvmeBenchOptions, NvmePlan},
    place::{Place, subject_dir},
    point::{Bound, Point, cpu_points, points_table},
    range::Range,
    ratio::{Ratio, ratios},
    results::NvmeRunResults,
    slot_file::SlotFile,
    store::{CHUNKS_PER_JOB, StoreKind, StoreRun},
    subject::{Direction, Subject},
    surroundings::{Surroundings, load_average, open_files},
};
