//! Capacities of a tier, as a command line gives them.

use std::{fmt, str::FromStr};

/// A number of chunks, or a percentage of a trace's different blocks.
///
/// ```
/// # fn main() -> Result<(), kvo_bench::CapacityError> {
/// use kvo_bench::Capacity;
///
/// assert_eq!("512".parse::<Capacity>()?.chunks(20_789)?, 512);
/// assert_eq!("5%".parse::<Capacity>()?.chunks(20_789)?, 1_039);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Capacity {
    /// So many chunks, at least 1.
    Chunks(u32),
    /// So many percent, above 0 and up to 100.
    Percent(f64),
}

impl Capacity {
    /// The whole chunks that this is for a trace of `num_unique` different blocks.
    ///
    /// # Errors
    ///
    /// [`CapacityError::NoChunk`] if the percentage comes to less than one chunk.
    pub fn chunks(self, num_unique: u32) -> Result<u32, CapacityError> {
        match self {
            Self::Chunks(chunks) => Ok(chunks),
            Self::Percent(percent) => {
                let exact = f64::from(num_unique) * percent / 100.0;
                if exact < 1.0 {
                    return Err(CapacityError::NoChunk { capacity: self.to_string(), num_unique });
                }
                #[expect(
                    clippy::cast_possible_truncation,
                    clippy::cast_sign_loss,
                    reason = "at least 1 and at most num_unique; the fraction is to be cut off"
                )]
                Ok(exact as u32)
            }
        }
    }
}

impl fmt::Display for Capacity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Chunks(chunks) => chunks.fmt(f),
            Self::Percent(percent) => write!(f, "{percent}%"),
        }
    }
}

impl FromStr for Capacity {
    type Err = CapacityError;

    fn from_str(given: &str) -> Result<Self, CapacityError> {
        let capacity = match given.strip_suffix('%') {
            Some(percent) => {
                percent.parse().ok().filter(|percent| *percent > 0.0 && *percent <= 100.0).map(Self::Percent)
            }
            None => given.parse().ok().filter(|chunks| *chunks > 0).map(Self::Chunks),
        };
        capacity.ok_or_else(|| CapacityError::Text { given: given.to_owned() })
    }
}

/// A capacity that is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CapacityError {
    /// The text is neither a number of chunks nor a percentage.
    #[error(
        "{given:?} is no capacity: give chunks, as in 512, or a percentage of the trace's different blocks, as in 5%"
    )]
    Text {
        /// The text.
        given: String,
    },
    /// The percentage comes to less than one chunk.
    #[error(
        "{capacity} of the trace's {num_unique} different blocks is less than one chunk: give more percent, or chunks"
    )]
    NoChunk {
        /// The capacity, as given.
        capacity: String,
        /// The different blocks of the trace.
        num_unique: u32,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentages_are_cut_to_whole_chunks() {
        let chunks = |text: &str| text.parse::<Capacity>().unwrap().chunks(20_789);
        assert_eq!(
            ["1%", "5%", "10%", "20%", "50%"].map(|p| chunks(p).unwrap()),
            [207, 1039, 2078, 4157, 10394]
        );
        assert_eq!(["0.5%", "100%"].map(|p| chunks(p).unwrap()), [103, 20_789]);
    }

    #[test]
    fn less_than_one_chunk_is_an_error() {
        let error = Capacity::Percent(1.0).chunks(99).unwrap_err().to_string();
        assert!(error.starts_with("1% of the trace's 99 different blocks"), "{error}");
    }

    #[test]
    fn what_is_no_capacity_is_named() {
        for text in ["", "0", "-1", "0%", "-5%", "101%", "nan%", "5 %", "5.5", "4294967296", "many"] {
            let error = text.parse::<Capacity>().unwrap_err().to_string();
            assert!(error.starts_with(&format!("{text:?} is no capacity")), "{error}");
        }
    }
}
