//! What a run does, one operation after the other. They are drawn before it begins, and each brings its own random
//! numbers, so that a run is still a run with some of them left out.

use crate::{
    random::Random,
    setup::{Rates, Trouble},
};

/// What an operation does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// A request comes.
    Arrive,
    /// The engine takes a step.
    Step,
    /// The devices get on with it.
    Devices,
    /// The tiers do.
    Tiers,
    /// Some milliseconds pass.
    Pass,
    /// Something goes wrong.
    Trouble(Trouble),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Op {
    pub(crate) what: What,
    pub(crate) seed: u64,
}

/// Trouble that is an operation of its own.
const OPERATIONS: [Trouble; 16] = [
    Trouble::Abort,
    Trouble::Preempt,
    Trouble::Reset,
    Trouble::Weights,
    Trouble::Wipe,
    Trouble::ShutDown,
    Trouble::Crash,
    Trouble::DeviceDies,
    Trouble::SlotSpoilt,
    Trouble::WorkerSilent,
    Trouble::Jump,
    Trouble::Standstill,
    Trouble::Misuse,
    Trouble::TierDead,
    Trouble::TierLost,
    Trouble::Disk,
];

/// The operations of a run. Their weights are the seed's own, too.
pub(crate) fn draw(rates: &Rates, random: &mut Random) -> Vec<Op> {
    let weights = [
        (What::Arrive, random.pick(&[1, 2, 4])),
        (What::Step, random.pick(&[3, 6, 10])),
        (What::Devices, random.pick(&[1, 3, 6])),
        (What::Tiers, random.pick(&[1, 3, 6])),
        (What::Pass, random.pick(&[0, 0, 1])),
    ];
    let sum: u64 = weights.iter().map(|(_, weight)| weight).sum();
    let num = 120 + random.index(240);
    let draw = |_| {
        let strikes = |trouble: &Trouble, random: &mut Random| random.one_in(8 * rates.of(*trouble));
        let trouble = OPERATIONS.iter().find(|trouble| strikes(trouble, random));
        let mut at = random.below(sum);
        let of = |(_, weight): &&(What, u64)| {
            let is_it = at < *weight;
            at = at.wrapping_sub(*weight);
            is_it
        };
        let usual = weights.iter().find(of).map_or(What::Step, |(what, _)| *what);
        let what = trouble.map_or(usual, |trouble| What::Trouble(*trouble));
        Op { what, seed: random.next() }
    };
    (0..num).map(draw).collect()
}

/// What usually happens.
const USUAL: [What; 16] = [
    What::Arrive,
    What::Arrive,
    What::Arrive,
    What::Step,
    What::Step,
    What::Step,
    What::Step,
    What::Step,
    What::Step,
    What::Devices,
    What::Devices,
    What::Devices,
    What::Tiers,
    What::Tiers,
    What::Tiers,
    What::Pass,
];

/// The operations of a fuzzer's input, two bytes each, up to its end.
pub(crate) fn of_input(rates: &Rates, random: &mut Random) -> Vec<Op> {
    let troubles = OPERATIONS.iter().filter(|trouble| rates.of(**trouble) > 0);
    let all: Vec<What> = USUAL.into_iter().chain(troubles.map(|trouble| What::Trouble(*trouble))).collect();
    std::iter::from_fn(|| {
        let is_more = random.has_input();
        is_more.then(|| Op { what: random.pick(&all), seed: random.next() })
    })
    .collect()
}
