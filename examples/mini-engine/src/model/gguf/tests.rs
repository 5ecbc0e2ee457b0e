//! Files made here: what is in them is read, and what is wrong with them is said.

use super::*;
use crate::{Model, ModelConfig, ModelError, SplitMix64};

/// Writes a GGUF file.
#[derive(Default)]
pub(in crate::model) struct Writer {
    said: Vec<u8>,
    num_said: u64,
    tensors: Vec<u8>,
    num_tensors: u64,
    data: Vec<u8>,
}

fn text(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

impl Writer {
    fn say(&mut self, key: &str, kind: u32, bytes: &[u8]) {
        text(&mut self.said, key);
        self.said.extend(kind.to_le_bytes());
        self.said.extend(bytes);
        self.num_said += 1;
    }

    fn say_text(&mut self, key: &str, said: &str) {
        let mut bytes = Vec::new();
        text(&mut bytes, said);
        self.say(key, 8, &bytes);
    }

    fn say_number(&mut self, key: &str, number: usize) {
        self.say(key, 4, &u32::try_from(number).unwrap().to_le_bytes());
    }

    fn add(&mut self, name: &str, dimensions: &[usize], kind: u32, data: &[u8]) {
        text(&mut self.tensors, name);
        self.tensors.extend(u32::try_from(dimensions.len()).unwrap().to_le_bytes());
        self.tensors.extend(dimensions.iter().flat_map(|&dimension| (dimension as u64).to_le_bytes()));
        self.tensors.extend(kind.to_le_bytes());
        self.tensors.extend((self.data.len() as u64).to_le_bytes());
        self.data.extend(data);
        self.data.resize(self.data.len().next_multiple_of(32), 0);
        self.num_tensors += 1;
    }

    fn finish(self) -> Vec<u8> {
        let mut file = b"GGUF".to_vec();
        file.extend(3u32.to_le_bytes());
        file.extend(self.num_tensors.to_le_bytes());
        file.extend(self.num_said.to_le_bytes());
        file.extend(self.said);
        file.extend(self.tensors);
        file.resize(file.len().next_multiple_of(32), 0);
        file.extend(self.data);
        file
    }
}

/// A file with a model of that shape in f32; `change` may change it before it is written.
fn file_of(config: &ModelConfig, change: impl FnOnce(&mut Writer)) -> Vec<u8> {
    let mut writer = Writer::default();
    writer.say_text("general.architecture", "llama");
    for (key, number) in [
        ("block_count", config.layers()),
        ("embedding_length", config.hidden),
        ("feed_forward_length", config.feed_forward),
        ("attention.head_count", config.heads),
        ("attention.head_count_kv", config.kv_heads),
    ] {
        writer.say_number(&format!("llama.{key}"), number);
    }
    writer.say("llama.attention.layer_norm_rms_epsilon", 6, &config.norm_epsilon.to_le_bytes());
    let mut random = SplitMix64::new(3);
    let mut add = |name: &str, dimensions: &[usize]| {
        let numbers = (0..dimensions.iter().product()).map(|_| random.unit() - 0.5);
        let data: Vec<u8> = numbers.flat_map(f32::to_le_bytes).collect();
        writer.add(name, dimensions, 0, &data);
    };
    let (hidden, kv_dim) = (config.hidden, config.kv_dim());
    let q_dim = config.heads * config.head_dim;
    add("token_embd.weight", &[hidden, config.vocabulary]);
    add("output_norm.weight", &[hidden]);
    for layer in 0..config.layers() {
        for (part, dimensions) in [
            ("attn_norm", &[hidden][..]),
            ("attn_q", &[hidden, q_dim]),
            ("attn_k", &[hidden, kv_dim]),
            ("attn_v", &[hidden, kv_dim]),
            ("attn_output", &[q_dim, hidden]),
            ("ffn_norm", &[hidden]),
            ("ffn_gate", &[hidden, config.feed_forward]),
            ("ffn_up", &[hidden, config.feed_forward]),
            ("ffn_down", &[config.feed_forward, hidden]),
        ] {
            add(&format!("blk.{layer}.{part}.weight"), dimensions);
        }
    }
    change(&mut writer);
    writer.finish()
}

#[test]
fn a_model_is_what_its_file_says() {
    let config = ModelConfig { head_dim: 8, ..ModelConfig::tiny() };
    let (model, vocabulary) = Model::from_gguf_bytes(&file_of(&config, |_| {})).unwrap();
    assert_eq!(model.config(), &config);
    assert!(vocabulary.is_none() && model.head.is_none());
    let mut random = SplitMix64::new(3);
    assert_eq!(model.embedding.row(0)[0].to_bits(), (random.unit() - 0.5).to_bits());
    assert_eq!(model.layers.len(), 2);
}

#[track_caller]
fn check(change: impl FnOnce(&mut Writer), expected: &str) {
    let error = Model::from_gguf_bytes(&file_of(&ModelConfig::tiny(), change)).unwrap_err();
    assert!(error.to_string().contains(expected), "{error}");
}

#[test]
fn what_this_engine_does_not_do_is_refused() {
    check(
        |writer| writer.say_text("general.architecture", "mamba"),
        "general.architecture is Text(\"mamba\")",
    );
    check(|writer| writer.say_text("llama.rope.scaling.type", "yarn"), "yarn");
    check(|writer| writer.say_number("llama.rope.dimension_count", 4), "llama.rope.dimension_count");
    check(|writer| writer.say_number("llama.block_count", 3), "there is no blk.2.attn_norm.weight");
    check(|writer| writer.say_number("llama.block_count", 1 << 20), "llama.block_count");
    check(|writer| writer.say_number("llama.attention.head_count", 0), "heads of the model");
    check(
        |writer| writer.say_text("llama.embedding_length", "32"),
        "llama.embedding_length is not of a type",
    );
    check(|writer| writer.add("output_norm.weight", &[31], 0, &[0; 124]), "output_norm.weight is [31]");
    check(|writer| writer.add("output_norm.weight", &[32], 12, &[0; 124]), "type 12");
    check(|writer| writer.add("output_norm.weight", &[32], 0, &[0; 90]), "not whole in the file");
    check(|writer| writer.say("general.alignment", 4, &5u32.to_le_bytes()), "general.alignment");
    check(|writer| writer.say("list", 9, &[9, 0, 0, 0, 255, 255, 255, 255, 0, 0, 0, 0]), "elements");
}

#[test]
fn a_file_that_is_cut_or_disturbed_is_an_error_and_nothing_else() {
    let file = file_of(&ModelConfig { windows: vec![None], ..ModelConfig::tiny() }, |writer| {
        writer.say_text("tokenizer.ggml.model", "gpt2");
    });
    let head = file.len() - 40_000;
    for len in (0..head).step_by(7) {
        assert!(Model::from_gguf_bytes(&file[..len]).is_err(), "cut to {len} bytes");
    }
    let mut random = SplitMix64::new(11);
    let mut refused = 0;
    for _ in 0..2_000 {
        let mut file = file.clone();
        for _ in 0..3 {
            let at = usize::try_from(random.below(1_400)).unwrap();
            file[at] = u8::try_from(random.below(256)).unwrap();
        }
        refused += u32::from(Model::from_gguf_bytes(&file).is_err());
    }
    assert!(refused > 1_000, "{refused}");
    let not_gguf = Model::from_gguf_bytes(b"GGML").unwrap_err();
    assert!(matches!(not_gguf, ModelError::Gguf(GgufError::NotGguf)), "{not_gguf}");
}
