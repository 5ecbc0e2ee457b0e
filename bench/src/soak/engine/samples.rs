//! Memory as time goes on.

use std::time::Duration;

use serde::Serialize;

use crate::micro::resident_bytes;

/// What the memory may have grown by, of what it was after the warm-up.
const GROWTH_PERCENT_MAX: f64 = 2.0;
/// Samples from which on growth can be told, and the time over which they must reach: what is made once is made in the
/// first minutes, of which the quarter before the comparison is the least.
const SAMPLES_MIN: usize = 16;
const SECONDS_MIN: f64 = 240.0;

/// What is the case at one time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct EngineSample {
    /// Since the first request.
    pub seconds: f64,
    /// Answers so far.
    pub answers: u64,
    /// Memory of the process.
    pub resident_bytes: u64,
}

impl EngineSample {
    pub(super) fn take(elapsed: Duration, answers: u64) -> anyhow::Result<Self> {
        Ok(Self { seconds: elapsed.as_secs_f64(), answers, resident_bytes: resident_bytes()? })
    }
}

/// By how much the memory of the last quarter is more than that of the second, the one after the warm-up: medians, in
/// percent of the latter. None if the run was too short to tell.
pub fn growth_percent(samples: &[EngineSample]) -> Option<f64> {
    if samples.len() < SAMPLES_MIN || samples.last()?.seconds < SECONDS_MIN {
        return None;
    }
    let quarter = samples.len() / 4;
    let median = |part: &[EngineSample]| {
        let mut bytes: Vec<_> = part.iter().map(|sample| sample.resident_bytes).collect();
        bytes.sort_unstable();
        bytes[bytes.len() / 2] as f64
    };
    let (second, last) =
        (median(&samples[quarter..2 * quarter]), median(&samples[samples.len() - quarter..]));
    Some((last / second - 1.0) * 100.0)
}

/// Whether the memory has grown.
pub fn memory_problems(samples: &[EngineSample]) -> Vec<String> {
    match growth_percent(samples) {
        Some(percent) if percent > GROWTH_PERCENT_MAX => {
            vec![format!(
                "the memory grew by {percent:.2} % after the warm-up, {GROWTH_PERCENT_MAX} % may be"
            )]
        }
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(seconds: f64, resident_bytes: impl Fn(u64) -> u64) -> Vec<EngineSample> {
        let sample = |nth: u64| EngineSample {
            seconds: seconds * nth as f64 / 40.0,
            answers: nth,
            resident_bytes: resident_bytes(nth),
        };
        (1..=40).map(sample).collect()
    }

    #[test]
    fn what_a_warm_up_takes_is_no_growth_and_what_goes_on_is() {
        let warm_up = samples(600.0, |nth| if nth < 10 { nth << 20 } else { 10 << 20 });
        assert_eq!(growth_percent(&warm_up), Some(0.0));
        assert!(memory_problems(&warm_up).is_empty());
        // A fifth of a percent a sample.
        let leak = samples(600.0, |nth| 10_000_000 + nth * 20_000);
        assert!(growth_percent(&leak).is_some_and(|percent| percent > 3.0));
        assert_eq!(memory_problems(&leak).len(), 1);
        let little = samples(600.0, |nth| 10_000_000 + nth * 2_000);
        assert!(memory_problems(&little).is_empty());
    }

    #[test]
    fn a_short_run_cannot_tell() {
        assert_eq!(growth_percent(&samples(100.0, |nth| nth << 20)), None);
        assert_eq!(growth_percent(&samples(600.0, |nth| nth << 20)[..10]), None);
    }
}
