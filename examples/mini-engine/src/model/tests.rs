//! The model beside its definition.

use super::*;
use crate::random::SplitMix64;

/// The logits behind the last token, by one pass over all tokens, with keys and values side by side.
fn in_one_pass(model: &Model, tokens: &[u32]) -> Vec<f32> {
    let mut state = Activations::default();
    let rows: Vec<Row> = tokens.iter().zip(0..).map(|(&token, position)| Row { token, position }).collect();
    model.begin(&rows, &mut state);
    for layer in 0..model.config().layers() {
        model.project(layer, &mut state, None);
        let (keys, values) = (state.key.clone(), state.value.clone());
        let context = Context { rows: 0..rows.len(), first_position: 0, keys: &keys, values: &values };
        model.attend(layer, &context, &mut state, None);
        model.finish_layer(layer, &mut state, None);
    }
    model.logits(&[rows.len() - 1], &mut state, None)
}

#[track_caller]
fn check(config: ModelConfig, seed: u64, len: usize) {
    let model = Model::seeded(config, seed).unwrap();
    let mut random = SplitMix64::new(seed);
    let vocabulary = model.config().vocabulary as u64;
    let tokens: Vec<u32> = (0..len).map(|_| u32::try_from(random.below(vocabulary)).unwrap()).collect();
    let (logits, fine) = (in_one_pass(&model, &tokens), naive::logits(&model, &tokens));
    let worst = logits.iter().zip(&fine).map(|(a, b)| (f64::from(*a) - b).abs()).fold(0.0, f64::max);
    let spread = fine.iter().fold(0.0f64, |most, logit| most.max(logit.abs()));
    assert!(spread > 0.5, "logits within {spread} tell nothing");
    assert!(worst < 2e-5 * spread.max(1.0), "seed {seed}: off by {worst} of {spread}");
}

#[test]
fn logits_are_those_of_the_definition() {
    for len in [1, 2, 23, 24, 25, 60] {
        check(ModelConfig::tiny(), 1, len);
        check(ModelConfig::window(), 2, len);
    }
    check(ModelConfig::small(), 3, 30);
    let many_heads = ModelConfig { heads: 6, kv_heads: 1, head_dim: 4, hidden: 20, ..ModelConfig::tiny() };
    check(many_heads, 4, 20);
    check(ModelConfig { windows: vec![Some(1), Some(3), None], ..ModelConfig::tiny() }, 5, 20);
}

#[test]
fn each_token_before_the_last_changes_the_logits() {
    let model = Model::seeded(ModelConfig::tiny(), 9).unwrap();
    let tokens: Vec<u32> = (0..40).map(|nth| nth * 7 % 256).collect();
    let logits = in_one_pass(&model, &tokens);
    for position in 0..40 {
        let mut other = tokens.clone();
        other[position] = (other[position] + 1) % 256;
        assert_ne!(in_one_pass(&model, &other), logits, "token {position}");
    }
}
