//! The NVMe store beside the fastest plain I/O of the same file system: what `kvo-bench nvme` measures.
//!
//! ```text
//!                    ┌ fio, io_uring      ┐
//!                    │ floor, threads     │
//!   a round: of each │ raw   no checksum  │ every chunk written once; of each, every chunk read once; in another
//!                    │ full  XXH3         │ order every round. Before: fresh bytes. After: every byte is compared
//!                    └ pool  by threads   ┘
//! ```
//!
//! A figure is a ratio to the floor of the same round: fio where that is installed and can have huge pages, else the
//! [`Floor`], which does nothing but positional I/O from the same host memory. Both go around the page cache where the
//! file system allows that. [`StoreRun`] drives the store as a tier is driven. [`Subject`] is what is measured, so that
//! `bench/compare` can put other projects in the same rounds.
//!
//! CPU time is that of the process, user and system, of all its threads.

mod case;
mod cost;
mod file_system;
mod fio;
mod floor;
mod host;
mod huge_pages;
mod keys;
mod options;
mod place;
mod point;
mod range;
mod ratio;
mod results;
mod store;
mod subject;
mod surroundings;

pub(crate) use self::ratio::quotients;
pub use self::{
    case::{NvmeCaseResult, Work, run_rounds},
    cost::{Cost, DeviceBytes, Meter, process_time},
    file_system::{bytes_on_disk, file_system_of, free_bytes},
    fio::{Fio, FioRun},
    floor::{Floor, allows_direct_io},
    host::{Checked, HostChunks},
    huge_pages::HugePages,
    keys::Keys,
    options::{NvmeBenchOptions, NvmePlan},
    place::{Place, subject_dir},
    point::{Bound, Point, cpu_points},
    range::Range,
    ratio::{Ratio, ratios},
    results::NvmeRunResults,
    store::{CHUNKS_PER_JOB, StoreKind, StoreRun},
    subject::{Direction, Subject},
    surroundings::{Surroundings, load_average, open_files},
};
