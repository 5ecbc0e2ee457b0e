//! [`Ylru`](kvo_policies::Ylru) once more, in vectors whose old end is first.

use std::collections::{HashMap, HashSet};

const OCTAVES: usize = 65;

/// What is known of a chunk, resident or not.
#[derive(Clone, Copy, Debug, Default)]
pub struct Known {
    pub class: usize,
    /// When a request last finished with it.
    pub met: Option<u64>,
}

/// The definition, for requests one after the other.
#[derive(Debug)]
pub struct Ylru {
    capacity: usize,
    /// Of each class, the chunks in LRU order.
    pub classes: [Vec<u64>; 4],
    pub known: HashMap<u64, Known>,
    ghosts: Vec<u64>,
    asked: Vec<u64>,
    back: HashSet<u64>,
    clock: u64,
    /// Of each class: at which age a chunk was met again, or forgotten.
    outcomes: [Vec<(u64, bool)>; 4],
    yields: [[f64; OCTAVES]; 4],
    left_of_round: usize,
}

fn octave(age: u64) -> usize {
    (0..64).find(|bits| age >> bits == 0).unwrap_or(64)
}

impl Ylru {
    pub fn new(capacity: u32) -> Self {
        let mut new = Self {
            capacity: capacity as usize,
            classes: Default::default(),
            known: HashMap::new(),
            ghosts: Vec::new(),
            asked: Vec::new(),
            back: HashSet::new(),
            clock: 0,
            outcomes: Default::default(),
            yields: [[0.0; OCTAVES]; 4],
            left_of_round: 0,
        };
        new.reckon();
        new
    }

    pub fn miss(&mut self, missing: &[u64]) {
        for chunk in missing.iter().rev() {
            if self.ghosts.contains(chunk) || self.asked.contains(chunk) {
                self.ghosts.retain(|ghost| ghost != chunk);
                self.asked.retain(|ghost| ghost != chunk);
                self.asked.push(*chunk);
                if self.asked.len() > self.capacity {
                    self.asked.remove(0);
                }
            }
        }
    }

    pub fn evict(&mut self, count: usize, may_go: impl Fn(u64) -> bool) -> Vec<u64> {
        let victims: Vec<u64> = (0..count).map(|_| self.take_victim(&may_go)).collect();
        for victim in &victims {
            self.ghosts.push(*victim);
            if self.ghosts.len() > 2 * self.capacity {
                let Known { class, met } = self.known[&self.ghosts.remove(0)];
                self.outcomes[class].push((self.clock - met.expect("its request finished"), false));
            }
        }
        victims
    }

    fn take_victim(&mut self, may_go: &impl Fn(u64) -> bool) -> u64 {
        let mut best: Option<(f64, usize, usize)> = None;
        for (class, chunks) in self.classes.iter().enumerate() {
            let Some(index) = chunks.iter().position(|chunk| may_go(*chunk)) else { continue };
            let age = self.clock - self.known[&chunks[index]].met.expect("its request finished");
            let value = self.yields[class][octave(age)];
            if best.is_none_or(|(least, ..)| value < least) {
                best = Some((value, class, index));
            }
        }
        let (_, class, index) = best.expect("enough chunks may go");
        self.classes[class].remove(index)
    }

    pub fn insert(&mut self, missing: &[u64]) {
        for chunk in missing {
            self.ghosts.retain(|ghost| ghost != chunk);
            if self.asked.contains(chunk) {
                self.asked.retain(|ghost| ghost != chunk);
                self.back.insert(*chunk);
            } else {
                self.known.remove(chunk);
            }
        }
    }

    pub fn finish(&mut self, keys: &[u64], inserted: &HashSet<u64>) {
        self.clock += keys.len() as u64;
        let mut highest = 3;
        for chunk in keys {
            let known = self.known.entry(*chunk).or_default();
            if self.back.remove(chunk) || !inserted.contains(chunk) {
                self.outcomes[known.class]
                    .push((self.clock - known.met.expect("its request finished"), true));
                known.class += 1;
            }
            known.class = known.class.min(highest);
            known.met = Some(self.clock);
            highest = known.class;
        }
        for chunk in keys.iter().rev() {
            self.classes.iter_mut().for_each(|chunks| chunks.retain(|other| other != chunk));
            self.classes[self.known[chunk].class].push(*chunk);
        }
        self.left_of_round = self.left_of_round.saturating_sub(keys.len());
        if self.left_of_round == 0 && !keys.is_empty() {
            self.left_of_round = (self.capacity / 8).max(256);
            self.reckon();
        }
    }

    /// Without the halving of the counts, which takes longer than these tests.
    fn reckon(&mut self) {
        let mut floor = [0.0; OCTAVES];
        for class in 0..4 {
            let points = self.points(class);
            let mut slopes = [0.0; OCTAVES];
            // From each point of the curve to the one that is steepest above it, the farthest of equals.
            let (mut at, mut least, mut from) = ((0.0, 0.0), f64::INFINITY, 0);
            while let Some((slope, next)) = points
                .iter()
                .filter(|(octave, ..)| *octave >= from)
                .map(|point| ((point.2 - at.1) / (point.1 - at.0), point))
                .max_by(|a, b| a.0.total_cmp(&b.0))
            {
                least = f64::min(least, slope);
                slopes[from..=next.0].fill(least);
                (from, at) = (next.0 + 1, (next.1, next.2));
            }
            floor = std::array::from_fn(|octave| f64::max(slopes[octave], floor[octave]));
            self.yields[class] = floor.map(|slope| if class > 0 { slope * 1.5 } else { slope });
        }
    }

    /// Octave, room and hits of a chunk that is kept to the end of the octave.
    fn points(&self, class: usize) -> Vec<(usize, f64, f64)> {
        let capacity = self.capacity as f64;
        let share = if class == 0 { 0.1 } else { 0.5 };
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "from 1 to a small number"
        )]
        let [first, last] = [capacity / 32.0, capacity * 16.0].map(|age| octave(age.max(1.0) as u64));
        let each = 0.5 * capacity * share / (last - first + 1) as f64;
        let (mut met, mut ages, mut gone) = ([0.0; OCTAVES], [0.0; OCTAVES], [0.0; OCTAVES]);
        for (age, is_met) in &self.outcomes[class] {
            if *is_met {
                met[octave(*age)] += 1.0;
                ages[octave(*age)] += *age as f64;
            } else {
                gone[octave(*age)] += 1.0;
            }
        }
        for octave in first..=last {
            met[octave] += each;
            ages[octave] += each * 0.75 * 2_f64.powi(i32::try_from(octave).unwrap());
        }
        let mut left = met.iter().sum::<f64>() + gone.iter().sum::<f64>() + 0.5 * capacity * (1.0 - share);
        let (mut unmet, mut hits, mut room) = (1.0, 0.0, 0.0);
        let mut points = Vec::new();
        for octave in 0..OCTAVES {
            if met[octave] > 0.0 {
                let hit = unmet * f64::min(met[octave] / left, 1.0);
                unmet -= hit;
                hits += hit;
                room += hit * ages[octave] / met[octave];
                points.push((octave, room + unmet * 2_f64.powi(i32::try_from(octave).unwrap()), hits));
            }
            left = f64::max(left - met[octave] - gone[octave], 0.0);
        }
        points
    }
}
