use std::collections::HashMap;

use super::*;
use crate::kvo_synth;

const SERVICE: ServiceTime = ServiceTime {
    base: VirtualTime { us: 500_000 },
    uncached_token: VirtualTime { us: 50 },
    output_token: VirtualTime { us: 20_000 },
};
const A_SECOND: ServiceTime = ServiceTime {
    base: VirtualTime { us: 1_000_000 },
    uncached_token: VirtualTime { us: 0 },
    output_token: VirtualTime { us: 0 },
};

fn trace(requests: &[(u64, &[u32])]) -> Trace {
    let num_unique = requests.iter().flat_map(|(_, blocks)| *blocks).max().map_or(0, |max| max + 1);
    let request = |(ms, blocks): &(u64, &[u32])| TraceRequest {
        arrival_us: 1000 * ms,
        blocks: blocks.to_vec(),
        ..TraceRequest::default()
    };
    Trace {
        name: "test".to_owned(),
        block_tokens: 512,
        requests: requests.iter().map(request).collect(),
        num_unique,
    }
}

fn run(trace: &Trace, capacity: u32, service: ServiceTime) -> OverlapResult {
    run_overlap(trace, PolicyKind::Lru, capacity, service, Refused::Drop, || ControlFlow::Continue(()))
        .unwrap()
}

#[test]
fn blocks_can_be_hit_once_their_request_has_finished() {
    // The second comes while the first runs, the third at the moment at which it ends.
    let result = run(&trace(&[(0, &[0, 1]), (999, &[0, 1]), (1000, &[0, 1])]), 8, A_SECOND);
    assert_eq!((result.hits, result.inserts, result.in_flight_peak), (2, 2, 2));
}

#[test]
fn what_a_running_request_found_is_not_evicted_and_offers_may_be_refused() {
    // 0 and 1 are resident from 1 s on, and pinned from 2.5 s to 3.5 s: the store of 2 and 3 at 3 s has no room.
    // At 4 s it would have; the last request finds nothing of it.
    let requests: &[(u64, &[u32])] = &[(0, &[0, 1]), (2000, &[2, 3]), (2500, &[0, 1]), (5000, &[2, 3])];
    let result = run(&trace(requests), 2, A_SECOND);
    assert_eq!((result.hits, result.inserts, result.evictions), (2, 4, 2));
    assert_eq!((result.offers_refused, result.chunks_refused, result.pinned_peak), (1, 2, 2));
}

#[test]
fn a_shortened_offer_stores_the_head_that_there_is_room_for() {
    // As above with a third slot: it is free, and 2 is stored without 3.
    let requests: &[(u64, &[u32])] = &[(0, &[0, 1]), (2000, &[2, 3]), (2500, &[0, 1]), (5000, &[2, 3])];
    let refused = |refused| {
        let go = || ControlFlow::Continue(());
        let result = run_overlap(&trace(requests), PolicyKind::Lru, 3, A_SECOND, refused, go).unwrap();
        (result.hits, result.offers_refused, result.chunks_refused)
    };
    assert_eq!(refused(Refused::Shorten), (3, 1, 1));
    assert_eq!(refused(Refused::Drop), (2, 1, 2));
}

#[test]
fn a_request_runs_longer_for_what_it_did_not_find() {
    let request = TraceRequest { input_tokens: 1000, output_tokens: 10, ..TraceRequest::default() };
    assert_eq!(SERVICE.of(&request, 0), 500_000 + 50_000 + 200_000);
    assert_eq!(SERVICE.of(&request, 512), 500_000 + 24_400 + 200_000);
}

#[test]
fn requests_that_never_overlap_are_model_r() {
    let mut trace = kvo_synth(300, 3);
    for (at, request) in (0..).zip(&mut trace.requests) {
        request.arrival_us = at * 1_000_000_000;
    }
    for policy in ["lru", "arc", "aslru", "s3fifo", "fifo"] {
        let policy: PolicyKind = policy.parse().unwrap();
        let overlap =
            run_overlap(&trace, policy, 200, SERVICE, Refused::Drop, || ControlFlow::Continue(())).unwrap();
        let alone = crate::run_model_r(&trace, policy, 200, || ControlFlow::Continue(())).unwrap();
        assert_eq!(
            (overlap.hits, overlap.inserts, overlap.evictions, overlap.in_flight_peak),
            (alone.hits, alone.inserts, alone.evictions, 1)
        );
    }
}

