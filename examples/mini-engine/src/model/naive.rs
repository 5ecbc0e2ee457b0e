//! The same transformer once more, in f64, by its definition: no cache, no pages, everything computed for every token.

use super::{Matrix, Model};

/// The logits behind the last token.
pub(crate) fn logits(model: &Model, tokens: &[u32]) -> Vec<f64> {
    let config = &model.config;
    let mut stream: Vec<Vec<f64>> =
        tokens.iter().map(|&token| wide(model.embedding.row(token as usize))).collect();
    for (nth, layer) in model.layers.iter().enumerate() {
        let normed: Vec<_> =
            stream.iter().map(|x| norm(x, &layer.attention_norm, config.norm_epsilon)).collect();
        let turned = |matrix: &Matrix| -> Vec<Vec<f64>> {
            let rows = normed.iter().enumerate();
            rows.map(|(position, x)| turn(model, times(matrix, x), position)).collect()
        };
        let (queries, keys) = (turned(&layer.query), turned(&layer.key));
        let values: Vec<_> = normed.iter().map(|x| times(&layer.value, x)).collect();
        for (position, x) in stream.iter_mut().enumerate() {
            let attended = attend(model, nth, position, &queries[position], &keys, &values);
            plus(x, &times(&layer.output, &attended));
            let normed = norm(x, &layer.feed_norm, config.norm_epsilon);
            let gate = times(&layer.gate, &normed).into_iter().map(|x| x / (1.0 + (-x).exp()));
            let inner: Vec<_> = gate.zip(times(&layer.up, &normed)).map(|(gate, up)| gate * up).collect();
            plus(x, &times(&layer.down, &inner));
        }
    }
    let last = stream.last().expect("there is a token");
    times(model.head(), &norm(last, &model.norm, config.norm_epsilon))
}

fn attend(
    model: &Model,
    layer: usize,
    position: usize,
    query: &[f64],
    keys: &[Vec<f64>],
    values: &[Vec<f64>],
) -> Vec<f64> {
    let config = &model.config;
    let dim = config.head_dim;
    let seen =
        |key: usize| key <= position && config.windows[layer].is_none_or(|w| position - key < w as usize);
    let mut out = Vec::new();
    for head in 0..config.heads {
        let kv_head = head * config.kv_heads / config.heads;
        let part = |row: &[f64], head: usize| row[head * dim..(head + 1) * dim].to_vec();
        let query = part(query, head);
        let weights: Vec<(usize, f64)> = (0..keys.len())
            .filter(|&key| seen(key))
            .map(|key| {
                let key_part = part(&keys[key], kv_head);
                let score: f64 = query.iter().zip(&key_part).map(|(a, b)| a * b).sum();
                (key, (score / (dim as f64).sqrt()).exp())
            })
            .collect();
        let total: f64 = weights.iter().map(|(_, weight)| weight).sum();
        out.extend((0..dim).map(|d| {
            weights.iter().map(|(key, weight)| weight / total * values[*key][kv_head * dim + d]).sum::<f64>()
        }));
    }
    out
}

fn turn(model: &Model, mut row: Vec<f64>, position: usize) -> Vec<f64> {
    let dim = model.config.head_dim;
    for (nth, pair) in row.chunks_exact_mut(2).enumerate() {
        let exponent = (nth * 2 % dim) as f64 / dim as f64;
        let angle = position as f64 / model.config.rope_base.powf(exponent);
        let (a, b) = (pair[0], pair[1]);
        pair[0] = a * angle.cos() - b * angle.sin();
        pair[1] = b * angle.cos() + a * angle.sin();
    }
    row
}

fn times(matrix: &Matrix, x: &[f64]) -> Vec<f64> {
    let row = |output| matrix.row(output).iter().zip(x).map(|(w, x)| f64::from(*w) * x).sum();
    (0..matrix.outputs).map(row).collect()
}

fn norm(x: &[f64], weights: &[f32], epsilon: f32) -> Vec<f64> {
    let mean = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
    let root = (mean + f64::from(epsilon)).sqrt();
    x.iter().zip(weights).map(|(x, weight)| x / root * f64::from(*weight)).collect()
}

fn plus(to: &mut [f64], values: &[f64]) {
    to.iter_mut().zip(values).for_each(|(to, value)| *to += value);
}

fn wide(row: &[f32]) -> Vec<f64> {
    row.iter().map(|x| f64::from(*x)).collect()
}
