//! `kvo-mini-engine`: prompts in, tokens and a hit report out.

#![forbid(unsafe_code)]

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::Context;
use clap::{Parser, ValueEnum};
use kvo_connector::{EngineIdentity, NvmeConfig, OffloadConfig, WorkerOptions};
use kvo_cuda::GroupLayout;
use kvo_mini_engine::{
    Connected, Engine, EngineOptions, Hits, KvCaches, KvLayout, Model, ModelConfig, NewRequest, NoOffload,
    Offload, Output, Sampling, Vocabulary,
};
use sha2::{Digest, Sha256};

/// Generates text with a small transformer on the CPU.
#[derive(Debug, Parser)]
#[command(version)]
struct Args {
    /// tiny, small or window, with random weights over bytes; or the path of a GGUF file.
    #[arg(long, default_value = "tiny")]
    model: String,
    /// Seed of random weights.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Which weights of the model these are, where it is trained on: what others of them have left is not used.
    #[arg(long, default_value_t = 0)]
    epoch: u64,
    /// Where KV data is kept besides the device.
    #[arg(long, value_enum, default_value = "off")]
    offload: Kept,
    /// Chunks that are kept in host memory.
    #[arg(long, default_value_t = 256)]
    cpu_chunks: u32,
    /// Where the store for cpu+nvme is, and stays. The directory must exist.
    #[arg(long, value_name = "DIR")]
    nvme_dir: Option<PathBuf>,
    /// Chunks of that store.
    #[arg(long, default_value_t = 1024)]
    nvme_chunks: u32,
    /// Which chunk goes first, in both: lru, arc, ylru, ..
    #[arg(long, default_value = "ylru")]
    policy: String,
    /// Blocks a chunk.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    blocks_per_chunk: u32,
    /// A TOML file that says where KV data is kept, instead of the options above but the last.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["offload", "nvme_dir"])]
    config: Option<PathBuf>,
    /// Computes layers as their loads arrive, instead of waiting for all of a load.
    #[arg(long)]
    by_layer: bool,
    /// Forgets after each round what the device has.
    #[arg(long)]
    forget_device: bool,
    /// A text to go on from; may be repeated.
    #[arg(long, value_name = "TEXT")]
    prompt: Vec<String>,
    /// Token numbers to go on from, with commas between; may be repeated.
    #[arg(long, value_name = "NUMBERS", value_parser = token_list)]
    tokens: Vec<TokenList>,
    /// Tokens to generate at most, for each prompt.
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..))]
    max_tokens: u32,
    /// Samples with this temperature, instead of taking the best token.
    #[arg(long)]
    temperature: Option<f32>,
    /// How often the prompts are answered, one round after the other.
    #[arg(long, default_value_t = 1)]
    rounds: u32,
    /// Blocks of each KV cache group.
    #[arg(long, default_value_t = 256)]
    blocks: u32,
    /// Tokens a block.
    #[arg(long, default_value_t = 16)]
    block_tokens: u32,
    /// Tokens that a step computes at most.
    #[arg(long, default_value_t = 256)]
    step_tokens: u32,
    /// Threads that compute.
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// Whether a block's layers lie together.
    #[arg(long)]
    block_first: bool,
}

#[derive(Clone, Debug)]
struct TokenList(Vec<u32>);

