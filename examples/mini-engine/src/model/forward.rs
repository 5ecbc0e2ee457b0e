//! One pass over a batch of rows, layer by layer. Where keys and values of earlier tokens are kept is not known here.

use std::ops::Range;

use rayon::{ThreadPool, prelude::*};

use super::{
    Model,
    math::{dot, exp, multiply, rms_norm, silu},
};

/// A token that is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    /// Below the vocabulary.
    pub(crate) token: u32,
    /// Its place in its request.
    pub(crate) position: u32,
}

/// What is between layers, and room for what is inside one. All of it `[row][..]`.
#[derive(Debug, Default)]
pub(crate) struct Activations {
    rows: Vec<Row>,
    /// Cosine and sine by which each pair of a head is turned, `[row][pair]`.
    turns: Vec<(f32, f32)>,
    /// The residual stream.
    stream: Vec<f32>,
    normed: Vec<f32>,
    query: Vec<f32>,
    /// Keys and values of the rows in the layer at hand, `[row][head][dim]`.
    pub(crate) key: Vec<f32>,
    pub(crate) value: Vec<f32>,
    attended: Vec<f32>,
    gate: Vec<f32>,
    up: Vec<f32>,
    product: Vec<f32>,
}

/// What rows of one request attend to in a layer.
#[derive(Debug)]
pub(crate) struct Context<'a> {
    /// The rows, neighbours in position.
    pub(crate) rows: Range<usize>,
    /// The position of the first key. Each position up to that of the last row has one.
    pub(crate) first_position: u32,
    /// `[position][head][dim]`.
    pub(crate) keys: &'a [f32],
    /// As `keys`.
    pub(crate) values: &'a [f32],
}

impl Context<'_> {
    /// Where the keys of a position begin.
    fn index(&self, position: u32) -> usize {
        (position - self.first_position) as usize
    }
}

impl Model {
    /// Begins a pass: looks up what the tokens are.
    pub(crate) fn begin(&self, rows: &[Row], state: &mut Activations) {
        state.rows.clear();
        state.rows.extend_from_slice(rows);
        state.stream.clear();
        state.turns.clear();
        for row in rows {
            state.stream.extend_from_slice(self.embedding.row(row.token as usize));
            state.turns.extend(self.turns(row.position));
        }
    }

    /// Cosine and sine of each pair's angle at a position.
    #[expect(clippy::cast_possible_truncation, reason = "the angles are made in f64 and used in f32")]
    fn turns(&self, position: u32) -> impl Iterator<Item = (f32, f32)> {
        let (base, dim) = (self.config.rope_base, self.config.head_dim);
        (0..dim / 2).map(move |pair| {
            let frequency = base.powf(-((2 * pair) as f64) / dim as f64);
            let (sin, cos) = (f64::from(position) * frequency).sin_cos();
            (cos as f32, sin as f32)
        })
    }

    /// Computes queries, keys and values of a layer.
    pub(crate) fn project(&self, layer: usize, state: &mut Activations, threads: Option<&ThreadPool>) {
        let layer = &self.layers[layer];
        norm_rows(&state.stream, &layer.attention_norm, self.config.norm_epsilon, &mut state.normed);
        multiply(&layer.query, &state.normed, &mut state.query, threads);
        multiply(&layer.key, &state.normed, &mut state.key, threads);
        multiply(&layer.value, &state.normed, &mut state.value, threads);
        let (heads, kv_heads) = (self.config.heads, self.config.kv_heads);
        self.turn(&mut state.query, heads, &state.turns);
        self.turn(&mut state.key, kv_heads, &state.turns);
        state.attended.clear();
        state.attended.resize(state.query.len(), 0.0);
    }

    /// Turns neighbouring pairs of each head by its row's angles.
    fn turn(&self, values: &mut [f32], heads: usize, turns: &[(f32, f32)]) {
        let dim = self.config.head_dim;
        for (row, turns) in values.chunks_exact_mut(heads * dim).zip(turns.chunks_exact(dim / 2)) {
            for head in row.chunks_exact_mut(dim) {
                for (pair, (cos, sin)) in head.chunks_exact_mut(2).zip(turns) {
                    let (a, b) = (pair[0], pair[1]);
                    pair[0] = a * cos - b * sin;
                    pair[1] = a * sin + b * cos;
                }
            }
        }
    }

