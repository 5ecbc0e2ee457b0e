//! A part of a trace that stands for the whole: every access to a part of its blocks.
//!
//! Blocks are chosen by a hash of their number, so a block is in a sample with all of its accesses or with none. What a
//! tier of `C` slots does with all blocks, a tier of `rate * C` slots does with a sample, nearly: every distance and every
//! request shrinks by the rate, up to chance.
//!
//! Blocks are chosen, not sessions. A request keeps the sampled blocks of its prefix in their order, so prefixes stay
//! prefixes, a request stays one access, tail first, and each is about as long as its share. Sessions would keep whole
//! prefixes, but shared heads tie them together (all requests of Mooncake's conversation trace share their first
//! block), and a few long ones make up much of a trace: `docs/POLICIES.md` has the errors of both. What is lost: a
//! prefix ends only at a sampled block, so a policy that strands chunks behind a missing head that is not sampled looks
//! better than it is.
//!
//! Few blocks have many accesses, and whether they are sampled is chance. As they are hit at any capacity, the
//! difference between the accesses of a sample and those that are its share counts as hits.
//!
//! C. A. Waldspurger, N. Park, A. Garthwaite, I. Ahmad, "Efficient MRC Construction with SHARDS", FAST 2015 (fixed rate,
//! with its adjustment); C. A. Waldspurger, T. Saemundsson, I. Ahmad, N. Park, "Cache Modeling and Optimization using
//! Miniature Simulations", ATC 2017.

use std::{fmt, ops::ControlFlow, str::FromStr};

use kvo_policies::PolicyKind;
use serde::Serialize;

use crate::{Contender, LruCurve, ModelError, Trace, TraceRequest, run_model_r, run_opt};

/// The share of the blocks in a sample: above 0, up to 1.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(transparent)]
pub struct SampleRate(f64);

/// The accesses to some blocks of a trace.
#[derive(Clone, Debug)]
pub struct BlockSample {
    /// Those accesses, blocks numbered anew; a request may have none.
    trace: Trace,
    rate: f64,
    /// The accesses that are the sample's share.
    expected: f64,
}

impl BlockSample {
    /// The sample number `number` of `trace`: other numbers give independent ones.
    pub fn of(trace: &Trace, SampleRate(rate): SampleRate, number: u64) -> Self {
        let mut renumbered: Vec<Option<u32>> = vec![None; trace.num_unique as usize];
        let mut num_unique = 0;
        for block in 0..trace.num_unique {
            if unit(block, number) < rate {
                renumbered[block as usize] = Some(num_unique);
                num_unique += 1;
            }
        }
        let request = |request: &TraceRequest| TraceRequest {
            blocks: request.blocks.iter().filter_map(|block| renumbered[*block as usize]).collect(),
            ..*request
        };
        let requests = trace.requests.iter().map(request).collect();
        let expected = rate * trace.num_accesses() as f64;
        Self { trace: Trace { name: trace.name.clone(), requests, num_unique, ..*trace }, rate, expected }
    }

    /// LRU's hit ratio at each of `capacities`, by one pass over the sample; `None` if `before_request` stopped it.
    pub fn lru_ratios(
        &self,
        capacities: &[u32],
        before_request: impl FnMut() -> ControlFlow<()>,
    ) -> Option<Vec<f64>> {
        let curve = LruCurve::of(&self.trace, before_request)?;
        Some(capacities.iter().map(|&capacity| self.ratio(curve.hits(self.scaled(capacity)))).collect())
    }

    /// A policy's hit ratio at `capacity`, by running it in a tier that is smaller by the rate; `None` if
    /// `before_request` stopped it.
    ///
    /// # Errors
    ///
    /// As [`run_model_r`].
    pub fn ratio_of(
        &self,
        policy: Contender,
        capacity: u32,
        before_request: impl FnMut() -> ControlFlow<()>,
    ) -> Result<Option<f64>, ModelError> {
        let scaled = self.scaled(capacity).max(1);
        let result = match policy {
            Contender::Policy(policy) => run_model_r(&self.trace, policy, scaled, before_request)?,
            Contender::Opt => run_opt(&self.trace, scaled, before_request),
        };
        let is_whole = result.requests == self.trace.requests.len();
        Ok(is_whole.then(|| self.ratio(result.hits)))
    }

