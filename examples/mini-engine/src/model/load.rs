//! Weights from a file.

use std::path::Path;

use super::{
    GgufError, Layer, Matrix, Model, ModelConfig, ModelError, Vocabulary,
    gguf::{Gguf, Value},
};

impl Model {
    /// Reads a model of the Llama architecture from a GGUF file; quantised weights become f32. Its vocabulary comes
    /// with it, where the file has one of byte pairs.
    ///
    /// # Errors
    /// [`ModelError::Read`], or [`ModelError::Gguf`] with what is not understood of the file.
    pub fn from_gguf(path: &Path) -> Result<(Self, Option<Vocabulary>), ModelError> {
        Self::from_gguf_bytes(&std::fs::read(path)?)
    }

    /// As [`from_gguf`](Self::from_gguf), from the bytes of a file.
    ///
    /// # Errors
    /// As [`from_gguf`](Self::from_gguf).
    pub(crate) fn from_gguf_bytes(bytes: &[u8]) -> Result<(Self, Option<Vocabulary>), ModelError> {
        let file = Gguf::parse(bytes)?;
        let config = config(&file)?;
        config.check()?;
        let (hidden, kv_dim) = (config.hidden, config.kv_dim());
        let q_dim = config.heads * config.head_dim;
        let matrix = |name: &str, outputs: usize, inputs: usize| -> Result<Matrix, GgufError> {
            Ok(Matrix { outputs, inputs, weights: file.tensor(name, &[inputs, outputs])? })
        };
        let layer = |nth: usize| -> Result<Layer, GgufError> {
            let name = |part: &str| format!("blk.{nth}.{part}.weight");
            Ok(Layer {
                attention_norm: file.tensor(&name("attn_norm"), &[hidden])?,
                query: matrix(&name("attn_q"), q_dim, hidden)?,
                key: matrix(&name("attn_k"), kv_dim, hidden)?,
                value: matrix(&name("attn_v"), kv_dim, hidden)?,
                output: matrix(&name("attn_output"), hidden, q_dim)?,
                feed_norm: file.tensor(&name("ffn_norm"), &[hidden])?,
                gate: matrix(&name("ffn_gate"), config.feed_forward, hidden)?,
                up: matrix(&name("ffn_up"), config.feed_forward, hidden)?,
                down: matrix(&name("ffn_down"), hidden, config.feed_forward)?,
            })
        };
        let model = Self {
            embedding: matrix(EMBEDDING, config.vocabulary, hidden)?,
            layers: (0..config.layers()).map(layer).collect::<Result<_, _>>()?,
            norm: file.tensor("output_norm.weight", &[hidden])?,
            head: if config.tied { None } else { Some(matrix(HEAD, config.vocabulary, hidden)?) },
            config,
        };
        let vocabulary = Vocabulary::of(&file)?.filter(|words| words.len() == model.config.vocabulary);
        Ok((model, vocabulary))
    }
}

const EMBEDDING: &str = "token_embd.weight";
const HEAD: &str = "output.weight";
/// More than any model has.
const LAYERS_MAX: usize = 1024;

fn config(file: &Gguf<'_>) -> Result<ModelConfig, GgufError> {
    if !matches!(file.get("general.architecture"), Some(Value::Text(name)) if name == "llama") {
        return Err(unsupported(file, "general.architecture"));
    }
    // What would change the mathematics, and is not done here.
    let scaling = "llama.rope.scaling.type";
    if file.get(scaling).is_some_and(|value| *value != Value::Text("none".to_owned())) {
        return Err(unsupported(file, scaling));
    }
    for key in ["rope_freqs.weight", "blk.0.attn_q.bias", "blk.0.ffn_gate_inp.weight"] {
        if file.dimensions(key).is_some() {
            return Err(GgufError::Unsupported { key: key.to_owned(), value: "there".to_owned() });
        }
    }
    let number = |key: &str| file.number(&format!("llama.{key}"));
    let number_or = |key: &str, other: usize| match number(key) {
        Err(GgufError::Missing { .. }) => Ok(other),
        found => found,
    };
    let (hidden, heads) = (number("embedding_length")?, number("attention.head_count")?);
    let head_dim = number_or("attention.key_length", hidden.checked_div(heads).unwrap_or(0))?;
    for key in ["rope.dimension_count", "attention.value_length"] {
        if number_or(key, head_dim)? != head_dim {
            return Err(unsupported(file, &format!("llama.{key}")));
        }
    }
    let layers = number("block_count")?;
    if layers > LAYERS_MAX {
        return Err(unsupported(file, "llama.block_count"));
    }
    let embedding =
        file.dimensions(EMBEDDING).ok_or_else(|| GgufError::Missing { key: EMBEDDING.to_owned() })?;
    let vocabulary = embedding.get(1).and_then(|&tokens| usize::try_from(tokens).ok()).unwrap_or(0);
    let base = match file.float("llama.rope.freq_base") {
        Err(GgufError::Missing { .. }) => 10_000.0,
        found => found?,
    };
    #[expect(clippy::cast_possible_truncation, reason = "it was an f32 in the file")]
    let norm_epsilon = file.float("llama.attention.layer_norm_rms_epsilon")? as f32;
    Ok(ModelConfig {
        vocabulary,
        hidden,
        heads,
        kv_heads: number_or("attention.head_count_kv", heads)?,
        head_dim,
        feed_forward: number("feed_forward_length")?,
        rope_base: base,
        norm_epsilon,
        tied: file.dimensions(HEAD).is_none(),
        windows: vec![None; layers],
    })
}

fn unsupported(file: &Gguf<'_>, key: &str) -> GgufError {
    match file.get(key) {
        Some(value) => GgufError::Unsupported { key: key.to_owned(), value: format!("{value:?}") },
        None => GgufError::Missing { key: key.to_owned() },
    }
}
