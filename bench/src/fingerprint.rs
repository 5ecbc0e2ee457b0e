//! A hash that is the same on every machine, for traces and for orders of eviction.

use std::fmt;

/// FNV-1a in 64 bits over a stream of `u32`, each as little-endian bytes.
///
/// It tells two runs apart; it does not withstand anyone who wants two of them to look the same.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Fingerprint(u64);

impl Fingerprint {
    /// The fingerprint of nothing.
    pub const EMPTY: Self = Self(0xcbf2_9ce4_8422_2325);

    /// Takes in one number.
    pub fn push(&mut self, value: u32) {
        for byte in value.to_le_bytes() {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }

    /// The 64 bits.
    pub fn value(self) -> u64 {
        self.0
    }
}

impl Extend<u32> for Fingerprint {
    fn extend<I: IntoIterator<Item = u32>>(&mut self, values: I) {
        for value in values {
            self.push(value);
        }
    }
}

impl FromIterator<u32> for Fingerprint {
    fn from_iter<I: IntoIterator<Item = u32>>(values: I) -> Self {
        let mut fingerprint = Self::EMPTY;
        fingerprint.extend(values);
        fingerprint
    }
}

impl Default for Fingerprint {
    fn default() -> Self {
        Self::EMPTY
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl serde::Serialize for Fingerprint {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_fnv_1a_over_little_endian_bytes() {
        // The published FNV-1a value of the four bytes "foob".
        let fingerprint = Fingerprint::from_iter([u32::from_le_bytes(*b"foob")]);
        assert_eq!(fingerprint.to_string(), "dd120e790c2512af");
    }

    #[test]
    fn order_matters() {
        assert_ne!(Fingerprint::from_iter([1, 2]), Fingerprint::from_iter([2, 1]));
    }
}