    /// Whether [`lru_ratios`](Self::lru_ratios) says of a policy what [`ratio_of`](Self::ratio_of) would.
    pub fn has_distances(policy: Contender) -> bool {
        policy == Contender::Policy(PolicyKind::Lru)
    }

    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the rate is at most 1, so it is no more than the capacity"
    )]
    fn scaled(&self, capacity: u32) -> u32 {
        (f64::from(capacity) * self.rate).round() as u32
    }

    fn ratio(&self, hits: u64) -> f64 {
        let surplus = self.trace.num_accesses() as f64 - self.expected;
        ((hits as f64 - surplus) / self.expected.max(1.0)).clamp(0.0, 1.0)
    }
}

/// A number from 0 to below 1 that block and sample decide: Vigna's splitmix64 finaliser over both.
fn unit(block: u32, sample: u64) -> f64 {
    let mut z = u64::from(block).wrapping_add(sample.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    for _ in 0..2 {
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 31;
    }
    // 53 bits are what a float has.
    (z >> 11) as f64 / (1_u64 << 53) as f64
}

impl Default for SampleRate {
    /// A tenth.
    fn default() -> Self {
        Self(0.1)
    }
}

impl SampleRate {
    /// The share, from 0 to 1.
    pub fn share(self) -> f64 {
        self.0
    }
}

impl fmt::Display for SampleRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for SampleRate {
    type Err = SampleRateError;

    fn from_str(given: &str) -> Result<Self, SampleRateError> {
        let rate = given.parse().ok().filter(|rate| *rate > 0.0 && *rate <= 1.0);
        rate.map(Self).ok_or_else(|| SampleRateError { given: given.to_owned() })
    }
}

/// A share of the blocks that is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{given:?} is no share of the blocks: give a number above 0 and up to 1, as in 0.1")]
pub struct SampleRateError {
    given: String,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{curve_capacities, kvo_synth};

    const GO: fn() -> ControlFlow<()> = || ControlFlow::Continue(());

    #[test]
    fn a_sample_of_everything_is_the_trace() {
        let trace = kvo_synth(150, 2);
        let sample = BlockSample::of(&trace, SampleRate(1.0), 5);
        assert_eq!(sample.trace, trace);
        let capacities = curve_capacities(&trace, []);
        let exact = LruCurve::of(&trace, GO).unwrap();
        let ratios = sample.lru_ratios(&capacities, GO).unwrap();
        for (&capacity, ratio) in capacities.iter().zip(ratios) {
            assert!((ratio - exact.hit_ratio(capacity)).abs() < 1e-12);
            let aslru = sample.ratio_of("aslru".parse().unwrap(), capacity, GO).unwrap().unwrap();
            let result = run_model_r(&trace, PolicyKind::Aslru, capacity, GO).unwrap();
            assert!((aslru - result.hit_ratio()).abs() < 1e-12);
        }
    }

    #[test]
    fn a_block_is_in_a_sample_with_all_of_its_accesses_and_in_order() {
        let trace = kvo_synth(400, 7);
        let sample = BlockSample::of(&trace, SampleRate(0.25), 3);
        let chosen = |block: &&u32| unit(**block, 3) < 0.25;
        let mut names = vec![None; trace.num_unique as usize];
        for (whole, part) in trace.requests.iter().zip(&sample.trace.requests) {
            let expected: Vec<_> = whole.blocks.iter().filter(chosen).collect();
            assert_eq!(expected.len(), part.blocks.len());
            for (old, new) in expected.into_iter().zip(&part.blocks) {
                assert_eq!(*names[*old as usize].get_or_insert(*new), *new);
            }
        }
        let share = f64::from(sample.trace.num_unique) / f64::from(trace.num_unique);
        assert!((share - 0.25).abs() < 0.03, "{share}");
    }

    #[test]
    fn samples_differ_and_come_near_the_truth() {
        let trace = kvo_synth(1500, 3);
        let exact = LruCurve::of(&trace, GO).unwrap();
        let capacities = curve_capacities(&trace, []);
        let samples: Vec<_> = (0..4)
            .map(|number| {
                BlockSample::of(&trace, SampleRate(0.2), number).lru_ratios(&capacities, GO).unwrap()
            })
            .collect();
        assert_ne!(samples[0], samples[1]);
        for (at, &capacity) in capacities.iter().enumerate() {
            let mean = samples.iter().map(|sample| sample[at]).sum::<f64>() / 4.0;
            let error = mean - exact.hit_ratio(capacity);
            assert!(error.abs() < 0.02, "{error} at {capacity}");
        }
    }

    #[test]
    fn what_is_no_share_is_named() {
        assert_eq!("0.1".parse(), Ok(SampleRate::default()));
        for text in ["0", "1.1", "-0.1", "nan", "some", ""] {
            let error = text.parse::<SampleRate>().unwrap_err().to_string();
            assert!(error.starts_with(&format!("{text:?} is no share of the blocks")), "{error}");
        }
    }
}
