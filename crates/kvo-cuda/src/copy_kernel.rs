//! The copy kernel: its PTX, what it takes, and how a plan becomes launches of it.
//!
//! ```text
//!   fragments of a plan ── cut ──▶ slices: [s0 s1 s2 ...  |  ...  |  ... ]
//!                                  launches:  0 .. 16384,   .. ,    ..     at most 64 MiB each
//! ```
//!
//! `kernels/copy.cu` says what a launch does, and what its caller guarantees. Nothing here talks to a driver.

use std::{ffi::CStr, ops::Range};

#[cfg(test)]
mod tests;

/// The kernel's text, for `cuModuleLoadDataEx`; a C string has to be made of it. `cargo xtask ptx` makes it.
pub(crate) const COPY_PTX: &str = include_str!("../kernels/copy.ptx");

/// The most bytes of one launch: 1.2 ms of a PCIe 5.0 x16 link. A launch cannot be taken back, and no copy passes it.
pub(crate) const LAUNCH_BYTES_MAX: u64 = 64 << 20;

/// The most slices of one launch, so that very small ones do not make it long: 384 KiB of [`Slice`]s.
pub(crate) const LAUNCH_SLICES_MAX: usize = 1 << 14;

/// A warp copies 4 KiB in one round trip of the link, so a shorter slice is no faster.
const SLICE_BYTES_MIN: u64 = 4 << 10;

/// The longest slice: 64 warps share 1 MiB evenly.
const SLICE_BYTES_MAX: u64 = 16 << 10;

/// Slices of a fragment begin at multiples of it: a word of 16 bytes for each lane of a warp.
const CUT_BYTES: u64 = 512;

const WARP: u32 = 32;

/// Some bytes and where they go: a fragment of a plan, or a piece of one that one warp copies.
///
/// The kernel reads an array of these, aligned to 8, in this layout: three little-endian words of 64 bits. Both addresses
/// are as the device sees them; registered host memory has its own there (`cuMemHostGetDevicePointer`).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Slice {
    /// The first byte that is read.
    pub(crate) source: u64,
    /// The first byte that is written.
    pub(crate) destination: u64,
    /// How many bytes.
    pub(crate) bytes: u64,
}

impl Slice {
    /// The length of one in the array that the kernel reads.
    pub(crate) const BYTES: usize = 24;

    /// Itself as the kernel reads it.
    #[cfg(test)]
    pub(crate) fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        for (word, value) in bytes.chunks_exact_mut(8).zip([self.source, self.destination, self.bytes]) {
            word.copy_from_slice(&value.to_le_bytes());
        }
        bytes
    }
}

/// What the kernel takes, in order: `cuLaunchKernel` wants an array of the addresses of these fields, of exactly these
/// lengths. Both entries take the same.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Arguments {
    /// Where the launch's first [`Slice`] is, as the device sees it; a multiple of 8.
    pub(crate) slices: u64,
    /// How many there are.
    pub(crate) num_slices: u32,
}

/// An entry of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    /// For slices of which all addresses and lengths are multiples of 16.
    Aligned,
    /// For all others.
    Any,
}

impl Entry {
    /// Both.
    #[cfg(test)]
    pub(crate) const ALL: [Self; 2] = [Self::Aligned, Self::Any];

    /// What the PTX calls it, for `cuModuleGetFunction`.
    pub(crate) fn name(self) -> &'static CStr {
        match self {
            Self::Aligned => c"kvo_copy_aligned",
            Self::Any => c"kvo_copy_any",
        }
    }
}

/// The most of a GPU that a launch takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Grid {
    ctas: u32,
    threads: u32,
}

impl Grid {
    /// The most CTAs of a launch.
    pub(crate) const CTAS_MAX: u32 = 1 << 16;

    /// The most threads in a CTA, as the kernel was compiled.
    pub(crate) const THREADS_MAX: u32 = 512;