    /// Lets rows of one request attend to its context.
    pub(crate) fn attend(
        &self,
        layer: usize,
        context: &Context<'_>,
        state: &mut Activations,
        threads: Option<&ThreadPool>,
    ) {
        let dim = self.config.head_dim;
        let of_row = self.config.heads * dim;
        let (rows, query) = (&state.rows, &state.query);
        let out = &mut state.attended[context.rows.start * of_row..context.rows.end * of_row];
        let one = |scores: &mut Vec<f32>, (nth, out): (usize, &mut [f32])| {
            let (row, head) = (context.rows.start + nth / self.config.heads, nth % self.config.heads);
            let query = &query[row * of_row + head * dim..][..dim];
            self.attend_one(layer, context, rows[row].position, head, query, scores, out);
        };
        if let Some(threads) = threads {
            let heads = out.par_chunks_exact_mut(dim).enumerate();
            threads.install(|| heads.for_each_init(Vec::new, one));
        } else {
            let mut scores = Vec::new();
            out.chunks_exact_mut(dim).enumerate().for_each(|part| one(&mut scores, part));
        }
    }

    /// One head of one row. Sums run from the first position in the window to the last.
    #[expect(clippy::too_many_arguments, reason = "it is the inner loop, called from one place")]
    fn attend_one(
        &self,
        layer: usize,
        context: &Context<'_>,
        position: u32,
        head: usize,
        query: &[f32],
        scores: &mut Vec<f32>,
        out: &mut [f32],
    ) {
        let (dim, kv_dim) = (self.config.head_dim, self.config.kv_dim());
        let kv_head = head / (self.config.heads / self.config.kv_heads);
        let first = self.config.windows[layer].map_or(0, |window| (position + 1).saturating_sub(window));
        let positions = context.index(first)..context.index(position) + 1;
        let at = |position: usize| position * kv_dim + kv_head * dim;
        let scale = 1.0 / (dim as f32).sqrt();
        scores.clear();
        scores.extend(positions.clone().map(|nth| dot(query, &context.keys[at(nth)..][..dim]) * scale));
        let highest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let mut sum = 0.0;
        for (nth, score) in positions.zip(scores.iter()) {
            let weight = exp(score - highest);
            sum += weight;
            for (out, value) in out.iter_mut().zip(&context.values[at(nth)..][..dim]) {
                *out += weight * value;
            }
        }
        for out in out {
            *out /= sum;
        }
    }

    /// Ends a layer: what was attended to and the feed-forward part go into the residual stream.
    pub(crate) fn finish_layer(&self, layer: usize, state: &mut Activations, threads: Option<&ThreadPool>) {
        let layer = &self.layers[layer];
        multiply(&layer.output, &state.attended, &mut state.product, threads);
        add(&mut state.stream, &state.product);
        norm_rows(&state.stream, &layer.feed_norm, self.config.norm_epsilon, &mut state.normed);
        multiply(&layer.gate, &state.normed, &mut state.gate, threads);
        multiply(&layer.up, &state.normed, &mut state.up, threads);
        for (gate, up) in state.gate.iter_mut().zip(&state.up) {
            *gate = silu(*gate) * up;
        }
        multiply(&layer.down, &state.gate, &mut state.product, threads);
        add(&mut state.stream, &state.product);
    }

    /// The logits behind some of the rows, `[of rows][token]`.
    pub(crate) fn logits(
        &self,
        of_rows: &[usize],
        state: &mut Activations,
        threads: Option<&ThreadPool>,
    ) -> Vec<f32> {
        let hidden = self.config.hidden;
        let picked: Vec<f32> =
            of_rows.iter().flat_map(|row| &state.stream[row * hidden..][..hidden]).copied().collect();
        norm_rows(&picked, &self.norm, self.config.norm_epsilon, &mut state.normed);
        let mut logits = Vec::new();
        multiply(self.head(), &state.normed, &mut logits, threads);
        logits
    }
}

fn norm_rows(rows: &[f32], weights: &[f32], epsilon: f32, out: &mut Vec<f32>) {
    out.clear();
    out.resize(rows.len(), 0.0);
    for (row, out) in rows.chunks_exact(weights.len()).zip(out.chunks_exact_mut(weights.len())) {
        rms_norm(row, weights, epsilon, out);
    }
}

fn add(to: &mut [f32], values: &[f32]) {
    for (to, value) in to.iter_mut().zip(values) {
        *to += value;
    }
}