#[test]
fn a_block_named_twice_in_a_request_is_pinned_once() {
    let result = run(&trace(&[(0, &[0, 1, 0]), (2000, &[0, 1, 0])]), 4, A_SECOND);
    assert_eq!((result.hits, result.pinned_peak), (3, 2));
}

/// The same model by the plainest means: blocks in a list, the next to go first.
#[derive(Default)]
struct Naive {
    capacity: usize,
    recency: Vec<u32>,
    pins: HashMap<u32, u32>,
    running: Vec<(u64, usize, usize)>,
    hits: u64,
    chunks_refused: u64,
    in_flight_peak: usize,
}

impl Naive {
    fn run(trace: &Trace, capacity: usize) -> Self {
        let mut naive = Self { capacity, ..Self::default() };
        for (number, request) in trace.requests.iter().enumerate() {
            naive.finish_until(trace, request.arrival_us);
            let is_hit = |block: &&u32| naive.recency.contains(block);
            let hits = request.blocks.iter().take_while(is_hit).count();
            for block in &request.blocks[..hits] {
                *naive.pins.entry(*block).or_default() += 1;
            }
            let duration = SERVICE.of(request, request.tokens_of(hits, trace.block_tokens));
            naive.running.push((request.arrival_us + duration, number, hits));
            naive.hits += hits as u64;
            naive.in_flight_peak = naive.in_flight_peak.max(naive.running.len());
        }
        naive.finish_until(trace, u64::MAX);
        naive
    }

    fn finish_until(&mut self, trace: &Trace, now_us: u64) {
        self.running.sort_unstable();
        while self.running.first().is_some_and(|(finish_us, ..)| *finish_us <= now_us) {
            let (_, number, hits) = self.running.remove(0);
            self.finish(&trace.requests[number].blocks, hits);
        }
    }

    fn finish(&mut self, blocks: &[u32], hits: usize) {
        for block in &blocks[..hits] {
            *self.pins.get_mut(block).unwrap() -= 1;
        }
        let offer = &blocks[..blocks.len().min(self.capacity)];
        let missing: Vec<_> = offer.iter().filter(|block| !self.recency.contains(block)).copied().collect();
        let may_go = |block: &u32| !offer.contains(block) && self.pins.get(block).is_none_or(|n| *n == 0);
        let needed = (self.recency.len() + missing.len()).saturating_sub(self.capacity);
        let victims: Vec<_> = self.recency.iter().copied().filter(may_go).take(needed).collect();
        if victims.len() < needed {
            self.chunks_refused += missing.len() as u64;
        } else {
            self.recency.retain(|block| !victims.contains(block));
            self.recency.extend(missing);
        }
        for block in offer.iter().rev() {
            if let Some(at) = self.recency.iter().position(|other| other == block) {
                self.recency.remove(at);
                self.recency.push(*block);
            }
        }
    }
}

#[test]
fn lru_is_what_the_plainest_model_gives() {
    for seed in 0..6 {
        let mut trace = kvo_synth(250, seed);
        // Requests of many lengths, arrivals that coincide.
        for (at, request) in (0..).zip(&mut trace.requests) {
            request.arrival_us = at / 3 * 100_000 * (1 + seed);
            request.output_tokens = u32::try_from(at * 37 % 90).unwrap();
        }
        for capacity in [40, 150, 600] {
            let result = run(&trace, capacity, SERVICE);
            let naive = Naive::run(&trace, capacity as usize);
            assert_eq!(
                (result.hits, result.chunks_refused, result.in_flight_peak),
                (naive.hits, naive.chunks_refused, naive.in_flight_peak),
                "seed {seed}, capacity {capacity}"
            );
            assert!(capacity > 40 || result.offers_refused > 0, "pins are to be in the way");
        }
    }
}

#[test]
fn times_are_milliseconds_down_to_a_microsecond() {
    let parsed = |text: &str| text.parse::<VirtualTime>().map(|time| time.us);
    assert_eq!(["500", "0.05", "0", "1.001"].map(|text| parsed(text).unwrap()), [500_000, 50, 0, 1001]);
    for text in ["", "-1", "0.0001", "1e9", "nan", "soon"] {
        let error = parsed(text).unwrap_err().to_string();
        assert!(error.starts_with(&format!("{text:?} is no time")), "{error}");
    }
    assert_eq!(VirtualTime { us: 50 }.to_string(), "0.05");
}
