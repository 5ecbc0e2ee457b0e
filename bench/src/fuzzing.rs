//! What the fuzzers `trace` and `stored` run: from any bytes to a panic if something does not hold. The tests here run their
//! corpora.

#[cfg(test)]
#[path = "../../fuzz/replay.rs"]
mod replay;

use std::{fmt::Write, io::Cursor, num::NonZeroU32, path::Path};

use maud::Markup;

use crate::{
    Figures, MicroResults, NvmeResults, PoliciesResults, ReadOptions, ReplayResults, Stored, StoredResults,
    TimeUnit, Trace, page, trace,
};

/// A file, after a byte that says what is known of it, is a trace whose numbers fit each other, or an error that names the
/// file. A trace that is written in the Mooncake form is read as the same.
pub fn trace(input: &[u8]) {
    let Some((known, file)) = input.split_first() else { return };
    let sizes = [None, Some(1), Some(16), Some(512)].map(|size| size.and_then(NonZeroU32::new));
    let units = [None, Some(TimeUnit::Milliseconds), Some(TimeUnit::Seconds)];
    let options = ReadOptions {
        block_tokens: sizes[usize::from(*known) % sizes.len()],
        time_unit: units[usize::from(*known) / 4 % units.len()],
    };
    let path = Path::new("dir/trace.jsonl");
    let read = |file: &[u8], options| trace::read(Cursor::new(file.to_vec()), path, options);
    let trace = match read(file, options) {
        Ok(trace) => trace,
        Err(error) => {
            assert!(error.to_string().contains("dir/trace.jsonl"), "{error}");
            return;
        }
    };
    check(&trace);
    let options = ReadOptions {
        block_tokens: NonZeroU32::new(trace.block_tokens),
        time_unit: Some(TimeUnit::Milliseconds),
    };
    let again = read(written(&trace).as_bytes(), options).expect("it was read before");
    assert_eq!((again.fingerprint(), again.num_unique), (trace.fingerprint(), trace.num_unique));
    let tokens = |trace: &Trace| -> Vec<_> {
        trace.requests.iter().map(|request| (request.input_tokens, request.output_tokens)).collect()
    };
    assert_eq!(tokens(&again), tokens(&trace));
}

fn check(trace: &Trace) {
    assert!(!trace.requests.is_empty(), "a trace that was read is not empty");
    assert!(
        trace.requests.is_sorted_by_key(|request| request.arrival_us),
        "no request comes before the last one"
    );
    let mut next = 0;
    for request in &trace.requests {
        for &block in &request.blocks {
            assert!(block <= next, "blocks are numbered by first appearance");
            next = next.max(block + 1);
        }
        let (blocks, tokens) = (request.blocks.len() as u64, u64::from(request.input_tokens));
        let per_block = u64::from(trace.block_tokens);
        assert!((tokens / per_block..=tokens.div_ceil(per_block)).contains(&blocks), "{request:?}");
        assert!(request.tokens_of(request.blocks.len(), trace.block_tokens) <= tokens);
    }
    assert_eq!(next, trace.num_unique);
}

fn written(trace: &Trace) -> String {
    let mut text = String::new();
    for request in &trace.requests {
        let (millis, input, output) =
            (request.arrival_us / 1000, request.input_tokens, request.output_tokens);
        let _ = writeln!(
            text,
            "{{\"timestamp\": {millis}, \"input_length\": {input}, \"output_length\": {output}, \"hash_ids\": {:?}}}",
            request.blocks
        );
    }
    text
}

/// A text is a report whose figures can be named and drawn, or an error that names the file.
pub fn stored(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    check_stored::<MicroResults>(text, page::micro::section);
    check_stored::<PoliciesResults>(text, page::policies::section);
    check_stored::<ReplayResults>(text, page::replay::section);
    check_stored::<NvmeResults>(text, page::nvme::section);
}

fn check_stored<T: StoredResults + Figures>(text: &str, section: fn(&Stored<T>) -> anyhow::Result<Markup>) {
    match Stored::<T>::parse(Path::new("dir/report.json"), text) {
        Ok(report) => {
            assert!(T::COMMANDS.contains(&&*report.command), "{}", report.command);
            assert!(!report.when().is_empty());
            report.results.figures();
            report.results.surroundings();
            if let Ok(section) = section(&report) {
                assert!(!section.into_string().contains("<script"), "texts of a report are escaped");
            }
        }
        Err(error) => assert!(error.to_string().contains("dir/report.json"), "{error}"),
    }
}

#[test]
fn traces_of_the_corpus_are_read_or_refused() {
    replay::replay("trace", trace);
}

#[test]
fn reports_of_the_corpus_are_read_or_refused() {
    replay::replay("stored", stored);
}
