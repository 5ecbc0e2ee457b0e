//! What the fuzzer `gguf` runs: from any bytes to a panic if something does not hold. The tests here run its corpus.

#[cfg(test)]
#[path = "../../../fuzz/replay.rs"]
mod replay;

use crate::Model;

/// A file is a model that computes, with a vocabulary of as many tokens, or an error with a reason.
pub fn gguf(input: &[u8]) {
    let (model, vocabulary) = match Model::from_gguf_bytes(input) {
        Ok(found) => found,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            return;
        }
    };
    // Nothing is made that the file only claims to have: a quantised number has half a byte of it at least.
    assert!(model.num_parameters() <= 4 * input.len(), "{:?}", model.config());
    let Some(vocabulary) = vocabulary else { return };
    let text = String::from_utf8_lossy(input);
    let text: String = text.chars().take(64).collect();
    let tokens = vocabulary.tokens(&text);
    assert!(tokens.iter().all(|token| (*token as usize) < model.config().vocabulary), "{tokens:?}");
    vocabulary.text(&tokens);
}

#[test]
fn files_of_the_corpus_are_models_or_errors() {
    replay::replay("gguf", gguf);
}
