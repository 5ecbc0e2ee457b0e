//! What copies cost on each way.

use kvo_core::Direction;

/// A way for copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CopyPath {
    /// A call a copy.
    Memcpy,
    /// A call for copies of one length at constant steps.
    Rows,
    /// A call for any copies.
    Batch,
    /// A kernel on a few multiprocessors.
    Kernel,
}

impl CopyPath {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Memcpy, Self::Rows, Self::Batch, Self::Kernel];
}

/// Where the figures of a [`PathTable`] are from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TableSource {
    /// Published for other machines.
    Published,
    /// Measured on this device, with its driver and link.
    Measured,
    /// Given by the engine.
    Given,
}

/// The lengths of a table's columns, in bytes.
pub(super) const LENGTHS: [usize; 6] = [4 << 10, 16 << 10, 64 << 10, 128 << 10, 512 << 10, 2 << 20];

/// Nanoseconds a copy takes, one of many, by way and length. The way that takes the least is the one that is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathTable {
    /// By direction, stores first, by way as in [`CopyPath::ALL`], and by [length](Self::LENGTHS).
    pub nanoseconds: [[[u32; LENGTHS.len()]; CopyPath::ALL.len()]; 2],
    /// Where they are from.
    pub source: TableSource,
}

impl PathTable {
    /// The lengths of the columns, in bytes, ascending.
    pub const LENGTHS: [usize; LENGTHS.len()] = LENGTHS;

    /// Figures that were published for `PCIe` 5 and CUDA 12.8 and later: 2.3 us for a call, 0.5 us for a descriptor, and
    /// 55 bytes a ns, 50 for a kernel; a row is taken to cost half a descriptor. They are a start, and not of this
    /// machine.
    pub fn published() -> Self {
        let row = |each: usize, rate: usize| {
            LENGTHS.map(|bytes| u32::try_from(each.max(bytes / rate)).unwrap_or(u32::MAX))
        };
        let rows = [row(2300, 55), row(250, 55), row(500, 55), row(150, 50)];
        Self { nanoseconds: [rows; 2], source: TableSource::Published }
    }

    /// What a copy of that length costs on a way, between the columns in proportion.
    pub fn cost(&self, direction: Direction, path: CopyPath, bytes: usize) -> f64 {
        let row = &self.nanoseconds[direction as usize][path as usize];
        let above = LENGTHS.partition_point(|length| *length < bytes).clamp(1, LENGTHS.len() - 1);
        let (low, high) = (LENGTHS[above - 1] as f64, LENGTHS[above] as f64);
        let (at_low, at_high) = (f64::from(row[above - 1]), f64::from(row[above]));
        let share = (bytes as f64 - low) / (high - low);
        // Below the first column a copy costs what it costs there; beyond the last the line goes on.
        if share < 0.0 { at_low } else { at_low + share * (at_high - at_low) }
    }

    /// The way that takes the least time for copies of that length, of those that are used.
    pub(super) fn fastest(
        &self,
        direction: Direction,
        bytes: usize,
        is_used: impl Fn(CopyPath) -> bool,
    ) -> CopyPath {
        let cost = |path: &CopyPath| self.cost(direction, *path, bytes);
        let used = CopyPath::ALL.into_iter().filter(|path| is_used(*path));
        used.min_by(|one, other| cost(one).total_cmp(&cost(other))).unwrap_or(CopyPath::Memcpy)
    }
}
