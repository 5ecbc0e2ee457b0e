//! The ways on which bytes go: which there are, which is chosen, and what is counted of them.
//!
//! A copy that is long enough fills the link whatever the way. Short ones cost a call or a descriptor each, and what
//! that is depends on the device, the driver and the link: so it is measured, by `calibrate`, and the way that takes
//! the least time at a size is taken. Until it is measured, figures that others published stand in.

mod calibrate;
mod table;

use kvo_core::Direction;

pub(crate) use self::calibrate::{calibrate, try_batches};
pub use self::table::{CopyPath, PathTable, TableSource};
use super::{
    codes::DriverCode,
    driver::{BatchCopy, CallError, Context, Stream},
    host_pool::{DeviceHost, HostMode},
    issue::{self, HostCopy, KernelLists, Lists},
};

/// Rows that are worth a call of their own.
const ROWS_MIN: usize = 4;
/// Copies that are worth a launch.
const KERNEL_COPIES_MIN: usize = 16;
/// Bytes between two rows that every driver takes.
const PITCH_MAX: usize = 1 << 30;
/// What a batch is cut to: more than this has crashed drivers.
const BATCH_COPIES_MAX: usize = 1024;
const BATCH_BYTES_MAX: usize = 32 << 20;

/// Whether a way is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PathUse {
    /// It is, where it is the fastest.
    On,
    /// The options do not ask for it.
    NotAsked,
    /// The driver does not have it.
    Missing,
    /// The host memory is not registered.
    Pageable,
    /// The driver's release is known to break with it.
    DeniedRelease,
    /// The test of it failed, or did not end.
    FailedTest,
    /// The driver refused it; copies go another way since.
    Refused {
        /// What it returned.
        code: DriverCode,
    },
}

/// What went one way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathCount {
    /// Copies.
    pub copies: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Calls of the driver that put them on the device.
    pub calls: u64,
}

/// What went which way, refused copies included.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathStats {
    /// A call a copy, which always works.
    pub memcpy: PathCount,
    /// A call for copies at constant steps.
    pub rows: PathCount,
    /// A call for any copies.
    pub batch: PathCount,
    /// A launch for any copies, or a few if they are very many.
    pub kernel: PathCount,
    /// Whether rows are used.
    pub rows_use: PathUse,
    /// Whether batches are used.
    pub batch_use: PathUse,
    /// Whether the kernel is used.
    pub kernel_use: PathUse,
    /// What the choice goes by.
    pub table: PathTable,
}

/// Chooses ways for the copies of pieces.
pub(crate) struct Paths {
    stats: PathStats,
    batch: BatchCopy,
    kernel: Option<KernelLists>,
    /// Those that the copies of the piece at hand use.
    lists: Lists,
    /// Of the stats not yet seen.
    has_news: bool,
}

impl Paths {
    /// Ways by a table, as far as the driver and the host memory have them.
    pub(crate) fn new(
        context: &Context,
        host: &DeviceHost,
        table: PathTable,
        batch_use: PathUse,
        kernel: Result<KernelLists, PathUse>,
    ) -> Self {
        let is_registered = host.mode() == HostMode::Registered;
        let use_of = |asked, is_there| match (is_registered, is_there) {
            _ if asked != PathUse::On => asked,
            (false, _) => PathUse::Pageable,
            (true, false) => PathUse::Missing,
            (true, true) => PathUse::On,
        };
        let none = PathCount::default();
        let stats = PathStats {
            memcpy: none,
            rows: none,
            batch: none,
            kernel: none,
            rows_use: use_of(PathUse::On, context.has_rows()),
            batch_use: use_of(batch_use, context.has_batches()),
            kernel_use: use_of(*kernel.as_ref().map_or_else(|why| why, |_| &PathUse::On), true),
            table,
        };
        for (way, way_use) in [("batches", stats.batch_use), ("the kernel", stats.kernel_use)] {
            if !matches!(way_use, PathUse::On | PathUse::NotAsked) {
                tracing::warn!(way, why = ?way_use, "a way of copies is not used");
            }
        }
        let lists = Lists::default();
        Self { stats, batch: BatchCopy::default(), kernel: kernel.ok(), lists, has_news: true }
    }

