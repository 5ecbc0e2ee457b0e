//! Random runs: arrivals, shared prefixes, aborts, preemptions, resets; without offloading, and with everything that can
//! go wrong with it.

#[path = "../support/connected.rs"]
mod connected;
mod moody;
#[path = "../support/mod.rs"]
mod support;
mod weather;

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use connected::Kvo;
use kvo_core::RequestId;
use kvo_mini_engine::{
    Engine, EngineOptions, FinishReason, Hits, KvLayout, Model, NewRequest, NoOffload, Offload, Output,
    Sampling, SplitMix64,
};
use support::{TINY, WINDOW, alone, check_answer, check_empty, engine, options, tokens};
use weather::Weather;

/// Without offloading, and with it.
const RUNS_WITHOUT: u64 = 24;
const RUNS: u64 = 200;
/// Steps in which something may happen.
const STEPS: usize = 30;

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
    layered_loads: u64,
    resets: u64,
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
    layered_loads: usize,
    resets: u64,
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
        Run {
            seed,
            random,
            model,
            engine,
            stems,
            asked: BTreeMap::new(),
            outputs: Vec::new(),
            layered_loads: 0,
            resets: 0,
        }
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.random.below(bound as u64)).unwrap()
    }

    /// Up to 90 tokens of prompt and 30 of answer.
    fn request(&mut self) -> NewRequest {
        let mut prompt = Vec::new();
        if !self.asked.is_empty() && self.below(2) == 0 {
            // One that there was before, as it was or longer.
            let nth = self.below(self.asked.len());
            prompt.clone_from(&self.asked.values().nth(nth).unwrap().prompt);
        } else if self.below(4) > 0 {
            let stem = self.below(self.stems.len());
            let len = self.below(self.stems[stem].len() + 1);
            prompt.extend_from_slice(&self.stems[stem][..len]);
        }
        let own = (1 + self.below(35)).min(90 - prompt.len());
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
            4 if self.below(6) == 0 => {
                self.engine.reset();
                self.resets += 1;
            }
            5..8 => self.engine.forget_device(),
            _ => {}
        }
        self.step();
    }

    fn step(&mut self) {
        let report = self.engine.step().unwrap_or_else(|error| panic!("seed {}: {error}", self.seed));
        self.layered_loads += report.layered_loads;
        self.outputs.extend(report.finished);
        self.engine.assert_consistent();
    }

    /// Runs to the end, whatever `also` does besides, and checks every answer; the engine is given back.
    fn check(mut self, met: &mut Met, mut also: impl FnMut(&mut Engine<O>)) -> Engine<O> {
        for _ in 0..STEPS {
            also(&mut self.engine);
            self.act();
        }
        let context = format!("seed {}", self.seed);
        let until = Instant::now() + Duration::from_secs(20);
        while !self.engine.is_idle() {
            assert!(
                Instant::now() < until,
                "{context}: {} requests wait for ever",
                self.engine.num_requests()
            );
            self.step();
        }
        check_empty(&self.engine, &context);
        assert_eq!(self.outputs.len(), self.asked.len(), "{context}: each request is answered once");
        met.layered_loads += self.layered_loads as u64;
        met.resets += self.resets;
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
fn seeds(usual: u64) -> (std::ops::Range<u64>, bool) {
    let number = |name: &str| std::env::var(name).ok().map(|number| number.parse::<u64>().unwrap());
    let runs = number("KVO_MINI_RUNS").unwrap_or(usual);
    let replayed = number("KVO_MINI_SEED");
    (replayed.map_or(0..runs, |seed| seed..seed + 1), replayed.is_none() && runs >= usual)
}

#[test]
fn answers_never_depend_on_traffic() {
    let mut met = Met::default();
    let (seeds, all) = seeds(RUNS_WITHOUT);
    for seed in seeds {
        eprintln!("KVO_MINI_SEED={seed}");
        Run::<NoOffload>::new(seed, engine).check(&mut met, |_| ());
    }
    eprintln!("{met:?}");
    let Met { answers, aborted, preemptions, device_tokens, stopped, .. } = met;
    let saw_all = answers > 300 && aborted > 20 && preemptions > 20 && device_tokens > 1000 && stopped > 20;
    assert!(saw_all || !all);
}

/// What kvo met over all runs.
#[derive(Debug, Default)]
struct Seen {
    loads: u64,
    loads_failed: u64,
    stores: u64,
    stores_failed: u64,
    late: u64,
    waits: u64,
    asked_again: u64,
    patience_ended: u64,
    refused: u64,
    evicted: u64,
    promoted: u64,
    tier_jobs_failed: u64,
    tier_jobs_rejected: u64,
    tier_jobs_late: u64,
    /// Copies that the device held on to for a while.
    held: u64,
}

impl Seen {
    /// Nothing is left over, and adds what there was.
    fn take(&mut self, engine: &Engine<Kvo>, context: &str) {
        let connector = engine.offload().connector();
        let stats = connector.stats();
        let left = (stats.open_requests, stats.open_copies, stats.blocks_in_use);
        assert_eq!(left, (0, 0, 0), "{context}: requests, copies, blocks");
        connector.manager().primary().assert_consistent();
        let counts = connector.counts();
        assert!(counts.add_up() && counts.pending == 0 && counts.pinned == 0, "{context}: {counts:?}");
        let tiering = connector.manager().stats();
        assert_eq!((tiering.open_requests, tiering.primary.open_jobs), (0, 0), "{context}");
        assert_eq!(tiering.primary.parked_slots, 0, "{context}");
        self.loads += stats.loads;
        self.loads_failed += stats.loads_failed;
        self.stores += stats.stores;
        self.stores_failed += stats.stores_failed;
        self.late += stats.copies_late;
        self.waits += stats.waits;
        self.asked_again += stats.asked_again;
        self.patience_ended += stats.patience_ended;
        self.refused += stats.offers_refused;
        self.evicted += tiering.primary.chunks_evicted;
        self.promoted += tiering.primary.chunks_promoted;
        for tier in &tiering.tiers {
            assert_eq!((tier.active_jobs, tier.held_slots), (0, 0), "{context}: {}", tier.name);
            assert_eq!((tier.invalid_reports, tier.invalid_releases), (0, 0), "{context}: {}", tier.name);
            self.tier_jobs_failed += tier.read.jobs_failed + tier.written.jobs_failed;
            self.tier_jobs_rejected += tier.jobs_rejected;
            self.tier_jobs_late += tier.jobs_late;
        }
    }
}

#[test]
fn answers_never_depend_on_what_kvo_keeps_nor_on_its_failures() {
    let (mut met, mut seen) = (Met::default(), Seen::default());
    let (seeds, all) = seeds(RUNS);
    for seed in seeds {
        eprintln!("KVO_MINI_SEED={seed}");
        let mut weather = Weather::new(seed);
        let run = Run::<Kvo>::new(seed, |model, options| weather.engine(model, &options));
        let mut engine = run.check(&mut met, |engine| seen.held += weather.change(engine));
        // Slots that a tier holds are no pending work: it lets them go when it is asked.
        for _ in 0..1000 {
            if engine.offload().connector().manager().stats().tiers.iter().all(|tier| tier.held_slots == 0) {
                break;
            }
            engine.step().unwrap();
        }
        seen.take(&engine, &format!("seed {seed}"));
    }
    let counts = [
        ("answers", met.answers, 1000),
        ("aborted", met.aborted, 50),
        ("preemptions", met.preemptions, 50),
        ("resets", met.resets, 30),
        ("tokens loaded", met.loaded_tokens, 5000),
        ("tokens failed", met.failed_tokens, 200),
        ("by layer", met.layered_loads, 50),
        ("loads", seen.loads, 200),
        ("loads failed", seen.loads_failed, 10),
        ("stores", seen.stores, 1000),
        ("stores failed", seen.stores_failed, 50),
        ("late", seen.late, 1),
        ("waits", seen.waits, 20),
        ("held", seen.held, 1),
        ("asked again", seen.asked_again, 100),
        ("patience ended", seen.patience_ended, 1),
        ("refused", seen.refused, 5),
        ("evicted", seen.evicted, 500),
        ("promoted", seen.promoted, 100),
        ("failed in a tier", seen.tier_jobs_failed, 20),
        ("rejected by a tier", seen.tier_jobs_rejected, 20),
        ("late in a tier", seen.tier_jobs_late, 5),
    ];
    eprintln!("{counts:?}");
    for (name, count, least) in counts {
        assert!(count >= least || !all, "{count} {name}");
    }
}
