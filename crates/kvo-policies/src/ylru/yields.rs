//! What room in the tier has earned, by class and age.

/// Classes of chunks: how often a request met a chunk again, the last for three times and more.
pub(super) const CLASSES: usize = 4;

/// Ages by their octave: 0, 1, 2 to 3, 4 to 7, and so on.
const AGES: usize = 65;
/// Chunks committed from one reckoning to the next: a share of the capacity, but not too few.
const ROUND_SHARE: u32 = 8;
const ROUND_MIN: u64 = 256;
/// Reckonings from one halving of the counts to the next.
const ROUNDS_TO_HALVING: u32 = 256;
/// What is assumed before there is evidence: as many chunks of each class as half the capacity, of which this share
/// was met again, as often in every octave from a 32nd of the capacity to 16 times.
const ASSUMED: f64 = 0.5;
const ASSUMED_MET: [f64; CLASSES] = [0.1, 0.5, 0.5, 0.5];
const ASSUMED_AGES: [f64; 2] = [1.0 / 32.0, 16.0];
/// What chunks that were met again are taken to be worth beyond what the evidence says.
const BENEFIT: f64 = 1.5;

/// Of each class and age, the hits to be had from a chunk for each step that it stays.
///
/// The evidence is what became of chunks: *met* again at some age, or *gone*, when a key was forgotten unmet. From it
/// follow, for a chunk that is kept from age 0 up to some age, how likely it is to be met, and how long it takes room.
/// The yield at an age is the slope there of the least concave curve above these points (room, hits): the best average
/// that staying on from there can earn, and never more than at a lower age.
#[derive(Debug)]
pub(super) struct Yields {
    capacity: f64,
    evidence: [Evidence; CLASSES],
    table: [[f64; AGES]; CLASSES],
    round: u64,
    left_of_round: u64,
    rounds_to_halving: u32,
}

#[derive(Clone, Copy, Debug)]
struct Evidence {
    met: [f64; AGES],
    /// The ages of those together.
    met_ages: [f64; AGES],
    gone: [f64; AGES],
}

/// A point of the curve, and the octave of ages at whose end it stands.
#[derive(Clone, Copy, Debug, Default)]
struct Point {
    room: f64,
    hits: f64,
    octave: usize,
}

fn octave(age: u64) -> usize {
    (u64::BITS - age.leading_zeros()) as usize
}

/// The first age that is beyond an octave.
fn end(octave: usize) -> f64 {
    (1_u128 << octave) as f64
}

impl Yields {
    pub(super) fn new(capacity: u32) -> Self {
        let round = u64::from(capacity / ROUND_SHARE).max(ROUND_MIN);
        let mut yields = Self {
            capacity: f64::from(capacity),
            evidence: [Evidence::NONE; CLASSES],
            table: [[0.0; AGES]; CLASSES],
            round,
            // The first round is none: there is evidence with the first commit.
            left_of_round: 0,
            rounds_to_halving: ROUNDS_TO_HALVING,
        };
        yields.reckon();
        yields
    }

    /// The yield of a chunk. No less in a higher class, no more at a higher age.
    pub(super) fn of(&self, class: usize, age: u64) -> f64 {
        self.table[class][octave(age)]
    }

    /// A chunk that was last met in `class` was met again.
    pub(super) fn met(&mut self, class: usize, age: u64) {
        let evidence = &mut self.evidence[class];
        evidence.met[octave(age)] += 1.0;
        evidence.met_ages[octave(age)] += age as f64;
    }

    /// A chunk that was last met in `class` is forgotten.
    pub(super) fn gone(&mut self, class: usize, age: u64) {
        self.evidence[class].gone[octave(age)] += 1.0;
    }

    /// So many chunks were committed: from time to time, the yields are reckoned anew.
    pub(super) fn advance(&mut self, num_chunks: u64) {
        self.left_of_round = self.left_of_round.saturating_sub(num_chunks);
        if self.left_of_round == 0 && num_chunks > 0 {
            self.left_of_round = self.round;
            self.rounds_to_halving -= 1;
            if self.rounds_to_halving == 0 {
                self.rounds_to_halving = ROUNDS_TO_HALVING;
                self.evidence.iter_mut().for_each(Evidence::halve);
            }
            self.reckon();
        }
    }

