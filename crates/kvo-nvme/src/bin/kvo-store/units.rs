//! Sizes and fingerprints, as they are typed and shown.

use std::{fmt, str::FromStr};

use bytesize::ByteSize;

/// A number of bytes that somebody typed: at least 1, as `4096`, `64KiB` or `1.5GB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Size(pub(crate) u64);

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let hint = "a size is a number with a unit or without, as 4096, 64KiB, 1.5GB";
        match text.trim().parse::<ByteSize>() {
            Ok(ByteSize(0)) => Err(format!("it is no byte; {hint}")),
            // What does not fit is cut by the parser.
            Ok(ByteSize(u64::MAX)) => Err("it is more than can be".to_owned()),
            Ok(ByteSize(bytes)) => Ok(Self(bytes)),
            Err(_) => Err(hint.to_owned()),
        }
    }
}

/// Bytes for people.
pub(crate) fn human(bytes: u64) -> String {
    ByteSize(bytes).display().iec().to_string()
}

/// A rate for people, in the units that devices are sold by.
pub(crate) fn human_rate(bytes_per_s: f64) -> String {
    format!("{:.0} MB/s", bytes_per_s / 1e6)
}

/// What the bytes of a store mean, as its owner says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fingerprint(pub(crate) [u8; 32]);

impl FromStr for Fingerprint {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut bytes = [0; 32];
        let digits = text.as_bytes();
        if digits.len() != 2 * bytes.len() {
            return Err(format!("a fingerprint has 64 hexadecimal digits, not {}", text.chars().count()));
        }
        let value = |digit: u8| char::from(digit).to_digit(16).and_then(|value| u8::try_from(value).ok());
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            let (Some(high), Some(low)) = (value(pair[0]), value(pair[1])) else {
                return Err("a fingerprint is made of hexadecimal digits".to_owned());
            };
            *byte = high << 4 | low;
        }
        Ok(Self(bytes))
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, bytes: Option<u64>) {
        assert_eq!(text.parse::<Size>().ok(), bytes.map(Size), "{text:?}");
    }

    #[test]
    fn sizes_have_units_or_not() {
        check("4096", Some(4096));
        check("64KiB", Some(64 << 10));
        check("64 KiB", Some(64 << 10));
        check("500MB", Some(500_000_000));
        check("1.5GiB", Some(3 << 29));
        check("2TiB", Some(2 << 40));
        for bad in ["", "0", "0MB", "-1", "MB", "1.2.3GB", "1 elephant", "99999999999EB", "1e9", "∞"] {
            check(bad, None);
        }
    }

    #[test]
    fn a_fingerprint_is_what_is_shown() {
        let hex = "00ff".repeat(16);
        let fingerprint: Fingerprint = hex.parse().unwrap();
        assert_eq!(fingerprint.0[..4], [0, 255, 0, 255]);
        assert_eq!(fingerprint.to_string(), hex);
        assert_eq!(hex.to_uppercase().parse(), Ok(fingerprint));
        for bad in ["", "00", &"0g".repeat(32), &"é".repeat(32), &"0".repeat(65)] {
            bad.parse::<Fingerprint>().unwrap_err();
        }
    }
}
