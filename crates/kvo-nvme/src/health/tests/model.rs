//! The gates beside a model that remembers all that ever happened and looks through it at every question.

use std::env;

use twox_hash::XxHash3_64;

use super::*;

const NUM_EPISODES: u64 = 2000;
const STEPS: u64 = 300;

/// Numbers drawn from a seed.
struct Draw {
    seed: u64,
    drawn: u64,
}

impl Draw {
    fn below(&mut self, end: u64) -> u64 {
        self.drawn += 1;
        XxHash3_64::oneshot_with_seed(self.seed, &self.drawn.to_le_bytes()) % end
    }
}

/// A chunk that was let through and has not ended.
#[derive(Clone, Copy, Debug)]
struct Chunk {
    number: u64,
    pass: Pass,
}

/// What happened to a gate, with the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    Shut(Duration),
    Tried { by: u64 },
    Cancelled,
    Opened,
}

#[derive(Default)]
struct Model {
    breaker: Vec<Event>,
    writes: Vec<Event>,
    /// Each error that was counted while the breaker was closed: when, and how often it had been shut by then.
    errors: Vec<(Duration, usize)>,
    sync_failed: bool,
}

fn passes(gate: &[Event]) -> bool {
    matches!(gate.last(), None | Some(Event::Opened))
}

fn lets_one_through(gate: &[Event], now: Duration, pause: Duration) -> bool {
    match gate.last() {
        Some(Event::Shut(at)) => *at + pause <= now,
        Some(Event::Cancelled) => true,
        _ => false,
    }
}

fn tries(gate: &[Event], number: u64) -> bool {
    gate.last() == Some(&Event::Tried { by: number })
}

impl Model {
    fn times_shut(&self) -> usize {
        self.breaker.iter().filter(|event| matches!(event, Event::Shut(_))).count()
    }

    fn may(&self, direction: Direction, now: Duration, options: &BreakerOptions, durable: bool) -> bool {
        let breaker = passes(&self.breaker) || lets_one_through(&self.breaker, now, options.pause);
        let writes = passes(&self.writes) || lets_one_through(&self.writes, now, options.pause);
        let durable = !(durable && self.sync_failed);
        breaker && (direction == Direction::Read || writes && durable)
    }

    /// A chunk that may be moved goes; says whether it tries.
    fn go(&mut self, direction: Direction, number: u64) -> bool {
        let mut is_probe = false;
        if !passes(&self.breaker) {
            self.breaker.push(Event::Tried { by: number });
            is_probe = true;
        }
        if direction == Direction::Write && !passes(&self.writes) {
            self.writes.push(Event::Tried { by: number });
            is_probe = true;
        }
        is_probe
    }

    fn end(&mut self, number: u64, event: Event) {
        for gate in [&mut self.breaker, &mut self.writes] {
            if tries(gate, number) {
                gate.push(event);
            }
        }
    }

    fn fail(&mut self, number: Option<u64>, verdict: Verdict, now: Duration, options: &BreakerOptions) {
        self.sync_failed |= verdict.durability_lost;
        if verdict == HOST {
            if let Some(number) = number {
                self.end(number, Event::Cancelled);
            }
            return;
        }
        let tried = |gate: &[Event]| number.is_some_and(|number| tries(gate, number));
        let (tried_breaker, tried_writes) = (tried(&self.breaker), tried(&self.writes));
        let is_full = verdict.store == StoreVerdict::ReadOnly;
        if tried_breaker {
            self.breaker.push(if is_full { Event::Opened } else { Event::Shut(now) });
        } else if passes(&self.breaker) {
            let times_shut = self.times_shut();
            if verdict.store == StoreVerdict::Count {
                self.errors.push((now, times_shut));
            }
            let recent =
                self.errors.iter().filter(|(at, shut)| *shut == times_shut && now <= *at + options.window);
            let too_many = verdict.store == StoreVerdict::Count && recent.count() >= options.errors as usize;
            if too_many || verdict.store == StoreVerdict::Open {
                self.breaker.push(Event::Shut(now));
            }
        }
        if tried_writes || is_full && passes(&self.writes) {
            self.writes.push(Event::Shut(now));
        }
    }

    fn state(&self, durable: bool) -> TierState {
        match self.breaker.last() {
            Some(Event::Tried { .. }) => TierState::HalfOpen,
            Some(Event::Shut(_) | Event::Cancelled) => TierState::Open,
            _ if passes(&self.writes) && !(durable && self.sync_failed) => TierState::Up,
            _ => TierState::ReadOnly,
        }
    }