    /// `ctas` CTAs of `threads` threads; none if there would be no CTA, or more than [`CTAS_MAX`](Self::CTAS_MAX), or if
    /// `threads` is no multiple of 32 from 32 to [`THREADS_MAX`](Self::THREADS_MAX).
    pub(crate) fn new(ctas: u32, threads: u32) -> Option<Self> {
        let is_sensible =
            (1..=Self::CTAS_MAX).contains(&ctas) && (WARP..=Self::THREADS_MAX).contains(&threads);
        (is_sensible && threads.is_multiple_of(WARP)).then_some(Self { ctas, threads })
    }

    fn warps(self) -> u64 {
        u64::from(self.ctas) * u64::from(self.threads / WARP)
    }
}

impl Default for Grid {
    /// 4 CTAs of 512 threads: 256 KiB in flight, on 4 multiprocessors of the more than a hundred that a server's GPU has.
    fn default() -> Self {
        Self { ctas: 4, threads: Self::THREADS_MAX }
    }
}

/// One launch of the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Launch {
    /// Which entry.
    pub(crate) entry: Entry,
    /// Its grid is (`ctas`, 1, 1).
    pub(crate) ctas: u32,
    /// Its block is (`threads`, 1, 1).
    pub(crate) threads: u32,
    /// Which slices it copies, by their places in the list that [`cut`] wrote.
    pub(crate) slices: Range<usize>,
    /// The bytes of its slices.
    pub(crate) bytes: u64,
}

/// Cuts the fragments of a plan into slices and these into launches, and adds both to the ends of their lists.
///
/// Slices keep the order of the fragments, and so do launches, none of which has more than [`LAUNCH_BYTES_MAX`] bytes or
/// [`LAUNCH_SLICES_MAX`] slices. They are as long as gives every warp of `grid` some, from 4 to 16 KiB. A fragment of no
/// bytes has no slice. No fragment may end beyond 64 bits, which a checked plan's do not.
///
/// Allocates nothing once the lists have room.
pub(crate) fn cut(fragments: &[Slice], grid: Grid, slices: &mut Vec<Slice>, launches: &mut Vec<Launch>) {
    let total = fragments.iter().fold(0_u64, |sum, fragment| sum.saturating_add(fragment.bytes));
    let even = total.min(LAUNCH_BYTES_MAX).div_ceil(grid.warps());
    let slice_bytes = even.clamp(SLICE_BYTES_MIN, SLICE_BYTES_MAX).next_multiple_of(SLICE_BYTES_MIN);
    let (mut first, mut bytes) = (slices.len(), 0);
    for fragment in fragments {
        let num_slices = fragment.bytes.div_ceil(slice_bytes);
        // Even ones: 24 KiB are twice 12, not 16 and 8.
        let step = fragment.bytes.div_ceil(num_slices.max(1)).next_multiple_of(CUT_BYTES);
        let mut at = 0;
        while at < fragment.bytes {
            let slice = Slice {
                source: fragment.source + at,
                destination: fragment.destination + at,
                bytes: step.min(fragment.bytes - at),
            };
            if bytes + slice.bytes > LAUNCH_BYTES_MAX || slices.len() - first == LAUNCH_SLICES_MAX {
                launches.push(launch(slices, first, bytes, grid));
                (first, bytes) = (slices.len(), 0);
            }
            slices.push(slice);
            bytes += slice.bytes;
            at += slice.bytes;
        }
    }
    if slices.len() > first {
        launches.push(launch(slices, first, bytes, grid));
    }
}

/// The launch of the slices from `first` on: no more CTAs than slices, no more warps than have one.
fn launch(slices: &[Slice], first: usize, bytes: u64, grid: Grid) -> Launch {
    let own = &slices[first..];
    let is_aligned = |slice: &Slice| (slice.source | slice.destination | slice.bytes).is_multiple_of(16);
    let entry = if own.iter().all(is_aligned) { Entry::Aligned } else { Entry::Any };
    let num_slices = u32::try_from(own.len()).unwrap_or(u32::MAX);
    let ctas = grid.ctas.min(num_slices);
    let threads = num_slices.div_ceil(ctas).saturating_mul(WARP).min(grid.threads);
    Launch { entry, ctas, threads, slices: first..slices.len(), bytes }
}
