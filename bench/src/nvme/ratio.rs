//! Two subjects in the same rounds.

use serde::Serialize;

use super::{Direction, NvmeCaseResult, Range};

/// One subject's figures over another's, round by round, at one chunk size one way.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Ratio {
    /// Whose figures,
    pub subject: String,
    /// and over whose.
    pub over: String,
    /// Which way.
    pub direction: Direction,
    /// Bytes a chunk.
    pub chunk_bytes: u32,
    /// Of the rates: more is better.
    pub rate: Range,
    /// Of the CPU time a byte: less is better. None where the other used none that could be measured.
    pub cpu: Option<Range>,
}

/// Each case of `subject` over that of `over`, in the order of the cases; without those that had no round.
pub fn ratios(cases: &[NvmeCaseResult], subject: &str, over: &str) -> Vec<Ratio> {
    let of_subject = cases.iter().filter(|case| case.subject == subject);
    let ratio = |case: &NvmeCaseResult| {
        let is_other = |other: &&NvmeCaseResult| {
            other.subject == over
                && other.direction == case.direction
                && other.chunk_bytes == case.chunk_bytes
        };
        let other = cases.iter().find(is_other)?;
        Some(Ratio {
            subject: subject.to_owned(),
            over: over.to_owned(),
            direction: case.direction,
            chunk_bytes: case.chunk_bytes,
            rate: Range::of(&quotients(&case.mb_per_s, &other.mb_per_s))?,
            cpu: Range::of(&quotients(&case.cpu_s_per_gb, &other.cpu_s_per_gb)),
        })
    };
    of_subject.filter_map(ratio).collect()
}

/// `rounds` over `other`, round by round, where that is a number.
pub(crate) fn quotients(rounds: &[f64], other: &[f64]) -> Vec<f64> {
    let pairs = rounds.iter().zip(other);
    pairs.filter(|(_, other)| **other > 0.0).map(|(round, other)| round / other).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn case(subject: &str, chunk_bytes: u32, mb_per_s: [f64; 3], cpu_s_per_gb: [f64; 3]) -> NvmeCaseResult {
        NvmeCaseResult {
            subject: subject.to_owned(),
            direction: Direction::Read,
            chunk_bytes,
            mb_per_s: mb_per_s.into(),
            cpu_s_per_gb: cpu_s_per_gb.into(),
            device_bytes: None,
            moved_bytes: 0,
            verified_bytes: 0,
            mismatches: 0,
        }
    }

    #[test]
    fn rounds_are_divided_one_by_one() {
        let cases = [
            case("floor", 1, [100.0, 200.0, 400.0], [0.0, 0.0, 0.0]),
            case("floor", 2, [1.0, 1.0, 1.0], [1.0, 1.0, 1.0]),
            case("full", 1, [50.0, 180.0, 400.0], [1.0, 1.0, 1.0]),
            case("full", 2, [2.0, 2.0, 2.0], [3.0, 4.0, 5.0]),
            case("full", 3, [2.0, 2.0, 2.0], [3.0, 4.0, 5.0]),
        ];
        let found = ratios(&cases, "full", "floor");
        assert_eq!(found.len(), 2, "there is no floor of 3 bytes");
        assert_eq!((found[0].rate.shown(1), found[0].cpu), ("0.5/0.9/1.0".to_owned(), None));
        assert_eq!(found[1].cpu.unwrap().shown(0), "3/4/5");
        assert!(ratios(&cases, "full", "fio").is_empty());
    }
}
