//! `kvo_synth`: generated traffic that is the same on every machine.
//!
//! A mix of chat sessions that grow turn by turn, tool calls under three shared prompts, and questions about 200
//! shared documents of uneven popularity. Integers only.

use std::collections::HashMap;

use super::{Trace, TraceRequest};

/// Tokens a block of generated traffic.
pub const SYNTH_BLOCK_TOKENS: u32 = 512;

const ARRIVAL_STEP_US: u64 = 300_000;
const OUTPUT_TOKENS: u32 = 100;
/// A session that has this many blocks ends.
const SESSION_BLOCKS_MAX: usize = 120;
/// How far back, in sessions, a user comes back.
const SESSIONS_REACH: u64 = 64;
const TOOL_PREFIX_BLOCKS: [u32; 3] = [12, 5, 20];
const DOCUMENTS: u64 = 200;

/// Generates `requests` requests from `seed`: one every 300 ms, 100 output tokens each, no partial blocks.
///
/// ```
/// let trace = kvo_bench::kvo_synth(400, 7);
/// assert_eq!(trace.num_accesses(), 7_954);
/// assert_eq!(trace.fingerprint().to_string(), "3f0f58a6b2df40e9");
/// ```
pub fn kvo_synth(requests: u32, seed: u64) -> Trace {
    let mut traffic = Traffic::new(seed);
    let mut trace = Trace {
        name: format!("synth:{requests}:{seed}"),
        block_tokens: SYNTH_BLOCK_TOKENS,
        requests: Vec::new(),
        num_unique: 0,
    };
    for index in 0..requests {
        let blocks = traffic.next_request();
        trace.requests.push(TraceRequest {
            arrival_us: ARRIVAL_STEP_US * u64::from(index),
            // A request has at most 119 + 6 blocks.
            input_tokens: SYNTH_BLOCK_TOKENS * u32::try_from(blocks.len()).unwrap_or(u32::MAX),
            output_tokens: OUTPUT_TOKENS,
            blocks,
        });
    }
    trace.num_unique = traffic.next_block;
    trace
}

/// Shared prefixes, made at first use.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Shared {
    System,
    Tool(u64),
    Document(u64),
}

struct Traffic {
    random: SplitMix64,
    next_block: u32,
    shared: HashMap<Shared, Vec<u32>>,
    /// Open sessions, the newest last.
    sessions: Vec<Vec<u32>>,
}

impl Traffic {
    fn new(seed: u64) -> Self {
        Self {
            random: SplitMix64 { state: seed },
            next_block: 0,
            shared: HashMap::new(),
            sessions: Vec::new(),
        }
    }

    /// The blocks of the next request. The order of the draws is part of the definition.
    fn next_request(&mut self) -> Vec<u32> {
        match self.random.below(100) {
            0..45 => self.chat(),
            45..78 => self.tool(),
            _ => self.document(),
        }
    }

    fn chat(&mut self) -> Vec<u32> {
        let continues = self.random.below(100) < 60;
        let blocks = if continues && !self.sessions.is_empty() {
            let reach = SESSIONS_REACH.min(self.sessions.len() as u64);
            let from_newest = self.lower_of_two(reach);
            let mut blocks = self.sessions.remove(self.sessions.len() - 1 - index(from_newest));
            self.append_fresh(&mut blocks, 6);
            blocks
        } else {
            let mut blocks = self.shared(Shared::System, 1);
            self.append_fresh(&mut blocks, 16);
            blocks
        };
        if blocks.len() < SESSION_BLOCKS_MAX {
            self.sessions.push(blocks.clone());
        }
        blocks
    }

    fn tool(&mut self) -> Vec<u32> {
        let kind = self.random.below(TOOL_PREFIX_BLOCKS.len() as u64);
        let mut blocks = self.shared(Shared::Tool(kind), TOOL_PREFIX_BLOCKS[index(kind)]);
        self.append_fresh(&mut blocks, 4);
        blocks
    }

    fn document(&mut self) -> Vec<u32> {
        let document = self.lower_of_two(DOCUMENTS);
        // At most 8 + 55.
        let len = u32::try_from(8 + 37 * document % 56).unwrap_or(u32::MAX);
        let mut blocks = self.shared(Shared::Document(document), len);
        self.append_fresh(&mut blocks, 2);
        blocks
    }

    fn lower_of_two(&mut self, bound: u64) -> u64 {
        let first = self.random.below(bound);
        first.min(self.random.below(bound))
    }

    fn shared(&mut self, which: Shared, len: u32) -> Vec<u32> {
        let next_block = &mut self.next_block;
        self.shared.entry(which).or_insert_with(|| fresh(next_block, len)).clone()
    }

    /// Appends between 1 and `at_most` blocks that no request had before.
    fn append_fresh(&mut self, blocks: &mut Vec<u32>, at_most: u64) {
        let len = u32::try_from(1 + self.random.below(at_most)).unwrap_or(u32::MAX);
        blocks.extend(fresh(&mut self.next_block, len));
    }
}

fn fresh(next_block: &mut u32, len: u32) -> Vec<u32> {
    let first = *next_block;
    // Below 2^25 requests of at most 65 new blocks; further up the numbers would stay at the end of their range.
    *next_block = first.saturating_add(len);
    (first..*next_block).collect()
}

fn index(drawn: u64) -> usize {
    usize::try_from(drawn).expect("draws are bounded by small numbers")
}

/// Vigna's splitmix64.
struct SplitMix64 {
    state: u64,
}

impl SplitMix64 {
    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`: the high half of the 128-bit product.
    fn below(&mut self, bound: u64) -> u64 {
        let product = u128::from(self.next()) * u128::from(bound);
        u64::try_from(product >> 64).expect("the high half of 128 bits fits 64")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(requests: u32, seed: u64, accesses: u64, unique: u32, fingerprint: &str) {
        let trace = kvo_synth(requests, seed);
        assert_eq!(trace.requests.len(), requests as usize);
        assert_eq!(trace.num_accesses(), accesses);
        assert_eq!(trace.num_unique, unique);
        assert_eq!(trace.fingerprint().to_string(), fingerprint);
    }

    #[test]
    fn the_published_fingerprints_come_out() {
        check(400, 7, 7_954, 3_540, "3f0f58a6b2df40e9");
        check(4000, 42, 78_561, 20_789, "5b00e221975d7d3b");
    }

    #[test]
    fn blocks_are_numbered_by_first_appearance() {
        let mut next = 0;
        for request in &kvo_synth(500, 3).requests {
            for &block in &request.blocks {
                assert!(block <= next, "block {block} came before block {next}");
                next = next.max(block + 1);
            }
        }
    }

    #[test]
    fn a_block_has_one_parent_and_one_position() {
        let trace = kvo_synth(1000, 11);
        let mut seen = HashMap::new();
        for request in &trace.requests {
            let mut parent = None;
            for (position, &block) in request.blocks.iter().enumerate() {
                assert_eq!(*seen.entry(block).or_insert((parent, position)), (parent, position));
                parent = Some(block);
            }
        }
        assert_eq!(seen.len(), trace.num_unique as usize);
    }

    #[test]
    fn arrivals_and_lengths_are_as_defined() {
        let trace = kvo_synth(3, 1);
        let arrivals: Vec<_> = trace.requests.iter().map(|request| request.arrival_us).collect();
        assert_eq!(arrivals, [0, 300_000, 600_000]);
        for request in &trace.requests {
            assert_eq!(request.input_tokens as usize, 512 * request.blocks.len());
            assert_eq!(request.output_tokens, 100);
        }
    }
}
