//! A Llama-like causal transformer in f32: grouped-query attention, RMS norms, rotary embedding, `SwiGLU`.
//!
//! The logits of a token depend on the weights and on the tokens before it, to the bit: not on what is computed beside
//! it, on how a prompt is cut, on where keys and values lie, or on how many threads there are.

mod config;
mod error;
mod forward;
mod gguf;
mod load;
mod math;
#[cfg(test)]
mod naive;
#[cfg(test)]
mod tests;
mod vocabulary;
mod weights;

use self::math::Matrix;
pub use self::{
    config::{LayerGroup, ModelConfig},
    error::{GgufError, ModelError},
    vocabulary::Vocabulary,
};
pub(crate) use self::{
    forward::{Activations, Context, Row},
    math::exp,
};

/// A model with its weights.
#[derive(Clone, Debug)]
pub struct Model {
    config: ModelConfig,
    embedding: Matrix,
    layers: Vec<Layer>,
    norm: Vec<f32>,
    /// `None` where the embedding is the head.
    head: Option<Matrix>,
}

/// The weights of one layer.
#[derive(Clone, Debug)]
struct Layer {
    attention_norm: Vec<f32>,
    query: Matrix,
    key: Matrix,
    value: Matrix,
    output: Matrix,
    feed_norm: Vec<f32>,
    gate: Matrix,
    up: Matrix,
    down: Matrix,
}

impl Model {
    /// Its shape.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Numbers it has.
    pub fn num_parameters(&self) -> usize {
        let of_layer = |layer: &Layer| {
            let matrices =
                [&layer.query, &layer.key, &layer.value, &layer.output, &layer.gate, &layer.up, &layer.down];
            let norms = layer.attention_norm.len() + layer.feed_norm.len();
            matrices.iter().map(|matrix| matrix.weights.len()).sum::<usize>() + norms
        };
        let head = self.head.as_ref().map_or(0, |head| head.weights.len());
        let layers: usize = self.layers.iter().map(of_layer).sum();
        self.embedding.weights.len() + layers + self.norm.len() + head
    }

    fn head(&self) -> &Matrix {
        self.head.as_ref().unwrap_or(&self.embedding)
    }
}
