//! What the tests of the engine share.

use std::sync::{Arc, LazyLock};

use kvo_mini_engine::{
    Engine, EngineOptions, FinishReason, Model, ModelConfig, NewRequest, NoOffload, Output, SplitMix64,
};

pub(crate) static TINY: LazyLock<Arc<Model>> = LazyLock::new(|| seeded(ModelConfig::tiny()));
pub(crate) static WINDOW: LazyLock<Arc<Model>> = LazyLock::new(|| seeded(ModelConfig::window()));

fn seeded(config: ModelConfig) -> Arc<Model> {
    Arc::new(Model::seeded(config, 1).unwrap())
}

/// Small blocks, everything watched, and all logits kept.
pub(crate) fn options() -> EngineOptions {
    EngineOptions {
        block_tokens: 8,
        num_blocks: 64,
        detect_races: true,
        keep_logits: true,
        ..EngineOptions::default()
    }
}

pub(crate) fn engine(model: &Arc<Model>, options: EngineOptions) -> Engine {
    Engine::new(Arc::clone(model), options, NoOffload).unwrap()
}

/// What comes of a request that is alone in a fresh engine, computed in one step.
pub(crate) fn alone(model: &Arc<Model>, request: NewRequest) -> Output {
    let options = EngineOptions { num_blocks: 130, step_tokens: 4096, ..options() };
    let mut engine = engine(model, options);
    engine.add(request).unwrap();
    let mut outputs = engine.run().unwrap();
    assert_eq!(outputs.len(), 1);
    outputs.pop().unwrap()
}

/// The answer is that of `alone`, to the bit; that of an aborted request is the head of it.
#[track_caller]
pub(crate) fn check_answer(output: &Output, alone: &Output, context: &str) {
    let len = output.tokens.len();
    if output.reason == FinishReason::Aborted {
        assert!(len <= alone.tokens.len(), "{context}");
    } else {
        assert_eq!((output.reason, len), (alone.reason, alone.tokens.len()), "{context}");
    }
    assert_eq!(output.tokens, alone.tokens[..len], "{context}");
    assert_eq!(output.logits.len(), len, "{context}");
    for (nth, (logits, expected)) in output.logits.iter().zip(&alone.logits).enumerate() {
        assert_eq!(bits(logits), bits(expected), "{context}: logits of token {nth}");
    }
}

fn bits(logits: &[f32]) -> Vec<u32> {
    logits.iter().map(|logit| logit.to_bits()).collect()
}

/// Nothing is in use, and nothing was done that no program may do.
#[track_caller]
pub(crate) fn check_empty<O: kvo_mini_engine::Offload>(engine: &Engine<O>, context: &str) {
    engine.assert_consistent();
    assert!(engine.is_idle(), "{context}");
    let blocks = usize::try_from(engine.caches().num_blocks()).unwrap();
    let all: Vec<usize> = engine.caches().groups().iter().map(|_| blocks).collect();
    assert_eq!(engine.blocks_available(), all, "{context}: blocks left over");
    let races = engine.device().take_races();
    assert!(races.is_empty(), "{context}: {races:?}");
}

pub(crate) fn tokens(random: &mut SplitMix64, len: usize) -> Vec<u32> {
    (0..len).map(|_| u32::try_from(random.below(256)).unwrap()).collect()
}
