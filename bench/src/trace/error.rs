//! Why a trace could not be had.

use std::{io, path::PathBuf};

use super::source::SYNTH_REQUESTS_MAX;

/// A trace could not be read or generated.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TraceError {
    /// The text starts with `synth:` but does not go on as it should.
    #[error(
        "trace source {given:?}: {field} is {found:?}, expected synth:REQUESTS:SEED with 1 to \
         {SYNTH_REQUESTS_MAX} requests and a 64-bit seed, as in synth:4000:42"
    )]
    Synth {
        /// The text.
        given: String,
        /// What of it is wrong.
        field: &'static str,
        /// What stands there.
        found: String,
    },
    /// The file is not there or may not be read.
    #[error("cannot open trace {}", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        #[source]
        source: io::Error,
    },
    /// The path is a directory or a device.
    #[error("trace {} is not a regular file: give one .jsonl, .jsonl.gz or .jsonl.zst file", path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
    },
    /// The file has no request in it.
    #[error("trace {} is empty: expected one JSON object a line, one line a request", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// Reading or decompressing stopped before the end of the file.
    #[error("cannot read trace {} beyond line {lines_read}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Whole lines read before.
        lines_read: u64,
        /// The reason: the file is truncated or damaged, or the system's.
        #[source]
        source: io::Error,
    },
    /// A line does not describe a request.
    #[error("trace {}, line {line}: {reason}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: u64,
        /// What is wrong with it.
        reason: LineError,
    },
}

/// Why a line of a trace does not describe a request.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum LineError {
    /// The line goes on and on: not a trace at all, or one without line ends.
    #[error("longer than {limit_bytes} bytes: expected one request a line")]
    TooLong {
        /// The longest line that is read.
        limit_bytes: u64,
    },
    /// The line is not text.
    #[error("not UTF-8 from byte {byte} of the line on: expected JSON Lines, plain, gzip or zstd")]
    NotUtf8 {
        /// The first byte that is not, from 1.
        byte: usize,
    },
    /// The line is text, but no JSON object.
    #[error(
        "not a JSON object: {detail}; expected one a line with timestamp, input_length, output_length and hash_ids"
    )]
    NotAnObject {
        /// What the JSON parser says, or what was found instead.
        detail: String,
    },
    /// A field is not there.
    #[error("field {field} is missing: a request needs timestamp, input_length, output_length and hash_ids")]
    Missing {
        /// The field.
        field: &'static str,
    },
    /// A field does not hold what it should.
    #[error("field {field} is {found}, expected {expected}")]
    Value {
        /// The field, with an index where it is an element.
        field: String,
        /// What it holds, shortened.
        found: String,
        /// What would be right.
        expected: &'static str,
    },
    /// Numbers of blocks and of tokens do not go together.
    #[error(
        "hash_ids has {blocks} ids, but {input_tokens} input tokens make {least} or {most} blocks of \
         {block_tokens} tokens; if the trace has blocks of another size, say so with --block-tokens"
    )]
    BlockCount {
        /// The ids that the line has.
        blocks: usize,
        /// The `input_length` of the line.
        input_tokens: u32,
        /// The block size that was asked for or that the form has.
        block_tokens: u32,
        /// Whole blocks in the input.
        least: u32,
        /// Blocks in the input with a partial last one.
        most: u32,
    },
    /// The request arrives before the one above it.
    #[error(
        "field timestamp is {arrival_us} us, before the request above it at {previous_us} us: expected requests in \
         order of arrival"
    )]
    TimeWentBack {
        /// When the request arrives.
        arrival_us: u64,
        /// When the request before it arrived.
        previous_us: u64,
    },
    /// The trace has more different blocks than can be numbered.
    #[error("more than {} different ids in hash_ids", u32::MAX)]
    TooManyBlocks,
}
