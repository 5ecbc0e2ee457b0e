//! One chunk size: interleaved rounds of all subjects.

use anyhow::Context;
use serde::Serialize;

use super::{Cost, Direction, Subject};
use crate::{Interrupt, micro::shuffle};

/// What was measured of a subject one way.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NvmeCaseResult {
    /// Whose it is.
    pub subject: String,
    /// Which way.
    pub direction: Direction,
    /// Bytes a chunk.
    pub chunk_bytes: u32,
    /// Megabytes (10^6) a second, round by round.
    pub mb_per_s: Vec<f64>,
    /// Seconds of a core a gigabyte (10^9), in the same rounds.
    pub cpu_s_per_gb: Vec<f64>,
    /// Bytes that the kernel counted as moved between this process and devices, over all rounds.
    pub device_bytes: Option<u64>,
    /// Bytes of chunks that were moved, over all rounds.
    pub moved_bytes: u64,
    /// Bytes that were compared after reads, and were right.
    pub verified_bytes: u64,
    /// Chunks that were read and not right.
    pub mismatches: u64,
}

/// How much is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    /// Bytes a chunk.
    pub chunk_bytes: u32,
    /// Chunks that each subject moves one way in a round.
    pub num_chunks: u32,
    /// Rounds that count.
    pub rounds: u16,
}

impl Work {
    /// Bytes that each subject moves one way in a round.
    pub fn round_bytes(&self) -> u64 {
        u64::from(self.chunk_bytes) * u64::from(self.num_chunks)
    }

    /// Runs of all of `num_subjects` subjects: how often `progress` of [`run_rounds`] is called.
    pub fn num_runs(&self, num_subjects: usize) -> u64 {
        (u64::from(self.rounds) + 1) * 2 * num_subjects as u64
    }
}

