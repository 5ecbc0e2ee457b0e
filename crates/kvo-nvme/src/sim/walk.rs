//! Random walks: what a caller, a disk and a clock do, drawn from one seed, and checked after every step.

use std::{collections::VecDeque, time::Duration};

use kvo_policies::{GhostHits, PolicyKind, S3FifoOptions};

use super::{LivesTally, Sim, fish::is_expected};
use crate::{
    Admission, AdmissionRule, BreakerOptions, NvmeOptions,
    testing::{End, Faults, Kind, Plant, Rng, lock},
};

const STEPS: u64 = 320;
const STEPS_REMEMBERED: usize = 16;

/// One step. Which transfer a number means is decided modulo what there is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Announce(u64),
    Finish(u64),
    Write {
        req: u64,
        ns: Vec<u64>,
        positions: bool,
    },
    Read {
        req: u64,
        ns: Vec<u64>,
        positions: bool,
    },
    WriteDirectly(u64),
    ReadDirectly(u64),
    Lookup(u64),
    Poll,
    Begin(usize),
    End(usize),
    /// The journal does the next thing.
    Record,
    Pass(Duration),
    /// The store ends, and is opened again, durable from then on or not.
    BeginAnew {
        end: End,
        durable: bool,
    },
    /// A bit changes where it lies.
    Decay {
        of: Decaying,
        nth: u64,
        bit: u64,
    },
}

/// What a bit is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Decaying {
    Chunk,
    Record,
    Superblock,
}

impl Decaying {
    fn draw(rng: &mut Rng) -> Step {
        let of = rng.pick(&[Self::Chunk, Self::Chunk, Self::Chunk, Self::Record, Self::Superblock]);
        Step::Decay { of, nth: rng.next(), bit: rng.next() }
    }
}

/// How a seed walks: how often it does what, with how many chunks.
struct Gait {
    num_keys: u64,
    num_requests: u64,
    job_chunks_max: u64,
    /// Weights of a caller's jobs, of other calls, and of the disk's work.
    jobs: u64,
    calls: u64,
    work: u64,
    direct: u64,
    /// Once in so many times, the clock jumps, and the store ends.
    jump: u64,
    end: u64,
    /// Of the stores, so many quarters are durable.
    durable_quarters: u64,
}

impl Gait {
    fn draw(rng: &mut Rng, capacity: u32) -> Self {
        Self {
            num_keys: 1 + rng.below(3 * u64::from(capacity) + 4),
            num_requests: 1 + rng.below(5),
            job_chunks_max: rng.pick(&[1, 3, 6, 6, 10]),
            jobs: rng.pick(&[2, 4, 8]),
            calls: 3,
            work: rng.pick(&[4, 8, 16, 24]),
            direct: rng.pick(&[0, 0, 1]),
            jump: rng.pick(&[0, 0, 60, 200]),
            end: rng.pick(&[0, 20, 80, 80, 160]),
            durable_quarters: rng.pick(&[0, 0, 2, 4]),
        }
    }

    fn step(&self, rng: &mut Rng) -> Step {
        if rng.one_in(self.end) {
            let end = rng.pick(&[End::Closed, End::Killed, End::PowerLost]);
            return Step::BeginAnew { end, durable: rng.below(4) < self.durable_quarters };
        }
        if rng.one_in(self.jump) {
            return Step::Pass(Duration::from_secs(rng.below(60)));
        }
        let req = rng.below(self.num_requests);
        let n = rng.below(self.num_keys);
        let mut at = rng.below(self.jobs + self.calls + self.work + self.direct);
        if at < self.jobs {
            let (ns, positions) = (self.draw_ns(rng), rng.one_in(2));
            return match rng.below(5) {
                0..3 => Step::Write { req, ns, positions },
                _ => Step::Read { req, ns, positions },
            };
        }
        at -= self.jobs;
        if at < self.calls {
            return match rng.below(9) {
                8 => Step::Pass(Duration::from_millis(rng.below(300))),
                0 => Step::Announce(req),
                1 => Step::Finish(req),
                2 => Step::Lookup(n),
                _ => Step::Poll,
            };
        }
        at -= self.calls;
        if at < self.work {
            let place = rng.index(1 << 20);
            return match rng.below(5) {
                0..2 => Step::Begin(place),
                2..4 => Step::End(place),
                _ => Step::Record,
            };
        }
        if rng.one_in(2) { Step::WriteDirectly(n) } else { Step::ReadDirectly(n) }
    }