    fn reckon(&mut self) {
        let mut floor = [0.0; AGES];
        for (class, evidence) in self.evidence.iter().enumerate() {
            let slopes = evidence.with_assumed(self.capacity, ASSUMED_MET[class]);
            floor = std::array::from_fn(|octave| f64::max(slopes[octave], floor[octave]));
            let benefit = if class > 0 { BENEFIT } else { 1.0 };
            self.table[class] = floor.map(|slope| slope * benefit);
        }
    }
}

impl Evidence {
    const NONE: Self = Self { met: [0.0; AGES], met_ages: [0.0; AGES], gone: [0.0; AGES] };

    fn halve(&mut self) {
        for count in self.met.iter_mut().chain(&mut self.met_ages).chain(&mut self.gone) {
            *count *= 0.5;
        }
    }

    /// The slopes, with what is assumed for a tier of `capacity` chunks and a class of which `share` is met again.
    fn with_assumed(&self, capacity: f64, share: f64) -> [f64; AGES] {
        let mut all = *self;
        // Both are from 1 to 2^36.
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "see above")]
        let [first, last] = ASSUMED_AGES.map(|of_capacity| octave((capacity * of_capacity).max(1.0) as u64));
        let each = ASSUMED * capacity * share / (last - first + 1) as f64;
        for octave in first..=last {
            all.met[octave] += each;
            // The middle of the octave.
            all.met_ages[octave] += each * 0.75 * end(octave);
        }
        all.slopes(ASSUMED * capacity * (1.0 - share))
    }

    /// The slopes of the least concave curve, where `never` chunks are met at no age.
    fn slopes(&self, never: f64) -> [f64; AGES] {
        // Chunks that are neither met nor gone before the octave, and the share of all that would still be unmet.
        let mut left = self.met.iter().sum::<f64>() + self.gone.iter().sum::<f64>() + never;
        let (mut unmet, mut hits, mut room) = (1.0, 0.0, 0.0);
        let mut curve = Curve::default();
        for octave in 0..AGES {
            let met = self.met[octave];
            if met > 0.0 {
                let hit = unmet * (met / left).min(1.0);
                unmet -= hit;
                hits += hit;
                room += hit * self.met_ages[octave] / met;
                curve.add(Point { room: room + unmet * end(octave), hits, octave });
            }
            left = (left - met - self.gone[octave]).max(0.0);
        }
        curve.slopes()
    }
}

/// Points of a concave curve that begins at no room and no hits.
#[derive(Debug)]
struct Curve {
    points: [Point; AGES],
    len: usize,
}

impl Default for Curve {
    fn default() -> Self {
        Self { points: [Point::default(); AGES], len: 0 }
    }
}

impl Curve {
    /// Adds the next point, and takes out those that are under the line to it.
    fn add(&mut self, next: Point) {
        while self.len > 0 {
            let last = self.points[self.len - 1];
            let before = if self.len > 1 { self.points[self.len - 2] } else { Point::default() };
            let (rise, run) = (last.hits - before.hits, last.room - before.room);
            if rise * (next.room - last.room) > (next.hits - last.hits) * run {
                break;
            }
            self.len -= 1;
        }
        self.points[self.len] = next;
        self.len += 1;
    }