    /// Puts the copies of a piece on `stream`, and says which lists they use, to be [freed](Self::free) when the stream
    /// has passed them. After an error some of them are there, and use the lists.
    pub(crate) fn put(
        &mut self,
        context: &Context,
        host: &DeviceHost,
        direction: Direction,
        copies: &[HostCopy],
        stream: &Stream,
    ) -> (Lists, Result<(), CallError>) {
        self.has_news = true;
        let put = self.put_all(&To { context, host, direction, stream }, copies);
        (std::mem::take(&mut self.lists), put)
    }

    /// The device has done all copies that used these.
    pub(crate) fn free(&mut self, lists: Lists) {
        if let Some(kernel) = &mut self.kernel {
            kernel.free(lists);
        }
    }

    /// The device has done all copies.
    pub(crate) fn free_all(&mut self) {
        self.lists = Lists::default();
        if let Some(kernel) = &mut self.kernel {
            kernel.free_all();
        }
    }

    fn put_all(&mut self, to: &To<'_>, copies: &[HostCopy]) -> Result<(), CallError> {
        // From here on to `at` nothing was put.
        let (mut from, mut at) = (0, 0);
        while at < copies.len() {
            let run = if self.stats.rows_use == PathUse::On { row_run(&copies[at..]) } else { 1 };
            let rows = &copies[at..at + run];
            let is_worth_it = run >= ROWS_MIN
                && self.fastest(to, copies[at].bytes(), true) == CopyPath::Rows
                && is_in_one_registration(to.host, rows);
            if is_worth_it {
                self.put_scattered(to, &copies[from..at])?;
                self.put_rows(to, rows)?;
                from = at + run;
            }
            at += run;
        }
        self.put_scattered(to, &copies[from..])
    }

    /// The fastest way for copies of that length that is used, rows among them or not.
    fn fastest(&self, to: &To<'_>, bytes: usize, with_rows: bool) -> CopyPath {
        let stats = &self.stats;
        stats.table.fastest(to.direction, bytes, |path| match path {
            CopyPath::Memcpy => true,
            CopyPath::Rows => with_rows && stats.rows_use == PathUse::On,
            CopyPath::Batch => stats.batch_use == PathUse::On,
            CopyPath::Kernel => stats.kernel_use == PathUse::On,
        })
    }

    /// Rows in one call; one by one if the driver refuses, from then on.
    fn put_rows(&mut self, to: &To<'_>, copies: &[HostCopy]) -> Result<(), CallError> {
        count(&mut self.stats.rows, copies, 1);
        match issue::rows(to.context, to.direction, copies, to.stream) {
            Err(error) if !error.code.is_sticky() => {
                tracing::warn!(%error, rows = copies.len(), "rows were refused: copies go by a call each");
                self.stats.rows_use = PathUse::Refused { code: error.code };
                self.put_one_by_one(to, copies)
            }
            put => put,
        }
    }

    /// Copies of any lengths from and to anywhere.
    fn put_scattered(&mut self, to: &To<'_>, copies: &[HostCopy]) -> Result<(), CallError> {
        if copies.is_empty() {
            return Ok(());
        }
        let bytes = copies.iter().map(HostCopy::bytes).sum::<usize>() / copies.len();
        match self.fastest(to, bytes, false) {
            CopyPath::Kernel if copies.len() >= KERNEL_COPIES_MIN => self.put_by_kernel(to, copies),
            CopyPath::Batch if copies.len() > 1 => self.put_batches(to, copies),
            _ => self.put_one_by_one(to, copies),
        }
    }

    /// All copies by the kernel. If a launch is refused, all go again, one by one, which changes nothing, as nobody else
    /// writes their bytes; and the kernel is not used any more.
    fn put_by_kernel(&mut self, to: &To<'_>, copies: &[HostCopy]) -> Result<(), CallError> {
        let address = |copy: &HostCopy| to.host.device_address(copy.host(), copy.bytes());
        let kernel = self.kernel.as_mut().filter(|_| copies.iter().all(|copy| address(copy).is_some()));
        let Some(kernel) = kernel else { return self.put_one_by_one(to, copies) };
        let address = |copy: &HostCopy| address(copy).expect("every address was found above");
        let (lists, put) = kernel.put(to.direction, copies, address, to.stream);
        let Some(lists) = lists else { return self.put_one_by_one(to, copies) };
        self.lists.join(lists);
        count(&mut self.stats.kernel, copies, 1);
        match put {
            Err(error) if !error.code.is_sticky() => {
                tracing::warn!(%error, copies = copies.len(), "the kernel was refused: it is not used any more");
                self.stats.kernel_use = PathUse::Refused { code: error.code };
                self.put_one_by_one(to, copies)
            }
            put => put,
        }
    }

