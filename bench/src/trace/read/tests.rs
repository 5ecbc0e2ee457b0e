//! Whole files, good and broken.

use std::{fs, io::Write, path::PathBuf};

use flate2::{Compression, write::GzEncoder};
use proptest::prelude::*;
use ruzstd::encoding::{CompressionLevel, compress_to_vec};
use tempfile::TempDir;

use super::*;

const MOONCAKE: &str = r#"{"timestamp": 0, "input_length": 1024, "output_length": 5, "hash_ids": [40, 41]}
{"timestamp": 0, "input_length": 1500, "output_length": 6, "hash_ids": [40, 41, 99]}
{"timestamp": 250, "input_length": 1535, "output_length": 7, "hash_ids": [40, 7]}
"#;
const BAILIAN: &str = r#"{"chat_id": 159, "parent_chat_id": -1, "timestamp": 61.114, "input_length": 33, "output_length": 132, "type": "text", "turn": 1, "hash_ids": [1089, 1090, 1091]}
{"chat_id": 160, "parent_chat_id": 159, "timestamp": 62, "input_length": 48, "output_length": 9, "type": "text", "turn": 2, "hash_ids": [1089, 1090, 7]}
"#;

/// A directory with one file, `trace.jsonl`.
struct OneFile {
    _dir: TempDir,
    path: PathBuf,
}

fn file(content: impl AsRef<[u8]>) -> OneFile {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("trace.jsonl");
    fs::write(&path, content).unwrap();
    OneFile { _dir: dir, path }
}

fn read(content: impl AsRef<[u8]>) -> Result<Trace, TraceError> {
    read_trace(&file(content).path, ReadOptions::default())
}

fn request(arrival_us: u64, input_tokens: u32, output_tokens: u32, blocks: &[u32]) -> TraceRequest {
    TraceRequest { arrival_us, input_tokens, output_tokens, blocks: blocks.to_vec() }
}

#[test]
fn the_mooncake_form_is_read() {
    let trace = read(MOONCAKE).unwrap();
    assert_eq!(trace.name, "trace.jsonl");
    assert_eq!((trace.block_tokens, trace.num_unique, trace.num_accesses()), (512, 4, 7));
    assert_eq!(
        trace.requests,
        [request(0, 1024, 5, &[0, 1]), request(0, 1500, 6, &[0, 1, 2]), request(250_000, 1535, 7, &[0, 3])]
    );
}

#[test]
fn the_bailian_form_is_read() {
    let trace = read(BAILIAN).unwrap();
    assert_eq!((trace.block_tokens, trace.num_unique), (16, 4));
    assert_eq!(
        trace.requests,
        [request(61_114_000, 33, 132, &[0, 1, 2]), request(62_000_000, 48, 9, &[0, 1, 3])]
    );
}

#[test]
fn block_size_and_time_unit_can_be_given() {
    let options = ReadOptions { block_tokens: NonZeroU32::new(500), time_unit: Some(TimeUnit::Seconds) };
    let trace = read_trace(&file(MOONCAKE).path, options).unwrap_err();
    assert!(matches!(trace, TraceError::Line { line: 3, .. }), "1535 tokens are 3 blocks of 500: {trace}");
    let two_lines = MOONCAKE.lines().take(2).collect::<Vec<_>>().join("\n");
    let trace = read_trace(&file(two_lines).path, options).unwrap();
    assert_eq!(trace.block_tokens, 500);
    let late = MOONCAKE.replace("1535", "1400");
    assert_eq!(read_trace(&file(late).path, options).unwrap().requests[2].arrival_us, 250_000_000);
}

fn gzip(text: &str) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(text.as_bytes()).unwrap();
    encoder.finish().unwrap()
}

fn zstd(text: &str) -> Vec<u8> {
    compress_to_vec(text.as_bytes(), CompressionLevel::Fastest)
}

#[test]
fn compressed_files_give_the_same_trace_whatever_their_name() {
    assert_eq!(read(gzip(MOONCAKE)).unwrap(), read(MOONCAKE).unwrap());
    assert_eq!(read(zstd(MOONCAKE)).unwrap(), read(MOONCAKE).unwrap());
}

