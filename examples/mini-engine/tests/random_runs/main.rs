//! Random runs: arrivals, shared prefixes, aborts, preemptions, resets; without offloading, and with one that fails.

mod keeper;
#[path = "../support/mod.rs"]
mod support;

use std::{collections::BTreeMap, sync::Arc};

use keeper::{Keeper, Seen, Slots};
use kvo_core::RequestId;
use kvo_cuda::LinkModel;
use kvo_mini_engine::{
    Engine, EngineOptions, FinishReason, Hits, KvLayout, Model, NewRequest, NoOffload, Offload, Output,
    Sampling, SplitMix64,
};
use support::{TINY, WINDOW, alone, check_answer, check_empty, engine, options, tokens};

const RUNS: u64 = 24;

/// What all runs met, so that none of it is missing unnoticed.
#[derive(Debug, Default)]
struct Met {
    answers: u64,
    aborted: u64,
    preemptions: u64,
    device_tokens: u64,
    stopped: u64,
    loaded_tokens: u64,
    failed_tokens: u64,
}

struct Run<O> {
    seed: u64,
    random: SplitMix64,
    model: Arc<Model>,
    engine: Engine<O>,
    /// Prefixes that several requests have.
    stems: Vec<Vec<u32>>,
    asked: BTreeMap<RequestId, NewRequest>,
    outputs: Vec<Output>,
}

impl<O: Offload> Run<O> {
    fn new(seed: u64, make: impl FnOnce(&Arc<Model>, EngineOptions) -> Engine<O>) -> Self {
        let mut random = SplitMix64::stream(0x6d69_6e69, seed);
        let mut pick =
            |choices: &[u32]| choices[usize::try_from(random.below(choices.len() as u64)).unwrap()];
        let options = EngineOptions {
            block_tokens: pick(&[1, 4, 8, 16]),
            num_blocks: 0,
            step_tokens: pick(&[1, 5, 16, 33, 100]),
            requests_max: pick(&[1, 3, 8, 20]) as usize,
            threads: pick(&[1, 1, 1, 1, 1, 1, 1, 2]) as usize,
            layout: if pick(&[0, 1]) == 0 { KvLayout::LayerFirst } else { KvLayout::BlockFirst },
            block_seed: Some(seed),
            ..options()
        };
        // From hardly more than the longest request needs to plenty.
        let num_blocks = (120 * pick(&[10, 12, 15, 40]) / 10).div_ceil(options.block_tokens) + 1;
        let model = if pick(&[0, 1]) == 0 { &TINY } else { &WINDOW };
        let (model, engine) = (Arc::clone(model), make(model, EngineOptions { num_blocks, ..options }));
        let stems = (0..3).map(|nth| tokens(&mut random, 15 + nth * 20)).collect();
        Run { seed, random, model, engine, stems, asked: BTreeMap::new(), outputs: Vec::new() }
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.random.below(bound as u64)).unwrap()
    }

    /// Up to 90 tokens of prompt and 30 of answer.
    fn request(&mut self) -> NewRequest {
        let mut prompt = Vec::new();
        if self.below(4) > 0 {
            let stem = self.below(self.stems.len());
            let len = self.below(self.stems[stem].len() + 1);
            prompt.extend_from_slice(&self.stems[stem][..len]);
        }
        let own = 1 + self.below(35);
        prompt.extend(tokens(&mut self.random, own));
        let sampling = match self.below(2) {
            0 => Sampling::Greedy,
            _ => Sampling::Seeded { seed: self.random.next_u64(), temperature: 1.0 },
        };
        let stop = if self.below(3) == 0 { (0..10).collect() } else { Vec::new() };
        let max_tokens = u32::try_from(1 + self.below(30)).unwrap();
        NewRequest { sampling, stop, salt: self.random.below(4) / 3, ..NewRequest::new(prompt, max_tokens) }
    }

    fn act(&mut self) {
        match self.below(10) {
            0..3 => {
                for _ in 0..=self.below(3) {
                    let request = self.request();
                    let id = self.engine.add(request.clone()).unwrap();
                    self.asked.insert(id, request);
                }
            }
            3 if !self.asked.is_empty() => {
                let nth = self.below(self.asked.len());
                let id = *self.asked.keys().nth(nth).unwrap();
                self.outputs.extend(self.engine.abort(id));
            }
            4 if self.below(4) == 0 => self.engine.reset(),
            _ => {}
        }
        self.outputs.extend(self.engine.step().unwrap().finished);
        self.engine.assert_consistent();
    }

    /// Runs to the end and checks every answer; the engine is given back.
    fn check(mut self, met: &mut Met) -> Engine<O> {
        for _ in 0..60 {
            self.act();
        }
        self.outputs.extend(self.engine.run().unwrap());
        let context = format!("seed {}", self.seed);
        check_empty(&self.engine, &context);
        assert_eq!(self.outputs.len(), self.asked.len(), "{context}: each request is answered once");
        for output in &self.outputs {
            let request = self.asked.remove(&output.request).expect("answered once");
            check_answer(
                output,
                &alone(&self.model, request),
                &format!("{context}, request {}", output.request),
            );
            let Hits { preemptions, device_tokens, loaded_tokens, failed_tokens, .. } = output.hits;
            met.answers += 1;
            met.aborted += u64::from(output.reason == FinishReason::Aborted);
            met.stopped += u64::from(output.reason == FinishReason::Stop);
            met.preemptions += u64::from(preemptions);
            met.device_tokens += device_tokens;
            met.loaded_tokens += loaded_tokens;
            met.failed_tokens += failed_tokens;
        }
        self.engine
    }
}

