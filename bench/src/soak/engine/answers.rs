//! A set of requests, and what each is answered if it is alone.

use std::sync::Arc;

use anyhow::ensure;
use kvo_mini_engine::{
    Engine, EngineOptions, FinishReason, Model, NewRequest, NoOffload, Output, Sampling, SplitMix64,
};

/// Requests of the set.
const NUM_REQUESTS: usize = 150;
/// Of a prompt, and of an answer.
const PROMPT_TOKENS_MAX: u64 = 96;
const ANSWER_TOKENS_MAX: u64 = 24;

/// Requests with their answers.
pub(super) struct Answers(Vec<(NewRequest, Output)>);

impl Answers {
    pub(super) fn of(model: &Arc<Model>, options: &EngineOptions, seed: u64) -> anyhow::Result<Self> {
        let options = EngineOptions { num_blocks: 64, step_tokens: 4096, ..options.clone() };
        let mut engine = Engine::new(Arc::clone(model), options, NoOffload)?;
        let mut answers = Vec::new();
        for request in requests(seed) {
            engine.forget_device();
            engine.add(request.clone())?;
            let mut outputs = engine.run()?;
            ensure!(outputs.len() == 1, "a request that is alone has {} answers", outputs.len());
            answers.extend(outputs.pop().map(|output| (request, output)));
        }
        Ok(Self(answers))
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn request(&self, nth: usize) -> &NewRequest {
        &self.0[nth].0
    }

    /// Whether an answer is the right one, to the bit; of a request that was aborted, the head of it.
    pub(super) fn check(&self, nth: usize, output: &Output) -> Result<(), String> {
        let right = &self.0[nth].1;
        let len = output.tokens.len();
        let is_aborted = output.reason == FinishReason::Aborted;
        if is_aborted && len > right.tokens.len() {
            return Err(format!("{len} tokens instead of {}", right.tokens.len()));
        }
        if !is_aborted && (output.reason, len) != (right.reason, right.tokens.len()) {
            return Err(format!(
                "{:?} after {len} tokens instead of {:?} after {}",
                output.reason,
                right.reason,
                right.tokens.len()
            ));
        }
        if output.tokens != right.tokens[..len] || output.logits.len() != len {
            return Err(format!("tokens {:?} instead of {:?}", output.tokens, right.tokens));
        }
        for (token, (logits, right)) in output.logits.iter().zip(&right.logits).enumerate() {
            let bits = |logits: &[f32]| logits.iter().map(|logit| logit.to_bits()).collect::<Vec<_>>();
            if bits(logits) != bits(right) {
                return Err(format!("other logits of token {token}"));
            }
        }
        Ok(())
    }
}

/// Prompts that share prefixes, and some that do not.
fn requests(seed: u64) -> Vec<NewRequest> {
    let mut random = SplitMix64::stream(seed, 2);
    let mut tokens =
        |len: u64| (0..len).map(|_| u32::try_from(random.below(256)).unwrap_or(0)).collect::<Vec<_>>();
    let stems: Vec<_> = (0..12).map(|_| tokens(PROMPT_TOKENS_MAX - 16)).collect();
    let mut requests = Vec::new();
    for nth in 0..NUM_REQUESTS {
        let own = tokens(1 + (nth as u64 * 7) % 16);
        let stem = &stems[nth % stems.len()];
        let mut prompt = stem[..(nth * 13) % (stem.len() + 1)].to_vec();
        prompt.extend(own);
        let sampling = match nth % 3 {
            0 => Sampling::Seeded { seed: nth as u64, temperature: 1.0 },
            _ => Sampling::Greedy,
        };
        let max_tokens = 1 + u32::try_from(nth as u64 * 5 % ANSWER_TOKENS_MAX).unwrap_or(0);
        requests.push(NewRequest { sampling, ..NewRequest::new(prompt, max_tokens) });
    }
    requests
}