#[test]
fn empty_lines_windows_line_ends_and_a_missing_last_line_end_are_fine() {
    let odd = format!("\n{}\r\n \n", MOONCAKE.trim_end().replace('\n', "\r\n\r\n"));
    assert_eq!(read(&odd).unwrap(), read(MOONCAKE).unwrap());
    assert_eq!(read(odd.trim_end()).unwrap(), read(MOONCAKE).unwrap());
}

#[test]
fn an_empty_request_and_a_repeated_id_are_kept_as_they_stand() {
    let trace = read(
        "{\"timestamp\":0,\"input_length\":0,\"output_length\":0,\"hash_ids\":[]}\n\
         {\"timestamp\":0,\"input_length\":1536,\"output_length\":0,\"hash_ids\":[5,5,6]}\n",
    )
    .unwrap();
    assert_eq!(trace.requests, [request(0, 0, 0, &[]), request(0, 1536, 0, &[0, 0, 1])]);
    assert_eq!(trace.num_unique, 2);
}

/// The third line is broken by a replacement; the message must name file, line and `part`.
#[track_caller]
fn check_broken(from: &str, to: &str, part: &str) {
    let (head, last) = MOONCAKE.trim_end().rsplit_once('\n').unwrap();
    assert!(last.contains(from), "{from} is not in the line to break");
    let broken = file(format!("{head}\n{}\n", last.replace(from, to)));
    let error = read_trace(&broken.path, ReadOptions::default()).expect_err("a broken line was read");
    assert!(matches!(error, TraceError::Line { line: 3, .. }), "{error:?}");
    let message = error.to_string();
    let place = format!("trace {}, line 3: ", broken.path.display());
    assert!(message.starts_with(&place) && message.contains(part), "{message}");
}

#[test]
fn a_missing_field_is_named() {
    check_broken("timestamp", "time", "field timestamp is missing");
    check_broken("input_length", "input", "field input_length is missing");
    check_broken("output_length", "output", "field output_length is missing");
    check_broken("hash_ids", "hashes", "field hash_ids is missing");
}

#[test]
fn a_negative_number_is_named() {
    check_broken(": 250", ": -250", "field timestamp is -250, expected a time of at least 0");
    check_broken(": 250", ": -0.5", "field timestamp is -0.5, expected a time of at least 0");
    check_broken("1535", "-1535", "field input_length is -1535, expected a whole number of tokens from 0");
    check_broken(": 7", ": -7", "field output_length is -7, expected a whole number of tokens from 0");
    check_broken("[40, 7]", "[40, -7]", "field hash_ids[1] is -7, expected a whole number from 0");
}

#[test]
fn a_number_out_of_range_is_named() {
    check_broken(": 250", ": 18446744073709551615", "field timestamp is 18446744073709551615");
    check_broken(": 250", ": 1e300", "field timestamp is 1e+300");
    check_broken("1535", "4294967296", "field input_length is 4294967296, expected a whole number");
    check_broken("[40, 7]", "[40, 18446744073709551616]", "field hash_ids[1] is 1.8446744073709552e+19");
}

#[test]
fn a_value_of_the_wrong_kind_is_named() {
    check_broken(": 250", ": \"soon\"", "field timestamp is the string \"soon\"");
    check_broken("1535", "1535.5", "field input_length is 1535.5, expected a whole number");
    check_broken(": 7,", ": null,", "field output_length is null");
    check_broken("[40, 7]", "40", "field hash_ids is 40, expected an array of whole numbers");
    check_broken("[40, 7]", "{\"a\": 40}", "field hash_ids is an object, expected an array");
    check_broken("[40, 7]", "[[40], 7]", "field hash_ids[0] is an array, expected a whole number");
}

#[test]
fn a_line_that_is_no_object_is_named() {
    check_broken("{", "", "not a JSON object: ");
    check_broken("}", "", "not a JSON object: EOF while parsing an object at column ");
    check_broken("{", "[{", "not a JSON object: ");
    check_broken("}", "} x", "not a JSON object: trailing characters at column ");
    let error = read("TIMESTAMP,ContextTokens,GeneratedTokens\n").unwrap_err().to_string();
    assert!(error.contains("line 1: not a JSON object") && error.contains("with timestamp"), "{error}");
    let error = read("[1, 2]\n").unwrap_err().to_string();
    assert!(error.contains("line 1: not a JSON object: it is an array"), "{error}");
}

