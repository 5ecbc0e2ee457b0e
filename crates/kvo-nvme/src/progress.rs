//! How far a transfer has come, and what a count or an error of the system means for it: the same for every engine.
//!
//! The system may move fewer bytes than it was asked for, or be interrupted. A transfer then goes on where it
//! stopped, a bounded number of times; it never ends well with part of its bytes.

use std::{io, ops::Range};

/// Errors that say "not now", up to which a transfer is tried again.
const RETRIES_MAX: u32 = 8;
/// Short counts up to which a transfer goes on.
const ROUNDS_MAX: u32 = 8;
/// Where a transfer of whole pages goes on after a short count, since direct I/O cannot begin between them.
const PAGE_BYTES: usize = 4096;

/// Which way bytes move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// From the host memory to the file.
    Write,
    /// From the file to the host memory.
    Read,
}

/// A transfer that is under way.
#[derive(Debug)]
pub(crate) struct Progress {
    way: Way,
    /// Bytes in all.
    bytes: usize,
    done: usize,
    rounds: u32,
    retries: u32,
}

/// What comes next in a transfer.
#[derive(Debug)]
pub(crate) enum Step {
    /// Nothing: it is whole.
    Done,
    /// The next piece; this one was moved whole.
    Next,
    /// The rest; only part of what was asked for was moved.
    Short,
    /// The same again; the system could not do it just now.
    Retry,
    /// Nothing: it has failed.
    Failed(io::Error),
}

impl Progress {
    pub(crate) fn new(way: Way, bytes: usize) -> Self {
        Self { way, bytes, done: 0, rounds: 0, retries: 0 }
    }

    pub(crate) fn way(&self) -> Way {
        self.way
    }

    /// The bytes to ask for next: all that are left, or the first piece of them, of about `piece_bytes`.
    pub(crate) fn rest(&self, piece_bytes: usize) -> Range<usize> {
        let piece_bytes = (piece_bytes - piece_bytes % PAGE_BYTES).max(PAGE_BYTES);
        self.done..self.bytes.min(self.done.saturating_add(piece_bytes))
    }

    /// Takes in what became of the `asked` bytes that came next.
    pub(crate) fn take(&mut self, asked: usize, result: io::Result<usize>) -> Step {
        match result {
            Ok(0) => Step::Failed(self.stopped()),
            Ok(count) if count == asked => {
                self.done += count;
                if self.done == self.bytes { Step::Done } else { Step::Next }
            }
            Ok(count) if count < asked && self.rounds < ROUNDS_MAX => {
                self.rounds += 1;
                self.done += count;
                if self.bytes.is_multiple_of(PAGE_BYTES) {
                    self.done -= self.done % PAGE_BYTES;
                }
                Step::Short
            }
            Ok(count) if count < asked => Step::Failed(self.stopped()),
            // More than was asked for: whatever says so cannot be believed.
            Ok(_) => Step::Failed(io::ErrorKind::InvalidData.into()),
            Err(error) if is_transient(&error) && self.retries < RETRIES_MAX => {
                self.retries += 1;
                Step::Retry
            }
            Err(error) => Step::Failed(error),
        }
    }

    /// The error of a transfer that does not come further.
    fn stopped(&self) -> io::Error {
        match self.way {
            Way::Write => io::ErrorKind::WriteZero.into(),
            Way::Read => io::ErrorKind::UnexpectedEof.into(),
        }
    }
}

/// Whether an error only says that the system could not do it just now.
pub(crate) fn is_transient(error: &io::Error) -> bool {
    use io::ErrorKind::{Interrupted, ResourceBusy, WouldBlock};
    matches!(error.kind(), Interrupted | WouldBlock | ResourceBusy)
}

#[cfg(test)]
mod tests {
    use io::ErrorKind;

    use super::*;

    /// Feeds `results` to a transfer of `bytes` in pieces of `piece`, and compares where it stands after each.
    #[track_caller]
    fn check(way: Way, bytes: usize, piece: usize, results: &[(Result<usize, ErrorKind>, &str)]) {
        let mut progress = Progress::new(way, bytes);
        for (index, (result, expected)) in results.iter().enumerate() {
            let rest = progress.rest(piece);
            let found = match progress.take(rest.len(), result.map_err(Into::into)) {
                Step::Done => "done".to_owned(),
                Step::Next => format!("next {}", progress.rest(piece).start),
                Step::Short => format!("short {}", progress.rest(piece).start),
                Step::Retry => format!("retry {}", progress.rest(piece).start),
                Step::Failed(error) => format!("{:?}", error.kind()),
            };
            assert_eq!(found, *expected, "step {index}");
        }
    }

    #[test]
    fn a_whole_count_is_all_there_is() {
        check(Way::Write, 10_000, usize::MAX, &[(Ok(10_000), "done")]);
        check(Way::Read, 8192, usize::MAX, &[(Ok(8192), "done")]);
    }

    #[test]
    fn pages_go_on_at_a_page_and_bytes_at_a_byte() {
        check(Way::Read, 12_288, usize::MAX, &[(Ok(5000), "short 4096"), (Ok(8192), "done")]);
        check(Way::Write, 12_288, usize::MAX, &[(Ok(512), "short 0"), (Ok(12_288), "done")]);
        check(Way::Read, 10_000, usize::MAX, &[(Ok(5001), "short 5001"), (Ok(4999), "done")]);
    }

    #[test]
    fn pieces_are_whole_pages_and_no_rounds() {
        let pieces: Vec<_> = (1..20).map(|n| (Ok(4096), format!("next {}", n * 4096))).collect();
        let mut steps: Vec<_> = pieces.iter().map(|(result, step)| (*result, step.as_str())).collect();
        steps.push((Ok(4096), "done"));
        check(Way::Write, 20 * 4096, 5000, &steps);
        check(Way::Write, 5000, 1, &[(Ok(4096), "next 4096"), (Ok(904), "done")]);
    }

    #[test]
    fn nothing_moved_is_the_end_of_the_file_or_a_write_that_takes_nothing() {
        check(Way::Read, 8192, usize::MAX, &[(Ok(4096), "short 4096"), (Ok(0), "UnexpectedEof")]);
        check(Way::Write, 8192, usize::MAX, &[(Ok(0), "WriteZero")]);
    }

    #[test]
    fn short_counts_are_borne_eight_times() {
        let mut steps = vec![(Ok(100), "short 0"); 8];
        steps.push((Ok(100), "UnexpectedEof"));
        check(Way::Read, 8192, usize::MAX, &steps);
        steps[8] = (Ok(8192), "done");
        check(Way::Read, 8192, usize::MAX, &steps);
    }

    #[test]
    fn errors_of_the_moment_are_borne_eight_times() {
        for kind in [ErrorKind::Interrupted, ErrorKind::WouldBlock, ErrorKind::ResourceBusy] {
            let mut steps = vec![(Err(kind), "retry 0"); 8];
            let last = format!("{kind:?}");
            steps.push((Err(kind), &last));
            check(Way::Write, 100, usize::MAX, &steps);
            steps[8] = (Ok(100), "done");
            check(Way::Write, 100, usize::MAX, &steps);
        }
    }

    /// B32: more than was asked for is no success either.
    #[test]
    fn other_errors_and_impossible_counts_fail_at_once() {
        check(Way::Write, 100, usize::MAX, &[(Err(ErrorKind::StorageFull), "StorageFull")]);
        check(Way::Read, 100, usize::MAX, &[(Ok(101), "InvalidData")]);
    }
}
