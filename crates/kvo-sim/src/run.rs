//! One run: all that follows from a seed.

use std::{
    cell::Cell,
    collections::{BTreeMap, BTreeSet, VecDeque},
    fmt,
};

use crate::{
    canary::Plant,
    engine::Engine,
    ops::{self, Op},
    random::Random,
    setup::{Setup, Trouble},
    shrink::shrink,
    violation::{Violation, caught},
};

/// Operations that are remembered for a trace.
const TRACED: usize = 12;

/// What has happened in runs, so that it is known what they reach.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "each is named for what it counts")]
pub struct Tally {
    pub steps: u64,
    pub asked: u64,
    pub answered: u64,
    pub preempted: u64,
    pub loads: u64,
    pub loads_failed: u64,
    pub failed_partly: u64,
    pub loaded_tokens: u64,
    pub by_layer: u64,
    pub stores: u64,
    pub stores_failed: u64,
    pub late: u64,
    pub waits: u64,
    pub asked_again: u64,
    pub patience_ended: u64,
    pub promoted: u64,
    pub evicted: u64,
    pub chunks_written: u64,
    pub jobs_late: u64,
    pub further: u64,
    pub outdated: u64,
    /// Times that all slots were wiped.
    pub wiped: u64,
    /// Stores that were closed, killed, and cut off from power.
    pub ends: [u64; 3],
    pub struck: BTreeMap<Trouble, u64>,
    /// By kind of the disk's trouble.
    pub disk: BTreeMap<usize, u64>,
}

impl Tally {
    /// Adds what has happened in other runs.
    pub fn add(&mut self, other: &Self) {
        for (sum, count) in self.counts_mut().into_iter().zip(other.clone().counts_mut()) {
            *sum += *count;
        }
        for (sum, ends) in self.ends.iter_mut().zip(other.ends) {
            *sum += ends;
        }
        for (trouble, count) in &other.struck {
            *self.struck.entry(*trouble).or_default() += count;
        }
        for (kind, count) in &other.disk {
            *self.disk.entry(*kind).or_default() += count;
        }
    }

    fn counts_mut(&mut self) -> [&mut u64; 22] {
        [
            &mut self.steps,
            &mut self.asked,
            &mut self.answered,
            &mut self.preempted,
            &mut self.loads,
            &mut self.loads_failed,
            &mut self.failed_partly,
            &mut self.loaded_tokens,
            &mut self.by_layer,
            &mut self.stores,
            &mut self.stores_failed,
            &mut self.late,
            &mut self.waits,
            &mut self.asked_again,
            &mut self.patience_ended,
            &mut self.promoted,
            &mut self.evicted,
            &mut self.chunks_written,
            &mut self.jobs_late,
            &mut self.further,
            &mut self.outdated,
            &mut self.wiped,
        ]
    }
}

/// A run that can be run again, whole or in part.
#[derive(Clone)]
pub struct Run {
    seed: u64,
    setup: Setup,
    ops: Vec<Op>,
    off: BTreeSet<Trouble>,
    plant: Option<Plant>,
}

/// A run that has failed.
#[derive(Clone, Debug)]
pub struct Failure {
    /// What it has violated.
    pub violation: Violation,
    /// After so many of its operations; all of them, if at its end.
    pub at: usize,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "after {} operations: {}", self.at, self.violation)
    }
}

impl Run {
    /// What follows from a seed, with a defect or none.
    pub fn new(seed: u64, plant: Option<Plant>) -> Self {
        let mut random = Random::new(seed);
        let setup = Setup::draw(&mut random);
        let ops = ops::draw(&setup.rates, &mut random);
        Self { seed, setup, ops, off: BTreeSet::new(), plant }
    }

    /// What a fuzzer's input says: first what is drawn of a seed, with a choice a byte, then operations.
    pub fn of_input(input: &[u8]) -> Self {
        let mut random = Random::of_input(input);
        let setup = Setup::draw(&mut random);
        let ops = ops::of_input(&setup.rates, &mut random);
        Self { seed: 1, setup, ops, off: BTreeSet::new(), plant: None }
    }

