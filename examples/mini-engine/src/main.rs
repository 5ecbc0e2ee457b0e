//! `kvo-mini-engine`: prompts in, tokens and a hit report out.

#![forbid(unsafe_code)]

use std::{collections::BTreeMap, path::PathBuf, sync::Arc, time::Instant};

use anyhow::Context;
use clap::Parser;
use kvo_mini_engine::{
    Engine, EngineOptions, Hits, KvLayout, Model, ModelConfig, NewRequest, NoOffload, NoSlots, Output,
    Sampling, Vocabulary,
};

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
    /// Where KV data is kept besides the device. There is nothing but off yet.
    #[arg(long, default_value = "off", value_parser = only_off)]
    offload: String,
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

fn only_off(text: &str) -> Result<String, String> {
    match text {
        "off" => Ok(text.to_owned()),
        _ => Err("this program keeps KV data on the device alone: off is the only choice".to_owned()),
    }
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let (model, words) = load(&args)?;
    let layout = if args.block_first { KvLayout::BlockFirst } else { KvLayout::LayerFirst };
    let options = EngineOptions {
        block_tokens: args.block_tokens,
        num_blocks: args.blocks,
        layout,
        step_tokens: args.step_tokens,
        threads: args.threads,
        ..EngineOptions::default()
    };
    let mut engine = Engine::new(Arc::new(model), options, Arc::new(NoSlots), NoOffload)?;
    let prompts = prompts(&args, words.as_ref());
    anyhow::ensure!(!prompts.is_empty(), "there is no prompt: give --prompt or --tokens");
    for round in 1..=args.rounds {
        let started = Instant::now();
        let outputs = answer(&mut engine, &prompts, &args, words.as_ref())?;
        let seconds = started.elapsed().as_secs_f64();
        for (nth, output) in outputs.iter().enumerate() {
            print_answer(nth, output, words.as_ref());
        }
        print_report(round, &outputs, seconds);
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
fn answer(
    engine: &mut Engine,
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
         loaded {loaded_tokens}, preempted {preemptions} times"
    );
}

fn print_report(round: u32, outputs: &[Output], seconds: f64) {
    let sum = |of: fn(&Output) -> u64| outputs.iter().map(of).sum::<u64>();
    let computed = sum(|output| output.hits.computed_tokens);
    println!(
        "round {round}: {} answers, {} tokens generated; prompts {}, computed {computed}, found on the device {}, \
         loaded {}; {:.3} s, {:.0} tokens/s computed",
        outputs.len(),
        sum(|output| output.tokens.len() as u64),
        sum(|output| output.hits.prompt_tokens),
        sum(|output| output.hits.device_tokens),
        sum(|output| output.hits.loaded_tokens),
        seconds,
        computed as f64 / seconds,
    );
}
