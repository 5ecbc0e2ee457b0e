//! Reads trace files, line by line.

use std::{
    fs::File,
    io::{BufRead, Read},
    num::NonZeroU32,
    path::Path,
};

use super::{
    LineError, Trace, TraceError, TraceRequest, decompress::decompressed, numbering::Numbering,
    record::Record,
};

/// No published trace comes near it.
const LINE_BYTES_MAX: u64 = 64 << 20;

/// What a file does not say about itself. By default, what the form of its first line stands for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadOptions {
    /// Tokens a block: 512 for the Mooncake form, 16 for Bailian.
    pub block_tokens: Option<NonZeroU32>,
    /// Unit of `timestamp`: milliseconds for the Mooncake form, seconds for Bailian.
    pub time_unit: Option<TimeUnit>,
}

/// Unit of a trace's timestamps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum TimeUnit {
    /// Thousandths of a second.
    #[value(name = "ms")]
    Milliseconds,
    /// Seconds, with or without a fraction.
    #[value(name = "s")]
    Seconds,
}

impl TimeUnit {
    pub(super) fn microseconds(self) -> u64 {
        match self {
            Self::Milliseconds => 1_000,
            Self::Seconds => 1_000_000,
        }
    }
}

/// Reads a trace in Mooncake or Bailian form, plain, gzip or zstd.
///
/// The form is that of the first line, the compression that of the first bytes. Empty lines are skipped. Each
/// request must have `floor` or `ceil` of `input_length / block_tokens` blocks: any other number means that the
/// blocks have another size.
///
/// # Errors
///
/// [`TraceError`] names the file and, where there is one, the line and the field.
pub fn read_trace(path: &Path, options: ReadOptions) -> Result<Trace, TraceError> {
    let open_failed = |source| TraceError::Open { path: path.to_owned(), source };
    // Asked before opening, since opening a pipe may wait for ever.
    if !std::fs::metadata(path).map_err(open_failed)?.is_file() {
        return Err(TraceError::NotAFile { path: path.to_owned() });
    }
    read(File::open(path).map_err(open_failed)?, path, options)
}

/// Reads what is in the file at `path`.
pub(crate) fn read(
    file: impl Read + 'static,
    path: &Path,
    options: ReadOptions,
) -> Result<Trace, TraceError> {
    let mut reader = Reader::new(options);
    let mut lines_read = 0;
    let read_failed = |lines_read, source| TraceError::Read { path: path.to_owned(), lines_read, source };
    let mut text = decompressed(file).map_err(|source| read_failed(0, source))?;
    let mut line = Vec::new();
    loop {
        line.clear();
        let len = text
            .by_ref()
            .take(LINE_BYTES_MAX + 1)
            .read_until(b'\n', &mut line)
            .map_err(|source| read_failed(lines_read, source))?;
        if len == 0 {
            break;
        }
        lines_read += 1;
        reader.take_line(&line).map_err(|reason| TraceError::Line {
            path: path.to_owned(),
            line: lines_read,
            reason,
        })?;
    }
    let name =
        path.file_name().map_or_else(|| path.display().to_string(), |n| n.to_string_lossy().into_owned());
    reader.finish(name).ok_or_else(|| TraceError::Empty { path: path.to_owned() })
}

/// What was read so far.
struct Reader {
    options: ReadOptions,
    /// Tokens a block and the time unit, known from the first request on.
    units: Option<(u32, TimeUnit)>,
    requests: Vec<TraceRequest>,
    numbering: Numbering,
}

impl Reader {
    fn new(options: ReadOptions) -> Self {
        Self { options, units: None, requests: Vec::new(), numbering: Numbering::default() }
    }

    fn take_line(&mut self, line: &[u8]) -> Result<(), LineError> {
        if line.len() as u64 > LINE_BYTES_MAX {
            return Err(LineError::TooLong { limit_bytes: LINE_BYTES_MAX });
        }
        if line.iter().all(u8::is_ascii_whitespace) {
            return Ok(());
        }
        let record = Record::parse(line)?;
        let (block_tokens, time_unit) = *self.units.get_or_insert_with(|| {
            let form = record.form();
            (
                self.options.block_tokens.map_or(form.block_tokens(), NonZeroU32::get),
                self.options.time_unit.unwrap_or(form.time_unit()),
            )
        });
        let request = self.request(&record, block_tokens, time_unit)?;
        self.requests.push(request);
        Ok(())
    }

    fn request(
        &mut self,
        record: &Record,
        block_tokens: u32,
        time_unit: TimeUnit,
    ) -> Result<TraceRequest, LineError> {
        let arrival_us = record.arrival_us(time_unit)?;
        let input_tokens = record.tokens("input_length")?;
        let output_tokens = record.tokens("output_length")?;
        let ids = record.block_ids()?;
        let (least, most) = (input_tokens / block_tokens, input_tokens.div_ceil(block_tokens));
        if !(least as usize..=most as usize).contains(&ids.len()) {
            let blocks = ids.len();
            return Err(LineError::BlockCount { blocks, input_tokens, block_tokens, least, most });
        }
        let previous_us = self.requests.last().map_or(0, |request| request.arrival_us);
        if arrival_us < previous_us {
            return Err(LineError::TimeWentBack { arrival_us, previous_us });
        }
        let blocks = ids
            .into_iter()
            .map(|id| self.numbering.number(id).ok_or(LineError::TooManyBlocks))
            .collect::<Result<_, _>>()?;
        Ok(TraceRequest { arrival_us, input_tokens, output_tokens, blocks })
    }

    /// The trace, unless there was no request.
    fn finish(self, name: String) -> Option<Trace> {
        let (block_tokens, _) = self.units?;
        Some(Trace { name, block_tokens, requests: self.requests, num_unique: self.numbering.len() })
    }
}

#[cfg(test)]
mod tests;
