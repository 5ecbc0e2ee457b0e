//! Jobs without a clock: to count what they do, and to see that they do it right.

use std::io::{self, Write};

use clap::{Args, ValueEnum};
use kvo_core::OffloadKey;

use super::{CHAIN, Job, MicroError, Size, Suite, ThreadTime, chains, fold_victim};
use crate::Interrupt;

/// Chains that are made at a time.
const CHAINS: usize = 16;

/// What a run without a clock is to be.
#[derive(Clone, Debug, Args)]
pub struct UntimedOptions {
    /// Measure no time, and print how many chunks each job ran over. What would be timed is done by a function
    /// `kvo_bench::micro::clock::counted`, for a profiler to count: `cargo xtask counts`
    #[arg(long)]
    pub untimed: bool,
    /// With --untimed: what to run
    #[arg(long, value_enum, value_name = "NAME", default_value = "kvo", requires = "untimed")]
    pub subject: Untimed,
    /// With --untimed: check after the stores that the oldest chains were evicted, each tail first, that all others are
    /// there, and that nothing is in flight
    #[arg(long, requires = "untimed")]
    pub check: bool,
}

/// What can be run without a clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Untimed {
    /// The CPU tier's manager, once with each policy
    Kvo,
    /// The bare memory accesses
    Floor,
}

impl Suite {
    /// Runs all jobs without a clock; returns the chunks that each has run over, untimed parts included. Stops between
    /// rounds if it is interrupted. With `check` the stores are checked as [`UntimedOptions::check`] says.
    ///
    /// # Errors
    /// If a subject fails, or the check does.
    pub fn run_untimed(mut self, check: bool, interrupt: &Interrupt) -> Result<Vec<(Job, u64)>, MicroError> {
        ThreadTime::count();
        let mut done = Vec::new();
        let mut checked = !check;
        for (job, num_rounds) in self.jobs.clone() {
            if !self.subjects.iter().any(|subject| subject.has(job)) {
                continue;
            }
            if !checked && !job.takes_fresh() {
                self.check()?;
                checked = true;
            }
            let mut sink = vec![Vec::new(); self.subjects.len()];
            for _ in (0..num_rounds).take_while(|_| !interrupt.is_set()) {
                self.round(job, &mut sink)?;
            }
            let (warm_up, timed) = self.chains_of_round(job);
            done.push((job, ((warm_up + timed) * CHAIN * num_rounds) as u64));
        }
        if !checked && !interrupt.is_set() {
            self.check()?;
        }
        Ok(done)
    }

    /// Of chains that came once each, any policy here evicts the oldest first, and of each the tail.
    fn check(&mut self) -> Result<(), MicroError> {
        let oldest = self.stored - self.resident;
        let evicted = (0..oldest).flat_map(|chain| chains([chain]).into_iter().rev());
        let expected = evicted.fold(0, |victims, key: OffloadKey| fold_victim(victims, &key));
        let there: Vec<u64> = (oldest..self.stored).collect();
        for subject in &mut self.subjects {
            let Some(victims) = subject.victims() else { continue };
            subject.check_at_rest()?;
            if victims != expected {
                let what = format!(
                    "the hash of the victims is {victims:016x}, and {expected:016x} if the {oldest} oldest chains went"
                );
                return Err(MicroError::Unexpected { subject: subject.name().to_owned(), what });
            }
            for part in there.chunks(CHAINS) {
                subject.run(Job::Lookup, &chains(part.iter().copied()), &mut self.sweep)?;
            }
        }
        Ok(())
    }
}

/// Prints the chunks that each job has run over, a line each.
///
/// # Errors
/// If `out` cannot be written.
pub fn print_chunks(out: &mut impl Write, size: Size, subject: &str, done: &[(Job, u64)]) -> io::Result<()> {
    done.iter().try_for_each(|(job, chunks)| writeln!(out, "{size}: {job}: {subject}: {chunks} chunks"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::micro::{MicroOptions, Sample, Subject, Sweep};

    /// Evicts nothing, says that it did, and has what it is said to have.
    struct Nothing {
        victims: u64,
        num_lost: usize,
    }

    impl Subject for Nothing {
        fn name(&self) -> &'static str {
            "nothing"
        }

        fn has(&self, _: Job) -> bool {
            true
        }

        fn scatter(&mut self) -> Result<(), MicroError> {
            Ok(())
        }

        fn run(&mut self, job: Job, keys: &[OffloadKey], _: &mut Sweep) -> Result<Sample, MicroError> {
            if job == Job::Lookup && self.num_lost > 0 {
                let what = "a chain is lost".to_owned();
                return Err(MicroError::Unexpected { subject: self.name().to_owned(), what });
            }
            Ok(Sample::new(0, keys.len()))
        }

        fn victims(&self) -> Option<u64> {
            Some(self.victims)
        }
    }

    fn checked(victims: u64, num_lost: usize) -> Result<Vec<(Job, u64)>, MicroError> {
        let size: Size = "4096".parse().unwrap();
        let options = MicroOptions {
            sizes: vec![size],
            policy: vec![],
            jobs: vec![Job::Cycle32, Job::Lookup],
            rounds: Some(1),
            smoke: true,
            quick: false,
            full: false,
            only_bytes: false,
        };
        let interrupt = Interrupt::default();
        let subject = Box::new(Nothing { victims, num_lost });
        Suite::new(size, &options, vec![subject], &interrupt)?.run_untimed(true, &interrupt)
    }

    #[test]
    fn a_check_sees_another_order_and_a_chain_that_is_lost() {
        // 16 chains to fill the tier, 16 to turn it over, and a round of 12; the first 28 have gone.
        let evicted = (0..28).flat_map(|chain| chains([chain]).into_iter().rev());
        let expected = evicted.fold(0, |victims, key| fold_victim(victims, &key));
        assert_eq!(checked(expected, 0).unwrap(), [(Job::Cycle32, 3072), (Job::Lookup, 3072)]);
        assert!(checked(expected ^ 1, 0).unwrap_err().to_string().contains("the 28 oldest chains went"));
        assert!(checked(expected, 1).unwrap_err().to_string().contains("a chain is lost"));
    }
}
