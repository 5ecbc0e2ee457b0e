//! What a planner may be told beside the layout.

use crate::GeometryError;

/// How copies are cut and gathered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanOptions {
    /// Bytes that no copy is longer than; `None` for as long as they come. A multiple of 16 keeps the
    /// [alignment](crate::CopyPlanner::alignment).
    pub piece_bytes_max: Option<u64>,
    /// The pieces in which the host memory is known to the driver. No copy reaches over a border.
    pub host_pieces: HostPieces,
    /// Bytes that each part of a plan by layer has at least: with fewer, waiting for its mark costs more than its copies.
    pub mark_bytes_min: u64,
}

impl Default for PlanOptions {
    /// Copies as long as they come, host memory in one piece, marks from 1 MiB on.
    fn default() -> Self {
        Self { piece_bytes_max: None, host_pieces: HostPieces::Whole, mark_bytes_min: 1 << 20 }
    }
}

/// The pieces in which host memory is registered, by the bytes where one ends and the next begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostPieces {
    /// There is one.
    Whole,
    /// Each is so many bytes long, but for the last one.
    Each {
        /// Bytes of a piece.
        bytes: u64,
    },
    /// The borders, as byte offsets in the host memory, ascending.
    Borders(Vec<u64>),
}

/// Host pieces, checked.
#[derive(Clone, Debug)]
pub(super) enum Borders {
    None,
    Every(u64),
    At(Vec<u64>),
}

impl Borders {
    pub(super) fn new(pieces: HostPieces) -> Result<Self, GeometryError> {
        match pieces {
            HostPieces::Whole => Ok(Self::None),
            HostPieces::Each { bytes: 0 } => Err(GeometryError::Zero { field: "bytes of a host piece" }),
            HostPieces::Each { bytes } => Ok(Self::Every(bytes)),
            HostPieces::Borders(borders) => {
                let behind = |pair: &[u64]| pair[0] >= pair[1];
                match borders.windows(2).position(behind) {
                    Some(nth) => Err(GeometryError::Borders { border: nth + 1 }),
                    None => Ok(Self::At(borders)),
                }
            }
        }
    }

    /// The first border behind byte `offset`, which is no border of itself: the end of numbers if there is none.
    pub(super) fn next(&self, offset: u64) -> u64 {
        match self {
            Self::None => u64::MAX,
            Self::Every(bytes) => (offset / bytes + 1).saturating_mul(*bytes),
            Self::At(borders) => {
                let nth = borders.partition_point(|&border| border <= offset);
                borders.get(nth).copied().unwrap_or(u64::MAX)
            }
        }
    }
}

/// The widest power of two, up to 16, that divides addresses and lengths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Alignment {
    /// Nothing is known to be aligned.
    One,
    /// Multiples of 8 bytes.
    Eight,
    /// Multiples of 16 bytes.
    Sixteen,
}

impl Alignment {
    /// That of a number, or of several that were or-ed.
    pub fn of(numbers: u64) -> Self {
        match numbers.trailing_zeros() {
            0..3 => Self::One,
            3 => Self::Eight,
            _ => Self::Sixteen,
        }
    }

    /// In bytes.
    pub fn bytes(self) -> u64 {
        match self {
            Self::One => 1,
            Self::Eight => 8,
            Self::Sixteen => 16,
        }
    }
}