fn token_list(text: &str) -> Result<TokenList, std::num::ParseIntError> {
    text.split(',').map(|number| number.trim().parse()).collect::<Result<_, _>>().map(TokenList)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Kept {
    Off,
    Cpu,
    #[value(name = "cpu+nvme")]
    CpuNvme,
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let (model, words) = load(&args)?;
    let model = Arc::new(model);
    let layout = if args.block_first { KvLayout::BlockFirst } else { KvLayout::LayerFirst };
    let options = EngineOptions {
        block_tokens: args.block_tokens,
        num_blocks: args.blocks,
        layout,
        step_tokens: args.step_tokens,
        threads: args.threads,
        ..EngineOptions::default()
    };
    let prompts = prompts(&args, words.as_ref());
    anyhow::ensure!(!prompts.is_empty(), "there is no prompt: give --prompt or --tokens");
    let has_store = args.offload == Kept::CpuNvme;
    anyhow::ensure!(has_store || args.nvme_dir.is_none(), "--nvme-dir is for --offload cpu+nvme");
    if args.config.is_none() && args.offload == Kept::Off {
        let mut engine = Engine::new(model, options, NoOffload)?;
        return serve(&mut engine, &prompts, &args, words.as_ref(), |_| String::new());
    }
    let (offload, deadline) = offload(&args, &model, &options)?;
    let host = Arc::clone(offload.host());
    let worker = WorkerOptions { deadline, ..WorkerOptions::default() };
    let mut connected = Connected::new(offload.connector, host, worker);
    connected.by_layer = args.by_layer;
    let mut engine = Engine::new(model, options, connected)?;
    let chunk_tokens = args.block_tokens * args.blocks_per_chunk;
    let mut before = 0;
    serve(&mut engine, &prompts, &args, words.as_ref(), |engine| {
        let now = engine.offload().connector().manager().stats().primary.chunks_promoted;
        let promoted = now - std::mem::replace(&mut before, now);
        format!("promoted from NVMe {promoted} chunks of {chunk_tokens}, ")
    })
}

/// What the options, or a file, say of where KV data is kept; and how long a copy may take.
fn offload(
    args: &Args,
    model: &Model,
    options: &EngineOptions,
) -> anyhow::Result<(kvo_connector::Offload, Option<Duration>)> {
    let caches = KvCaches::plan(model.config(), options)?;
    let layout = caches.layout(args.blocks_per_chunk)?;
    let chunk_bytes = layout.groups().iter().map(GroupLayout::chunk_bytes).max().unwrap_or(0);
    let config = match &args.config {
        Some(path) => {
            let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
            toml::from_str(&text).with_context(|| path.display().to_string())?
        }
        None => config(args, chunk_bytes)?,
    };
    let groups = caches.group_options(args.blocks_per_chunk);
    let deadline = config.device.deadline_ms.map(Duration::from_millis);
    let identity = EngineIdentity::new(model_name(args)?, "f32", args.epoch);
    let offload =
        kvo_connector::Offload::builder(config, identity, layout, groups, args.block_tokens).build()?;
    Ok((offload, deadline))
}

fn config(args: &Args, chunk_bytes: u64) -> anyhow::Result<OffloadConfig> {
    let mut config = OffloadConfig::new(chunk_bytes * u64::from(args.cpu_chunks));
    config.cpu.policy.clone_from(&args.policy);
    config.cpu.huge_pages = false;
    if args.offload == Kept::CpuNvme {
        let dir = args.nvme_dir.as_ref().context("cpu+nvme needs --nvme-dir")?;
        let nvme = NvmeConfig::new(dir, chunk_bytes * u64::from(args.nvme_chunks));
        config.nvme = Some(NvmeConfig { policy: args.policy.clone(), ..nvme });
    }
    Ok(config)
}

/// What tells the chunks of this model from those of others: its seed, or what is in its file.
fn model_name(args: &Args) -> anyhow::Result<String> {
    Ok(match &*args.model {
        name @ ("tiny" | "small" | "window") => format!("{name}, seed {}", args.seed),
        path => format!("SHA-256 {:?}", Sha256::digest(std::fs::read(path)?)),
    })
}

fn serve<O: Offload>(
    engine: &mut Engine<O>,
    prompts: &[Vec<u32>],
    args: &Args,
    words: Option<&Vocabulary>,
    mut promoted: impl FnMut(&Engine<O>) -> String,
) -> anyhow::Result<()> {
    for round in 1..=args.rounds {
        let started = Instant::now();
        let outputs = answer(engine, prompts, args, words)?;
        let seconds = started.elapsed().as_secs_f64();
        for (nth, output) in outputs.iter().enumerate() {
            print_answer(nth, output, words);
        }
        print_report(round, &outputs, &promoted(engine), seconds);
        if args.forget_device {
            engine.forget_device();
        }
    }
    Ok(())
}

fn load(args: &Args) -> anyhow::Result<(Model, Option<Vocabulary>)> {
    let seeded = |config| Ok((Model::seeded(config, args.seed)?, None));
    match &*args.model {
        "tiny" => seeded(ModelConfig::tiny()),
        "small" => seeded(ModelConfig::small()),
        "window" => seeded(ModelConfig::window()),
        path => Model::from_gguf(&PathBuf::from(path))
            .with_context(|| format!("{path} is no model: tiny, small, window, or the path of a GGUF file")),
    }
}

/// The prompts as tokens: texts first. Without a vocabulary the bytes of a text are its tokens.
fn prompts(args: &Args, words: Option<&Vocabulary>) -> Vec<Vec<u32>> {
    let texts = args.prompt.iter().map(|text| match words {
        Some(words) => words.tokens(text),
        None => text.bytes().map(u32::from).collect(),
    });
    texts.chain(args.tokens.iter().map(|TokenList(tokens)| tokens.clone())).collect()
}

/// Answers all prompts at once; the outputs come in their order.
fn answer<O: Offload>(
    engine: &mut Engine<O>,
    prompts: &[Vec<u32>],
    args: &Args,
    words: Option<&Vocabulary>,
) -> anyhow::Result<Vec<Output>> {
    for (prompt, seed) in prompts.iter().zip(args.seed..) {
        let sampling =
            args.temperature.map_or(Sampling::Greedy, |temperature| Sampling::Seeded { seed, temperature });
        let stop = words.and_then(Vocabulary::end).into_iter().collect();
        engine.add(NewRequest { sampling, stop, ..NewRequest::new(prompt.clone(), args.max_tokens) })?;
    }
    let outputs = engine.run()?.into_iter().map(|output| (output.request, output));
    Ok(outputs.collect::<BTreeMap<_, _>>().into_values().collect())
}

fn print_answer(nth: usize, output: &Output, words: Option<&Vocabulary>) {
    let bytes = || output.tokens.iter().map(|&token| u8::try_from(token).unwrap_or(b'?')).collect::<Vec<_>>();
    let text = words.map(|words| words.text(&output.tokens));
    let text = text.unwrap_or_else(|| String::from_utf8_lossy(&bytes()).into_owned());
    println!("answer {nth}: {:?}", output.tokens);
    println!("  text: {text:?}");
    let Hits { prompt_tokens, computed_tokens, device_tokens, loaded_tokens, preemptions, .. } = output.hits;
    println!(
        "  prompt {prompt_tokens}, computed {computed_tokens}, found on the device {device_tokens}, \
         loaded from CPU {loaded_tokens}, preempted {preemptions} times"
    );
}

fn print_report(round: u32, outputs: &[Output], promoted: &str, seconds: f64) {
    let sum = |of: fn(&Output) -> u64| outputs.iter().map(of).sum::<u64>();
    let computed = sum(|output| output.hits.computed_tokens);
    println!(
        "round {round}: {} answers, {} tokens generated; prompts {}, computed {computed}, found on the device {}, \
         loaded from CPU {}, {promoted}failed {}; {:.3} s, {:.0} tokens/s computed",
        outputs.len(),
        sum(|output| output.tokens.len() as u64),
        sum(|output| output.hits.prompt_tokens),
        sum(|output| output.hits.device_tokens),
        sum(|output| output.hits.loaded_tokens),
        sum(|output| output.hits.failed_tokens),
        seconds,
        computed as f64 / seconds,
    );
}
