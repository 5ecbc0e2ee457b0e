//! Weights from a seed.

use super::{Layer, Matrix, Model, ModelConfig, ModelError};
use crate::random::SplitMix64;

impl Model {
    /// A model with random weights: matrices are uniform with a variance of one over their inputs, norms within a
    /// tenth of one. The numbers come from [`SplitMix64`], a stream a tensor, in the order in which tensors are made
    /// here; they are the same on every machine and in every release.
    ///
    /// # Errors
    /// [`ModelError`] names what is not sound of the shape.
    pub fn seeded(config: ModelConfig, seed: u64) -> Result<Self, ModelError> {
        config.check()?;
        let mut seeds = Seeds { seed, tensors: 0 };
        let (hidden, kv_dim) = (config.hidden, config.kv_dim());
        let q_dim = config.heads * config.head_dim;
        // Small beside what the layers add: a tied head would say each token again.
        let embedding = seeds.fan_in(config.vocabulary, hidden);
        let mut layers = Vec::with_capacity(config.layers());
        for _ in 0..config.layers() {
            layers.push(Layer {
                attention_norm: seeds.norm(hidden),
                query: seeds.fan_in(q_dim, hidden),
                key: seeds.fan_in(kv_dim, hidden),
                value: seeds.fan_in(kv_dim, hidden),
                output: seeds.fan_in(hidden, q_dim),
                feed_norm: seeds.norm(hidden),
                gate: seeds.fan_in(config.feed_forward, hidden),
                up: seeds.fan_in(config.feed_forward, hidden),
                down: seeds.fan_in(hidden, config.feed_forward),
            });
        }
        let norm = seeds.norm(hidden);
        let head = (!config.tied).then(|| seeds.fan_in(config.vocabulary, hidden));
        Ok(Self { config, embedding, layers, norm, head })
    }
}

/// Gives each tensor a stream of its own.
struct Seeds {
    seed: u64,
    tensors: u64,
}

impl Seeds {
    fn next(&mut self) -> SplitMix64 {
        self.tensors += 1;
        SplitMix64::stream(self.seed, self.tensors)
    }

    fn fan_in(&mut self, outputs: usize, inputs: usize) -> Matrix {
        let (mut random, limit) = (self.next(), (3.0 / inputs as f32).sqrt());
        let weights = (0..outputs * inputs).map(|_| (random.unit() * 2.0 - 1.0) * limit).collect();
        Matrix { outputs, inputs, weights }
    }

    fn norm(&mut self, len: usize) -> Vec<f32> {
        let mut random = self.next();
        (0..len).map(|_| 0.9 + random.unit() * 0.2).collect()
    }
}