    /// Mostly a run of neighbours, as a prefix is; sometimes anything, with repeats.
    fn draw_ns(&self, rng: &mut Rng) -> Vec<u64> {
        let count = 1 + rng.below(self.job_chunks_max);
        let first = rng.below(self.num_keys);
        let scattered = rng.one_in(4);
        let n =
            |i, rng: &mut Rng| if scattered { rng.below(self.num_keys) } else { (first + i) % self.num_keys };
        (0..count).map(|i| n(i, rng)).collect()
    }
}

/// What a walk has come by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    pub(super) steps: u64,
    pub(super) jobs: u64,
    pub(super) reads_compared: u64,
    pub(super) lives: LivesTally,
    pub(super) struck: [u64; Kind::ALL.len()],
}

impl Tally {
    pub(super) fn add(&mut self, other: &Self) {
        self.steps += other.steps;
        self.jobs += other.jobs;
        self.reads_compared += other.reads_compared;
        self.lives.add(&other.lives);
        for (sum, struck) in self.struck.iter_mut().zip(other.struck) {
            *sum += struck;
        }
    }
}

/// Says how to replay a walk that fails, and where it was.
struct Trail {
    seed: u64,
    at: u64,
    steps: VecDeque<Step>,
}

impl Drop for Trail {
    fn drop(&mut self) {
        if std::thread::panicking() && !is_expected() {
            let Self { seed, at, steps } = self;
            eprintln!("the last steps, up to step {at}: {steps:?}");
            eprintln!(
                "replay with KVO_NVME_SIM_SEED={seed} cargo test -p kvo-nvme --lib sim::walks -- --nocapture"
            );
        }
    }
}

fn draw_policy(rng: &mut Rng) -> PolicyKind {
    match rng.below(8) {
        0..2 => PolicyKind::Lru,
        2 => PolicyKind::Arc(GhostHits::T1),
        3 => PolicyKind::Slru { protected_pct: 20 },
        4 => PolicyKind::Aslru,
        5 => PolicyKind::S3Fifo(S3FifoOptions::default()),
        6 => PolicyKind::Fifo,
        _ => PolicyKind::Ylru,
    }
}

/// Mostly everything is let in: a store that holds nothing shows little.
fn draw_admission(rng: &mut Rng) -> Admission {
    let rule = if rng.one_in(8) {
        AdmissionRule::SecondOffer { keys_max: rng.pick(&[4, 64]) }
    } else {
        AdmissionRule::Always
    };
    Admission {
        rule,
        bytes_per_day_max: rng.one_in(12).then_some(1 << 30),
        skip_while_reads_wait: rng.one_in(8),
    }
}

fn draw_options(rng: &mut Rng) -> NvmeOptions {
    let num_devices = rng.pick(&[1, 1, 1, 2, 3]);
    let capacity = u32::try_from(num_devices + rng.below(40)).expect("small").min(40);
    let chunk_bytes = rng.pick(&[512, 1000, 1024, 1536, 2048, 3072]);
    let dirs = (0..num_devices).map(|device| format!("device-{device}").into()).collect();
    NvmeOptions {
        dirs,
        policy: draw_policy(rng),
        queue_chunks_max: 1 + rng.index(40),
        deadline: Duration::from_secs(rng.pick(&[1, 30])),
        breaker: BreakerOptions { errors: rng.pick(&[2, 8, 8, 1000]), ..BreakerOptions::default() },
        admission: draw_admission(rng),
        record_events: true,
        ..NvmeOptions::new("unused", capacity, chunk_bytes)
    }
}

/// Walks from `seed` until everything has ended.
pub(super) fn walk(seed: u64, plant: Option<Plant>) -> Tally {
    let mut rng = Rng::new(seed);
    let mut trail = Trail { seed, at: 0, steps: VecDeque::with_capacity(STEPS_REMEMBERED) };
    let options = draw_options(&mut rng);
    let gait = Gait::draw(&mut rng, options.capacity_chunks);
    let options = NvmeOptions { durable: rng.below(4) < gait.durable_quarters, ..options };
    let faults = Faults::draw(&mut rng);
    let mut sim = Sim::new(options, faults, rng.split(), plant);
    for at in 0..STEPS {
        let mut step = gait.step(&mut rng);
        if lock(&sim.disk).strikes(Kind::Decay) {
            step = Decaying::draw(&mut rng);
        }
        trail.at = at;
        if trail.steps.len() == STEPS_REMEMBERED {
            trail.steps.pop_front();
        }
        trail.steps.push_back(step.clone());
        sim.apply(&step);
    }
    sim.settle();
    Tally {
        steps: STEPS,
        jobs: sim.book.jobs_reported,
        reads_compared: sim.book.chunks_arrived,
        lives: sim.lives,
        struck: lock(&sim.disk).faults.struck(),
    }
}
