//! One chunk size: interleaved rounds of all subjects.

use anyhow::Context;
use serde::Serialize;

use super::{Checked, Cost, Direction, Subject};
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

    /// Rounds of each of `num_subjects` subjects: how often `progress` of [`run_rounds`] is called.
    pub fn num_runs(&self, num_subjects: usize) -> u64 {
        (u64::from(self.rounds) + 1) * num_subjects as u64
    }
}

/// Runs the rounds of one chunk size, and returns what was measured of each subject both ways.
///
/// In a round each subject opens, writes, reads and closes, one after the other in an order of the round's own. A first
/// round takes the files' blocks into use, and counts for nothing but the bytes compared. Once `interrupt` is set, the
/// round that has begun is dropped, so that all subjects have the same rounds; there may be none.
///
/// # Errors
/// If a subject fails; the error names it.
pub fn run_rounds(
    subjects: &mut [Box<dyn Subject + '_>],
    work: Work,
    interrupt: &Interrupt,
    mut progress: impl FnMut(),
) -> anyhow::Result<Vec<NvmeCaseResult>> {
    let of = |direction| subjects.iter().map(move |s| NvmeCaseResult::empty(s.name(), direction, work));
    let mut results: Vec<_> = Direction::ALL.into_iter().flat_map(of).collect();
    for round in 0..=u64::from(work.rounds) {
        let mut order: Vec<usize> = (0..subjects.len()).collect();
        shuffle(&mut order, round);
        let mut costs = vec![[Cost::default(); 2]; subjects.len()];
        for at in order {
            if interrupt.is_set() {
                return Ok(results);
            }
            let (of_subject, checked) = run_one(&mut *subjects[at])
                .with_context(|| format!("round {round} of {}", subjects[at].name()))?;
            costs[at] = of_subject;
            let read = &mut results[subjects.len() + at];
            read.verified_bytes += checked.right_bytes;
            read.mismatches += checked.wrong_chunks;
            progress();
        }
        if round > 0 {
            let by_direction = |number: usize| costs.iter().map(move |costs| costs[number]);
            for (result, cost) in results.iter_mut().zip(by_direction(0).chain(by_direction(1))) {
                result.add(cost, work.round_bytes());
            }
        }
    }
    Ok(results)
}

/// One round of one subject: what each direction took, and what was read.
fn run_one(subject: &mut dyn Subject) -> anyhow::Result<([Cost; 2], Checked)> {
    subject.open()?;
    let mut costs = [Cost::default(); 2];
    for (cost, direction) in costs.iter_mut().zip(Direction::ALL) {
        subject.prepare(direction)?;
        *cost = subject.run(direction).with_context(|| direction.to_string())?;
    }
    let checked = subject.check()?.unwrap_or_default();
    subject.close()?;
    Ok((costs, checked))
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

    /// Takes in further rounds of the same case.
    pub(super) fn add_rounds(&mut self, more: Self) {
        self.mb_per_s.extend(more.mb_per_s);
        self.cpu_s_per_gb.extend(more.cpu_s_per_gb);
        self.device_bytes = self.device_bytes.zip(more.device_bytes).map(|(before, more)| before + more);
        self.moved_bytes += more.moved_bytes;
        self.verified_bytes += more.verified_bytes;
        self.mismatches += more.mismatches;
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
        calls: &'a Calls,
    }

    impl Subject for Noted<'_> {
        fn name(&self) -> &str {
            self.name
        }

        fn open(&mut self) -> anyhow::Result<()> {
            self.note("opens");
            Ok(())
        }

        fn prepare(&mut self, direction: Direction) -> anyhow::Result<()> {
            self.note(&format!("prepares {direction}"));
            Ok(())
        }

        fn run(&mut self, direction: Direction) -> anyhow::Result<Cost> {
            self.note(&format!("{direction}s"));
            Ok(Cost { wall: Duration::from_secs(2), cpu: Duration::from_secs(1), device: None })
        }

        fn check(&mut self) -> anyhow::Result<Option<Checked>> {
            Ok(Some(Checked { right_bytes: 3000, wrong_chunks: 1 }))
        }

        fn close(&mut self) -> anyhow::Result<()> {
            self.note("closes");
            Ok(())
        }
    }

    impl Noted<'_> {
        fn note(&self, call: &str) {
            self.calls.borrow_mut().push((self.name, call.to_owned()));
        }
    }

    type Calls = RefCell<Vec<(&'static str, String)>>;

    const WORK: Work = Work { chunk_bytes: 1000, num_chunks: 4, rounds: 6 };

    fn noted<'a>(calls: &'a Calls) -> Vec<Box<dyn Subject + 'a>> {
        ["a", "b", "c"].map(|name| Box::new(Noted { name, calls }) as Box<dyn Subject>).into()
    }

    #[test]
    fn every_subject_has_its_turn_in_every_round_in_changing_order() {
        let calls = RefCell::default();
        let mut runs = 0;
        let results = run_rounds(&mut noted(&calls), WORK, &Interrupt::manual(), || runs += 1).unwrap();
        assert_eq!(runs, WORK.num_runs(3));
        let calls = calls.borrow();
        let turns: Vec<_> = calls.chunks(6).collect();
        for turn in &turns {
            assert!(turn.iter().map(|(_, call)| call).eq(&[
                "opens",
                "prepares write",
                "writes",
                "prepares read",
                "reads",
                "closes"
            ]));
            assert!(turn.iter().all(|(name, _)| *name == turn[0].0), "{turn:?}");
        }
        let orders: Vec<Vec<_>> =
            turns.chunks(3).map(|turns| turns.iter().map(|turn| turn[0].0).collect()).collect();
        assert_eq!(orders.len(), 7);
        assert!(orders.iter().all(|order| ["a", "b", "c"].iter().all(|name| order.contains(name))));
        assert!(orders.iter().any(|order| *order != orders[0]), "{orders:?}");

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
    fn an_interrupt_leaves_all_subjects_the_same_rounds() {
        for stop_after in 0..20_usize {
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
            let rounds = (stop_after / 3).saturating_sub(1);
            assert!(results.iter().all(|result| result.mb_per_s.len() == rounds), "{stop_after}");
        }
    }
}