    /// Of each octave, the slope of the line that is above it; none behind the last point.
    fn slopes(&self) -> [f64; AGES] {
        let mut slopes = [0.0; AGES];
        let (mut before, mut from, mut least) = (Point::default(), 0, f64::INFINITY);
        for point in &self.points[..self.len] {
            least = least.min((point.hits - before.hits) / (point.room - before.room));
            slopes[from..=point.octave].fill(least);
            (before, from) = (*point, point.octave + 1);
        }
        slopes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Yields without anything assumed.
    fn slopes(met: &[(u64, u32)], gone: &[(u64, u32)]) -> [f64; AGES] {
        let mut yields = Yields::new(1_000);
        for &(age, count) in met {
            (0..count).for_each(|_| yields.met(0, age));
        }
        for &(age, count) in gone {
            (0..count).for_each(|_| yields.gone(0, age));
        }
        yields.evidence[0].slopes(0.0)
    }

    #[track_caller]
    fn check(slopes: &[f64; AGES], age: u64, expected: f64) {
        let slope = slopes[octave(age)];
        assert!((slope - expected).abs() < 1e-12, "{slope} at age {age} is not {expected}");
    }

    #[test]
    fn octaves_hold_the_ages_from_a_power_of_two_to_the_next() {
        assert_eq!([0, 1, 2, 3, 4, 7, 8, u64::MAX].map(octave), [0, 1, 2, 2, 3, 3, 4, 64]);
        assert_eq!(
            [0, 3, 64].map(|octave| end(octave).log2().to_bits()),
            [0.0_f64, 3.0, 64.0].map(f64::to_bits)
        );
    }

    #[test]
    fn a_chunk_that_is_always_met_at_one_age_yields_one_hit_for_that_room() {
        let slopes = slopes(&[(10, 5)], &[]);
        check(&slopes, 0, 0.1);
        check(&slopes, 10, 0.1);
        check(&slopes, 16, 0.0);
    }

    #[test]
    fn those_never_met_take_room_to_the_end_of_the_octave() {
        // Of four chunks one is met at 10, three take room for 16 steps.
        check(&slopes(&[(10, 1)], &[(1_000, 3)]), 10, 1.0 / (10.0 + 3.0 * 16.0));
    }

    #[test]
    fn what_was_forgotten_before_says_nothing_of_later_ages() {
        // The two forgotten at 20 count as those that were seen to the end: half of them is met at 100.
        let with = slopes(&[(100, 1)], &[(20, 2), (1_000, 1)]);
        check(&with, 100, slopes(&[(100, 1)], &[(1_000, 1)])[octave(100)]);
        check(&with, 100, 0.5 / (0.5 * 100.0 + 0.5 * 128.0));
    }

    #[test]
    fn the_yield_is_level_up_to_the_age_that_is_worth_waiting_for_and_falls_behind_it() {
        // One hit at 1 is dear if nine wait for it; most are met at 12; waiting for the last one is not worth it.
        let slopes = slopes(&[(1, 1), (12, 8), (2_000, 1)], &[]);
        check(&slopes, 1, slopes[octave(1)]);
        check(&slopes, 12, 0.9 / (0.1 + 0.8 * 12.0 + 0.1 * 16.0));
        check(&slopes, 1, 0.9 / (0.1 + 0.8 * 12.0 + 0.1 * 16.0));
        // From there on it takes 0.1 chunks from 16 to 2,000 steps for 0.1 hits.
        check(&slopes, 17, 0.1 / (0.1 * 2_000.0 - 0.1 * 16.0));
        check(&slopes, 5_000, 0.0);
    }

    #[test]
    fn a_yield_never_rises_with_age_nor_falls_with_the_class_whatever_the_evidence() {
        let mut state = 7_u64;
        let mut random = move |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        for capacity in [0, 1, 31, 500, 1_000_000, u32::MAX] {
            let mut yields = Yields::new(capacity);
            for _ in 0..3_000 {
                let class = usize::try_from(random(4)).unwrap();
                let age = 1 << random(30);
                for _ in 0..random(20) {
                    if random(3) > 0 { yields.met(class, age) } else { yields.gone(class, age + random(age)) }
                }
                yields.advance(random(2) * yields.round);
                for class in 0..CLASSES {
                    let of = |octave: usize| yields.table[class][octave];
                    assert!(of(0).is_finite() && of(AGES - 1) >= 0.0);
                    assert!((1..AGES).all(|octave| of(octave) <= of(octave - 1)), "{yields:?}");
                    assert!(
                        (0..AGES).all(|octave| class == 0 || of(octave) >= yields.table[class - 1][octave])
                    );
                }
            }
        }
    }

    #[test]
    fn evidence_is_reckoned_with_once_a_round_and_halved_once_in_256() {
        let mut yields = Yields::new(8_000);
        let before = yields.of(1, 100);
        (0..4_000).for_each(|_| yields.met(1, 100));
        yields.advance(1);
        assert!(yields.of(1, 100) > before, "with the first commit");
        let after = yields.of(1, 100);
        (0..4_000).for_each(|_| yields.gone(1, 100));
        yields.advance(999);
        assert_eq!(yields.of(1, 100).to_bits(), after.to_bits());
        yields.advance(1);
        assert!(yields.of(1, 100) < after);
        (0..253).for_each(|_| yields.advance(1_000));
        assert_eq!(yields.evidence[1].met[octave(100)].to_bits(), 4_000_f64.to_bits());
        yields.advance(1_000);
        assert_eq!(yields.evidence[1].met[octave(100)].to_bits(), 2_000_f64.to_bits());
    }
}
