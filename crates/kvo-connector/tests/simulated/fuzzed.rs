//! The choices of a run by the bytes of a fuzzer's input: what the fuzzer `connector` runs.

use kvo_connector::GroupOptions;

use crate::{
    engine::{Engine, Setup},
    random::Random,
};

/// A run of a few steps with everything that can happen. Behind the end of the input its choices are those of a seed.
pub(crate) fn fuzzed(input: &[u8]) {
    let random = &mut Random::of_input(input);
    let per_chunk = 1 + u32::try_from(random.below(3)).unwrap();
    let full = GroupOptions::full(4).with_blocks_per_chunk(per_chunk);
    let window = GroupOptions { pool: 1, ..GroupOptions::window(4, 9) };
    let groups = match random.below(3) {
        0 => vec![full],
        1 => vec![full, window],
        _ => vec![GroupOptions { block_tokens: 8, ..full }, window],
    };
    let num_workers = if random.one_in(4) { 2 } else { 1 };
    let setup = Setup {
        groups,
        num_slots: 4 + u32::try_from(random.below(32)).unwrap(),
        num_blocks: 24 + u32::try_from(random.below(32)).unwrap(),
        lower_chunks: if num_workers > 1 || random.one_in(2) { 0 } else { 200 },
        arc: random.one_in(2),
        steps: 8 + u32::try_from(random.below(24)).unwrap(),
        faults: random.one_in(2),
        resets: random.one_in(2),
        drafts: random.one_in(2),
        load_chunks_max: if random.one_in(2) { 1 + random.index(3) } else { usize::MAX },
        num_workers,
    };
    Engine::new(setup, random).run(random);
}