    fn count(&self, wanted: fn(&Event) -> bool) -> (u64, u64) {
        let count = |gate: &[Event]| gate.iter().filter(|event| wanted(event)).count() as u64;
        (count(&self.breaker), count(&self.writes))
    }
}

fn episode(seed: u64) {
    let draw = &mut Draw { seed, drawn: 0 };
    let options = BreakerOptions {
        errors: u32::try_from(1 + draw.below(4)).unwrap(),
        window: Duration::from_millis(draw.below(30)),
        pause: Duration::from_millis(draw.below(30)),
    };
    let durable = draw.below(4) == 0;
    let (mut health, mut model) = (Health::new(options, durable), Model::default());
    let mut under_way: Vec<Chunk> = Vec::new();
    // What the clock says, what it said at the last call, and what has gone by.
    let (mut clock, mut seen, mut gone) = (Duration::ZERO, Duration::ZERO, Duration::ZERO);
    for number in 0..STEPS {
        match draw.below(12) {
            0 => clock = clock.saturating_sub(Duration::from_millis(draw.below(20))),
            1..6 => clock += Duration::from_millis(draw.below(12)),
            _ => {}
        }
        let now = gone + clock.saturating_sub(seen);
        let direction = if draw.below(2) == 0 { Direction::Read } else { Direction::Write };
        assert_eq!(health.may(direction, clock), model.may(direction, now, &options, durable), "{number}");
        let pick =
            (!under_way.is_empty()).then(|| usize::try_from(draw.below(under_way.len() as u64)).unwrap());
        match (draw.below(10), pick) {
            (0..4, _) => {
                (seen, gone) = (clock, now);
                let expected =
                    model.may(direction, now, &options, durable).then(|| model.go(direction, number));
                let allowed = health.allow(direction, clock).ok();
                assert_eq!(allowed.map(Pass::is_probe), expected, "{number}");
                under_way.extend(allowed.map(|pass| Chunk { number, pass }));
            }
            (4..6, Some(pick)) => {
                let chunk = under_way.swap_remove(pick);
                health.on_success(chunk.pass);
                model.end(chunk.number, Event::Opened);
            }
            (6, Some(pick)) => {
                let chunk = under_way.swap_remove(pick);
                health.on_cancelled(chunk.pass);
                model.end(chunk.number, Event::Cancelled);
            }
            (_, pick) => {
                (seen, gone) = (clock, now);
                let chunk = pick.filter(|_| draw.below(4) > 0).map(|pick| under_way.swap_remove(pick));
                let verdict = draw_verdict(draw);
                health.on_error(verdict, chunk.map_or(Pass::USUAL, |chunk| chunk.pass), clock);
                model.fail(chunk.map(|chunk| chunk.number), verdict, now, &options);
            }
        }
        check(&health, &model, durable, number);
    }
}

fn draw_verdict(draw: &mut Draw) -> Verdict {
    match draw.below(40) {
        0..18 => COUNT,
        18..24 => READ_ONLY,
        24..28 => GONE,
        28..32 => HOST,
        32..39 => WRONG_BYTES,
        _ => SYNC_FAILED,
    }
}

#[track_caller]
fn check(health: &Health, model: &Model, durable: bool, number: u64) {
    assert_eq!(health.state(), model.state(durable), "{number}");
    assert_eq!(health.is_up(), health.state() == TierState::Up, "{number}");
    assert_eq!(health.durability_lost(), model.sync_failed, "{number}");
    let counts = health.counts();
    let shut = model.count(|event| matches!(event, Event::Shut(_)));
    assert_eq!((counts.opened, counts.read_only), shut, "{number}");
    assert!(health.recent.len() < health.options.errors as usize, "{number}");
}

#[test]
fn the_gates_agree_with_a_model_that_forgets_nothing() {
    if let Ok(seed) = env::var("KVO_NVME_HEALTH_SEED") {
        return episode(seed.parse().expect("a seed is a number"));
    }
    for seed in 0..NUM_EPISODES {
        let failed = std::panic::catch_unwind(|| episode(seed)).is_err();
        assert!(!failed, "episode {seed} failed: replay it with KVO_NVME_HEALTH_SEED={seed}");
    }
}