/// The seeds to run, and whether they are enough to meet everything: `KVO_MINI_SEED` replays one, `KVO_MINI_RUNS`
/// asks for so many.
fn seeds() -> (std::ops::Range<u64>, bool) {
    let number = |name: &str| std::env::var(name).ok().map(|number| number.parse::<u64>().unwrap());
    let runs = number("KVO_MINI_RUNS").unwrap_or(RUNS);
    let replayed = number("KVO_MINI_SEED");
    (replayed.map_or(0..runs, |seed| seed..seed + 1), replayed.is_none() && runs >= RUNS)
}

#[test]
fn answers_never_depend_on_traffic() {
    let mut met = Met::default();
    let (seeds, all) = seeds();
    for seed in seeds {
        eprintln!("KVO_MINI_SEED={seed}");
        Run::<NoOffload>::new(seed, engine).check(&mut met);
    }
    eprintln!("{met:?}");
    let Met { answers, aborted, preemptions, device_tokens, stopped, .. } = met;
    let saw_all = answers > 500 && aborted > 20 && preemptions > 50 && device_tokens > 1000 && stopped > 20;
    assert!(saw_all || !all);
}

#[test]
fn answers_never_depend_on_what_was_kept_elsewhere_nor_on_its_failures() {
    let (mut met, mut seen) = (Met::default(), Vec::new());
    let (seeds, all) = seeds();
    for seed in seeds {
        eprintln!("KVO_MINI_SEED={seed}");
        let make = |model: &Arc<Model>, options: EngineOptions| {
            // So few that chunks are evicted all the time, or enough for all of a run.
            let num_slots = if seed % 4 == 0 { 40 } else { 2000 };
            let slots = Slots::new(num_slots, 4096);
            // So slow that stores are often not over when their blocks are given out again, or as fast as it goes.
            let slow = LinkModel { transfer_us: 300.0, ..LinkModel::new(1.0) };
            let options = EngineOptions { link: (seed % 3 == 0).then_some(slow), ..options };
            Engine::new(Arc::clone(model), options, slots, Keeper::new(num_slots, seed)).unwrap()
        };
        let engine = Run::<Keeper>::new(seed, make).check(&mut met);
        engine.offload().assert_quiet();
        seen.push(engine.offload().seen);
    }
    let sum = |of: fn(&Seen) -> u64| seen.iter().map(of).sum::<u64>();
    let counts = [
        ("stored", sum(|seen| seen.stored), 500),
        ("loaded", sum(|seen| seen.loaded), 200),
        ("failed", sum(|seen| seen.failed), 5),
        // Whether a deadline falls within a copy is chance.
        ("held", sum(|seen| seen.held), 0),
        ("waited for", sum(|seen| seen.waited), 20),
        ("parked", sum(|seen| seen.parked), 5),
        ("evicted", sum(|seen| seen.evicted), 100),
        ("tokens loaded", met.loaded_tokens, 1000),
        ("tokens failed", met.failed_tokens, 100),
    ];
    eprintln!("{met:?} {counts:?}");
    for (name, count, least) in counts {
        assert!(count >= least || !all, "{count} {name}");
    }
}