    /// The same without a kind of trouble.
    #[must_use]
    pub fn without(mut self, trouble: Trouble) -> Self {
        self.setup.switch_off(trouble);
        self.ops.retain(|op| op.what != ops::What::Trouble(trouble));
        self.off.insert(trouble);
        self
    }

    /// Kinds of trouble that may happen in it.
    pub fn troubles(&self) -> Vec<Trouble> {
        Trouble::ALL.into_iter().filter(|trouble| self.setup.rates.of(*trouble) > 0).collect()
    }

    /// Its operations.
    pub fn num_ops(&self) -> usize {
        self.ops.len()
    }

    /// The same with those of its operations for which `stays` says so.
    #[must_use]
    pub(crate) fn with_ops(&self, mut stays: impl FnMut(usize) -> bool) -> Self {
        let mut nth = 0;
        let mut run = self.clone();
        run.ops.retain(|_| {
            nth += 1;
            stays(nth - 1)
        });
        run
    }

    /// Runs it.
    ///
    /// # Errors
    /// The first violation.
    pub fn run(&self) -> Result<Tally, Failure> {
        self.run_with(&mut |_, _, _| {}, false)
    }

    /// Runs it, and says what its last operations have done.
    pub fn trace(&self) -> Vec<String> {
        let mut lines = VecDeque::new();
        let mut keep = |at: usize, op: Option<&Op>, notes: Vec<String>| {
            if lines.len() == TRACED {
                lines.pop_front();
            }
            let first = notes.len().saturating_sub(TRACED);
            let notes: Vec<String> = notes[first..].iter().map(|note| format!("\n      {note}")).collect();
            let what =
                op.map_or("the end, in which nothing goes wrong".to_owned(), |op| format!("{:?}", op.what));
            lines.push_back(format!("  {at:>4} {what}{}", notes.concat()));
        };
        let _ = self.run_with(&mut keep, true);
        lines.into()
    }

    fn run_with(&self, after: &mut AfterOp<'_>, traced: bool) -> Result<Tally, Failure> {
        let at = Cell::new(0);
        let mut random = Random::new(self.seed ^ 0x5eed);
        let result = caught(|| {
            let mut engine = Engine::new(&self.setup, self.seed, self.plant);
            engine.notes = traced.then(Vec::new);
            let mut trail = Trail { engine, last: None, after };
            for (nth, op) in self.ops.iter().enumerate() {
                at.set(nth);
                trail.last = Some((nth, Some(*op)));
                trail.engine.apply(op);
                trail.tell();
            }
            at.set(self.ops.len());
            trail.last = Some((self.ops.len(), None));
            trail.engine.end(&mut random);
            std::mem::take(&mut trail.engine.tally)
        });
        result.map_err(|violation| Failure { violation, at: at.get() })
    }
}

/// Runs what a fuzzer's input says.
///
/// # Panics
/// If it finds what must not be.
pub fn fuzzed(input: &[u8]) {
    let run = Run::of_input(input);
    if let Err(failure) = run.run() {
        let (small, failure) = shrink(&run, &failure);
        panic!("{failure}\n{small}\n{}", small.trace().join("\n"));
    }
}

/// Is told of an operation, or of the end: which it was, and what has happened in it.
type AfterOp<'a> = dyn FnMut(usize, Option<&Op>, Vec<String>) + 'a;

/// Tells of each operation, also of one that does not come to an end.
struct Trail<'a> {
    engine: Engine,
    /// None at the end.
    last: Option<(usize, Option<Op>)>,
    after: &'a mut AfterOp<'a>,
}

impl Trail<'_> {
    fn tell(&mut self) {
        if let Some((at, op)) = self.last.take() {
            let notes = self.engine.notes.as_mut().map(std::mem::take).unwrap_or_default();
            (self.after)(at, op.as_ref(), notes);
        }
    }
}

impl Drop for Trail<'_> {
    fn drop(&mut self) {
        self.tell();
    }
}

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, setup, ops, off, plant } = self;
        write!(f, "seed {seed}, {} operations", ops.len())?;
        if !off.is_empty() {
            write!(f, ", without {off:?}")?;
        }
        if let Some(plant) = plant {
            write!(f, ", with {plant:?}")?;
        }
        write!(f, "\n  troubles: {:?}\n  {setup:?}", self.troubles())
    }
}

impl fmt::Debug for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