/// Runs the rounds of one chunk size, and returns what was measured of each subject both ways.
///
/// A first round takes the files' blocks into use, and counts for nothing but the bytes compared. In each further round
/// all subjects go one way and then the other, in an order of its own. Once `interrupt` is set, what has begun one way in
/// that round is dropped, so that all subjects of a direction have the same rounds; there may be none.
///
/// # Errors
/// If a subject fails; the error names it.
pub fn run_rounds(
    subjects: &mut [Box<dyn Subject + '_>],
    work: Work,
    interrupt: &Interrupt,
    mut progress: impl FnMut(),
) -> anyhow::Result<Vec<NvmeCaseResult>> {
    let mut results: Vec<_> = Direction::ALL
        .iter()
        .flat_map(|&direction| subjects.iter().map(move |s| NvmeCaseResult::empty(s.name(), direction, work)))
        .collect();
    for round in 0..=u64::from(work.rounds) {
        let mut directions = Direction::ALL;
        if round > 0 {
            shuffle(&mut directions, round);
        }
        for direction in directions {
            let mut order: Vec<usize> = (0..subjects.len()).collect();
            shuffle(&mut order, round << 1 | u64::from(direction == Direction::Read));
            let mut costs = vec![Cost::default(); subjects.len()];
            for at in order {
                if interrupt.is_set() {
                    return Ok(results);
                }
                let result = result_of(&mut results, subjects.len(), direction, at);
                costs[at] = run_one(&mut *subjects[at], direction, result)
                    .with_context(|| format!("{}, {direction}", subjects[at].name()))?;
                progress();
            }
            if round > 0 {
                for (at, cost) in costs.into_iter().enumerate() {
                    result_of(&mut results, subjects.len(), direction, at).add(cost, work.round_bytes());
                }
            }
        }
    }
    Ok(results)
}

fn result_of(
    results: &mut [NvmeCaseResult],
    num_subjects: usize,
    direction: Direction,
    at: usize,
) -> &mut NvmeCaseResult {
    let before = Direction::ALL.iter().position(|other| *other == direction).unwrap_or_default();
    &mut results[before * num_subjects + at]
}

fn run_one(
    subject: &mut dyn Subject,
    direction: Direction,
    result: &mut NvmeCaseResult,
) -> anyhow::Result<Cost> {
    subject.prepare(direction)?;
    let cost = subject.run(direction)?;
    if direction == Direction::Read
        && let Some(checked) = subject.check()?
    {
        result.verified_bytes += checked.right_bytes;
        result.mismatches += checked.wrong_chunks;
    }
    Ok(cost)
}

impl NvmeCaseResult {
    fn empty(subject: &str, direction: Direction, work: Work) -> Self {
        Self {
            subject: subject.to_owned(),
            direction,
            chunk_bytes: work.chunk_bytes,
            mb_per_s: Vec::new(),
            cpu_s_per_gb: Vec::new(),
            device_bytes: None,
            moved_bytes: 0,
            verified_bytes: 0,
            mismatches: 0,
        }
    }

    fn add(&mut self, cost: Cost, bytes: u64) {
        self.mb_per_s.push(cost.mb_per_s(bytes));
        self.cpu_s_per_gb.push(cost.cpu_s_per_gb(bytes));
        self.moved_bytes += bytes;
        let moved = cost.device.map(|device| match self.direction {
            Direction::Write => device.written,
            Direction::Read => device.read,
        });
        if let Some(moved) = moved {
            *self.device_bytes.get_or_insert(0) += moved;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::RefCell, time::Duration};

    use super::*;
    use crate::nvme::Checked;

    /// Notes its calls, and reads one wrong chunk each time.
    struct Noted<'a> {
        name: &'static str,
        calls: &'a RefCell<Vec<String>>,
    }

    impl Subject for Noted<'_> {
        fn name(&self) -> &str {
            self.name
        }

        fn prepare(&mut self, direction: Direction) -> anyhow::Result<()> {
            self.calls.borrow_mut().push(format!("{} prepares {direction}", self.name));
            Ok(())
        }

        fn run(&mut self, direction: Direction) -> anyhow::Result<Cost> {
            self.calls.borrow_mut().push(format!("{} {direction}s", self.name));
            Ok(Cost { wall: Duration::from_secs(2), cpu: Duration::from_secs(1), device: None })
        }

        fn check(&mut self) -> anyhow::Result<Option<Checked>> {
            Ok(Some(Checked { right_bytes: 3000, wrong_chunks: 1 }))
        }
    }

    const WORK: Work = Work { chunk_bytes: 1000, num_chunks: 4, rounds: 6 };

    fn noted<'a>(calls: &'a RefCell<Vec<String>>) -> Vec<Box<dyn Subject + 'a>> {
        ["a", "b", "c"].map(|name| Box::new(Noted { name, calls }) as Box<dyn Subject>).into()
    }

    #[test]
    fn every_subject_is_prepared_and_run_both_ways_in_every_round_in_changing_order() {
        let calls = RefCell::default();
        let mut runs = 0;
        let results = run_rounds(&mut noted(&calls), WORK, &Interrupt::manual(), || runs += 1).unwrap();
        assert_eq!(runs, WORK.num_runs(3));
        let calls = calls.borrow();
        assert!(calls.chunks(2).all(|pair| pair[0].replace("prepares ", "") + "s" == pair[1]));
        let rounds: Vec<&[String]> = calls.chunks(12).collect();
        assert_eq!(rounds.len(), 7);
        assert!(rounds[0][..6].iter().all(|call| call.contains("write")), "the first run is a write");
        let sorted = |round: &&[String]| {
            let mut calls = round.to_vec();
            calls.sort();
            calls
        };
        assert!(rounds.iter().all(|round| sorted(round) == sorted(&rounds[0])));
        assert!(rounds[1..].iter().any(|round| round[0].contains("read")));
        assert!(rounds.iter().any(|round| round[0] != rounds[0][0]), "{calls:?}");

        let names = ["a", "b", "c", "a", "b", "c"];
        assert!(results.iter().map(|result| &result.subject).eq(&names));
        for (at, result) in results.iter().enumerate() {
            assert_eq!(result.direction, Direction::ALL[at / 3]);
            assert_eq!((result.mb_per_s.len(), result.moved_bytes), (6, 6 * 4000));
            // The round that does not count is compared too.
            let compared = if result.direction == Direction::Read { (7 * 3000, 7) } else { (0, 0) };
            assert_eq!((result.verified_bytes, result.mismatches), compared);
        }
    }

    #[test]
    fn an_interrupt_leaves_all_subjects_of_a_direction_the_same_rounds() {
        for stop_after in 0..40 {
            let (calls, interrupt) = (RefCell::default(), Interrupt::manual());
            let mut runs = 0;
            if stop_after == 0 {
                interrupt.set();
            }
            let results = run_rounds(&mut noted(&calls), WORK, &interrupt, || {
                runs += 1;
                if runs == stop_after {
                    interrupt.set();
                }
            });
            let results = results.unwrap();
            assert_eq!(runs, stop_after);
            for of_direction in results.chunks(3) {
                assert!(of_direction.iter().all(|r| r.mb_per_s.len() == of_direction[0].mb_per_s.len()));
            }
        }
    }
}
