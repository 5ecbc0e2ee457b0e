//! From logits to a token.

use crate::{model::exp, random::SplitMix64};

/// How the next token is chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Sampling {
    /// The token with the highest logit, the lowest number among equals.
    Greedy,
    /// By probability. The draw depends on the seed and on the token's position only, so a request that was preempted
    /// goes on as it would have.
    Seeded {
        /// What the draws follow from.
        seed: u64,
        /// What logits are divided by; above 0.
        temperature: f32,
    },
}

impl Sampling {
    pub(crate) fn is_sound(self) -> bool {
        match self {
            Self::Greedy => true,
            Self::Seeded { temperature, .. } => temperature.is_finite() && temperature > 0.0,
        }
    }

    /// The token for a position.
    pub(crate) fn pick(self, logits: &[f32], position: usize) -> u32 {
        let highest = highest(logits);
        let picked = match self {
            Self::Greedy => highest,
            Self::Seeded { seed, temperature } => {
                let weight = |logit: &f32| exp((logit - logits[highest]) / temperature);
                let total: f32 = logits.iter().map(weight).sum();
                let mut left = SplitMix64::stream(seed, position as u64).unit() * total;
                let found = logits.iter().position(|logit| {
                    left -= weight(logit);
                    left < 0.0
                });
                found.unwrap_or(highest)
            }
        };
        u32::try_from(picked).expect("the vocabulary was checked")
    }
}

fn highest(logits: &[f32]) -> usize {
    let mut best = 0;
    for (token, logit) in logits.iter().enumerate() {
        if *logit > logits[best] {
            best = token;
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_highest_logit_is_picked_and_the_first_of_equals() {
        assert_eq!(Sampling::Greedy.pick(&[0.0, 3.0, -1.0, 3.0], 5), 1);
    }

    #[test]
    fn draws_follow_the_probabilities() {
        let logits = [0.0, (3.0f32).ln(), -30.0];
        let mut counts = [0; 3];
        for position in 0..4_000 {
            let token = Sampling::Seeded { seed: 11, temperature: 1.0 }.pick(&logits, position);
            counts[token as usize] += 1;
        }
        assert!((2_900..3_100).contains(&counts[1]) && counts[2] == 0, "{counts:?}");
        let cold = Sampling::Seeded { seed: 11, temperature: 0.01 };
        assert!((0..100).all(|position| cold.pick(&logits, position) == 1));
        assert!(!Sampling::Seeded { seed: 0, temperature: f32::NAN }.is_sound());
    }
}
