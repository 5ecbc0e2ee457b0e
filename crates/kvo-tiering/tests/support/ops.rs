//! What the model test does to a manager: operations, and how often each.

use kvo_core::OffloadKey;

use super::{key_of, seeded::Rng};

/// Requests that run side by side.
pub const NUM_REQUESTS: usize = 4;
const OPS_A_RUN: usize = 250;
const NUM_HASHES: u64 = 9;

/// What an engine does, and what happens in the tiers. Jobs are named by their place among the open ones, round and
/// round.
#[derive(Clone, Debug)]
pub enum Op {
    /// Finishes the request that has the place, if it runs.
    NewRequest {
        req: usize,
        filter: u64,
    },
    SetPositions {
        req: usize,
        positions: Vec<(OffloadKey, u32)>,
    },
    Lookup {
        req: usize,
        key: OffloadKey,
    },
    PrepareLoad {
        req: usize,
        keys: Vec<OffloadKey>,
    },
    /// Loads those of the keys that are ready.
    LoadReady {
        req: usize,
        keys: Vec<OffloadKey>,
    },
    PrepareStore {
        req: usize,
        keys: Vec<OffloadKey>,
    },
    Complete {
        job: usize,
        done: bool,
    },
    Touch {
        keys: Vec<OffloadKey>,
    },
    Finish {
        req: usize,
    },
    ScheduleEnd,
    TakeEvents,
    Advance {
        ms: u64,
    },
    Reset,
    ResetFlushed,
    /// A tier ends a job; a slow tier only if it is pressed.
    TierJobDone {
        job: usize,
        how: How,
        pressed: bool,
    },
    /// A tier reports a job that it does not have: one it never had, has reported before, or another tier has.
    StrayReport {
        tier: usize,
        job: u64,
    },
    /// A tier lets go of a slot that it holds.
    Release {
        held: usize,
    },
    /// A tier releases a slot that it does not hold.
    StrayRelease {
        pick: usize,
        stray: Stray,
    },
    TierRefuses {
        tier: usize,
        reads: bool,
        writes: bool,
    },
    TierFinds {
        tier: usize,
        key: OffloadKey,
    },
    TierLoses {
        tier: usize,
        key: OffloadKey,
    },
}

#[derive(Clone, Copy, Debug)]
pub enum How {
    Done,
    /// The keys whose bit is set did not arrive.
    Partial(u8),
    /// As `Partial`, and a key that is not of the job.
    Strange(u8),
    Failed,
    /// The chunks whose bit is set, or the first, are late: they did not arrive, and their slots are held.
    Late(u8, Late),
}

/// How a report says that chunks are late.
#[derive(Clone, Copy, Debug)]
pub enum Late {
    /// It names them as failed.
    Named,
    /// It fails the whole job.
    AsAWhole,
    /// It names each slot twice.
    Twice,
    /// It does not name them as failed.
    Unnamed,
    /// It names another slot too, that the job does not have.
    WithAnother,
}

/// Which slot a tier releases that it does not hold.
#[derive(Clone, Copy, Debug)]
pub enum Stray {
    /// One of a job that was never submitted.
    OfNoJob,
    /// One of a job that it has not reported.
    OfAnOpenJob,
    /// One that it has released before.
    Again,
    /// One that another tier holds.
    OfAnother,
}

pub fn all_keys() -> impl Iterator<Item = OffloadKey> {
    (0..NUM_HASHES).flat_map(|n| (0..2).map(move |group| key_of(n, group)))
}

pub fn generate(rng: &mut Rng) -> Vec<Op> {
    (0..OPS_A_RUN).map(|_| one_op(rng)).collect()
}

pub fn one_op(rng: &mut Rng) -> Op {
    let some_key = |rng: &mut Rng| key_of(rng.below(NUM_HASHES), u32::from(rng.chance(15)));
    let some_keys = |rng: &mut Rng| (0..rng.below(5)).map(|_| some_key(rng)).collect::<Vec<_>>();
    let (req, tier) = (rng.index(NUM_REQUESTS), rng.index(3));
    match rng.below(105) {
        0..7 => Op::NewRequest { req, filter: rng.below(20) },
        7..10 => {
            let position = |key: &OffloadKey| 16 * u32::from(key.hash().0[31]);
            Op::SetPositions { req, positions: some_keys(rng).iter().map(|k| (*k, position(k))).collect() }
        }
        // Some keys often, so that what a tier is still looking for is asked for again.
        10..31 if rng.chance(40) => Op::Lookup { req, key: key_of(rng.below(3), 0) },
        10..31 => Op::Lookup { req, key: some_key(rng) },
        31 => Op::PrepareLoad { req, keys: some_keys(rng) },
        32..38 => Op::LoadReady { req, keys: some_keys(rng) },
        38..49 => Op::PrepareStore { req, keys: some_keys(rng) },
        49..61 => Op::Complete { job: rng.index(64), done: rng.chance(85) },
        61 => Op::Touch { keys: some_keys(rng) },
        62..64 => Op::Finish { req },
        64..72 => Op::ScheduleEnd,
        72 => Op::TakeEvents,
        73 => Op::Advance { ms: rng.below(50) },
        74 if rng.chance(50) => Op::Reset,
        74..79 => Op::ResetFlushed,
        79..92 => {
            let mask = u8::try_from(rng.below(256)).unwrap();
            let how = match rng.below(12) {
                0..4 => How::Done,
                4..6 => How::Partial(mask),
                6..8 => How::Failed,
                8..10 => How::Late(mask, rng.pick(&[Late::Named, Late::AsAWhole, Late::Twice])),
                10 if rng.chance(30) => How::Late(mask, rng.pick(&[Late::Unnamed, Late::WithAnother])),
                _ if rng.chance(20) => How::Strange(mask),
                _ => How::Done,
            };
            Op::TierJobDone { job: rng.index(64), how, pressed: rng.chance(10) }
        }
        92 => Op::StrayReport { tier, job: rng.below(1_000) },
        93 => Op::TierRefuses { tier, reads: rng.chance(20), writes: rng.chance(20) },
        94..99 => Op::TierFinds { tier, key: some_key(rng) },
        99 => Op::TierLoses { tier, key: some_key(rng) },
        100..104 => Op::Release { held: rng.index(64) },
        _ => {
            let all = [Stray::OfNoJob, Stray::OfAnOpenJob, Stray::Again, Stray::OfAnother];
            Op::StrayRelease { pick: rng.index(64), stray: rng.pick(&all) }
        }
    }
}