    fn put_batches(&mut self, to: &To<'_>, copies: &[HostCopy]) -> Result<(), CallError> {
        let mut rest = copies;
        while !rest.is_empty() {
            let (part, after) = rest.split_at(batch_len(rest));
            self.put_batch(to, part)?;
            rest = after;
        }
        Ok(())
    }

    /// A batch in one call. If the driver refuses, some of it may be under way: all of it goes again, one by one, which
    /// changes nothing, as nobody else writes its bytes; and batches are not used any more.
    fn put_batch(&mut self, to: &To<'_>, copies: &[HostCopy]) -> Result<(), CallError> {
        let address = |copy: &HostCopy| to.host.device_address(copy.host(), copy.bytes());
        if self.stats.batch_use != PathUse::On || copies.iter().any(|copy| address(copy).is_none()) {
            return self.put_one_by_one(to, copies);
        }
        count(&mut self.stats.batch, copies, 1);
        let address = |copy: &HostCopy| address(copy).expect("every address was found above");
        match issue::batch(to.context, to.direction, copies, address, &mut self.batch, to.stream) {
            Err(error) if !error.code.is_sticky() => {
                tracing::warn!(%error, copies = copies.len(), "a batch was refused: no more batches are used");
                self.stats.batch_use = PathUse::Refused { code: error.code };
                self.put_one_by_one(to, copies)
            }
            put => put,
        }
    }

    fn put_one_by_one(&mut self, to: &To<'_>, copies: &[HostCopy]) -> Result<(), CallError> {
        count(&mut self.stats.memcpy, copies, copies.len());
        issue::one_by_one(to.context, to.direction, copies, to.stream)
    }

    /// What went which way, if it was not seen before.
    pub(crate) fn news(&mut self) -> Option<&PathStats> {
        std::mem::take(&mut self.has_news).then_some(&self.stats)
    }
}

/// Where copies go.
struct To<'a> {
    context: &'a Context,
    host: &'a DeviceHost,
    direction: Direction,
    stream: &'a Stream,
}

fn count(count: &mut PathCount, copies: &[HostCopy], calls: usize) {
    count.copies += copies.len() as u64;
    count.bytes += copies.iter().map(|copy| copy.bytes() as u64).sum::<u64>();
    count.calls += calls as u64;
}

/// How many of the first copies are rows: as long as one another, in one allocation, at constant steps that leave no two
/// on the same bytes. At least 1.
fn row_run(copies: &[HostCopy]) -> usize {
    let step = |one: &HostCopy, next: &HostCopy| {
        let host = next.host().addr().checked_sub(one.host().addr())?;
        let device = usize::try_from(next.device().checked_sub(one.device())?).ok()?;
        let is_row = one.bytes() == next.bytes() && one.allocation() == next.allocation();
        let is_step = |step: usize| (one.bytes()..PITCH_MAX).contains(&step);
        (is_row && is_step(host) && is_step(device)).then_some((host, device))
    };
    let [first, second, ..] = copies else { return copies.len() };
    let Some(first_step) = step(first, second) else { return 1 };
    1 + copies.windows(2).take_while(|pair| step(&pair[0], &pair[1]) == Some(first_step)).count()
}

/// Whether the host's side of rows, and what is between them, is registered as one.
fn is_in_one_registration(host: &DeviceHost, rows: &[HostCopy]) -> bool {
    let (first, last) = (rows[0], rows[rows.len() - 1]);
    let bytes = last.host().addr() - first.host().addr() + last.bytes();
    host.is_in_one_piece(first.host(), bytes)
}

/// How many of the first copies go into one batch. At least 1.
fn batch_len(copies: &[HostCopy]) -> usize {
    let mut bytes = 0_usize;
    let fits = |copy: &&HostCopy| {
        bytes = bytes.saturating_add(copy.bytes());
        bytes <= BATCH_BYTES_MAX
    };
    copies.iter().take(BATCH_COPIES_MAX).take_while(fits).count().max(1)
}