#[test]
fn a_block_count_that_does_not_fit_points_at_the_block_size() {
    check_broken(
        "[40, 7]",
        "[40]",
        "hash_ids has 1 ids, but 1535 input tokens make 2 or 3 blocks of 512 tokens",
    );
    check_broken("[40, 7]", "[40, 7, 8, 9]", "hash_ids has 4 ids");
    let options = ReadOptions { block_tokens: NonZeroU32::new(64), ..ReadOptions::default() };
    let error = read_trace(&file(MOONCAKE).path, options).unwrap_err().to_string();
    assert!(error.contains("line 1") && error.contains("--block-tokens"), "{error}");
}

#[test]
fn time_does_not_go_back() {
    let back = MOONCAKE.replacen("\"timestamp\": 0", "\"timestamp\": 300", 2);
    let error = read(back).unwrap_err().to_string();
    assert!(error.contains("line 3: field timestamp is 250000 us, before"), "{error}");
}

#[test]
fn a_line_that_is_not_text_is_named() {
    let mut bytes = MOONCAKE.as_bytes().to_vec();
    let second = MOONCAKE.find('\n').unwrap() + 1;
    bytes[second + 4] = 0xff;
    let error = read(bytes).unwrap_err();
    let TraceError::Line { line, reason, .. } = error else { panic!("{error:?}") };
    assert_eq!((line, reason), (2, LineError::NotUtf8 { byte: 5 }));
}

#[test]
fn a_line_without_end_is_an_error() {
    let limit_bytes = LINE_BYTES_MAX;
    let endless = vec![b' '; usize::try_from(limit_bytes).unwrap() + 2];
    let error = read(endless).unwrap_err();
    let TraceError::Line { line: 1, reason, .. } = error else { panic!("{error:?}") };
    assert_eq!(reason, LineError::TooLong { limit_bytes });
}

#[test]
fn an_empty_file_is_an_error() {
    for content in ["", "\n", " \r\n\n"] {
        let error = read(content).unwrap_err();
        assert!(matches!(error, TraceError::Empty { .. }), "{error:?}");
        assert!(error.to_string().contains("trace.jsonl is empty"), "{error}");
    }
}

#[test]
fn a_directory_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let error = read_trace(dir.path(), ReadOptions::default()).unwrap_err();
    assert!(matches!(error, TraceError::NotAFile { .. }), "{error:?}");
}

#[test]
fn a_missing_file_is_an_error() {
    let error = read_trace(Path::new("no/such/trace.jsonl"), ReadOptions::default()).unwrap_err();
    assert!(matches!(error, TraceError::Open { .. }), "{error:?}");
    assert_eq!(error.to_string(), "cannot open trace no/such/trace.jsonl");
}

#[test]
fn a_truncated_file_says_how_far_it_was_read() {
    let gzip = gzip(&MOONCAKE.repeat(2000).replace("250", "0"));
    let error = read(&gzip[..gzip.len() / 2]).unwrap_err();
    let TraceError::Read { lines_read, source, .. } = &error else { panic!("{error:?}") };
    assert!((1..6000).contains(lines_read), "{lines_read}");
    assert!(source.to_string().contains("truncated"), "{source}");
    assert!(error.to_string().contains(&format!("beyond line {lines_read}")), "{error}");
}

proptest! {
    /// Whatever the bytes, reading ends with a trace or an error.
    #[test]
    fn no_bytes_bring_the_reader_down(
        form in 0..4_usize,
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in any::<Option<prop::sample::Index>>(),
    ) {
        let mut bytes = [MOONCAKE.into(), BAILIAN.into(), gzip(MOONCAKE), zstd(MOONCAKE)][form].clone();
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        if let Ok(trace) = read(bytes) {
            prop_assert!(trace.requests.iter().flat_map(|r| &r.blocks).all(|&block| block < trace.num_unique));
        }
    }
}
