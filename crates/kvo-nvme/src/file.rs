//! Whole reads and writes at a position, on whatever may give less than was asked for.

use std::{fs::File, io, ops::Range, os::unix::fs::FileExt};

use crate::progress::{Progress, Step, Way};

/// Positional I/O that may move fewer bytes than asked for, or be interrupted; the seam at which tests put faults.
pub(crate) trait ChunkFile: Send + Sync {
    /// Reads up to `bytes.len()` bytes at `offset`; 0 is the end of the file.
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Writes up to `bytes.len()` bytes at `offset`.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize>;
}

impl ChunkFile for File {
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        FileExt::read_at(self, bytes, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        FileExt::write_at(self, bytes, offset)
    }
}

/// A file whose bytes can be seen to the device.
pub(crate) trait StableFile: ChunkFile {
    /// Returns once the bytes that were written, and what it takes to find them, are on stable storage.
    fn sync(&self) -> io::Result<()>;
}

impl StableFile for File {
    fn sync(&self) -> io::Result<()> {
        self.sync_data()
    }
}

/// Fills `bytes` from `offset`.
///
/// Short reads and interruptions go on where they stopped, as often as [`Progress`] bears them. The file's end before
/// the last byte is [`UnexpectedEof`](io::ErrorKind::UnexpectedEof), never a success with part of the bytes.
pub(crate) fn read_exact_at(
    file: &(impl ChunkFile + ?Sized),
    bytes: &mut [u8],
    offset: u64,
) -> io::Result<()> {
    move_all(Way::Read, bytes.len(), |rest| {
        let at = offset + rest.start as u64;
        file.read_at(&mut bytes[rest], at)
    })
}

/// Writes all of `bytes` at `offset`.
///
/// Short writes and interruptions go on where they stopped, as often as [`Progress`] bears them; a write that takes
/// nothing is [`WriteZero`](io::ErrorKind::WriteZero).
pub(crate) fn write_all_at(file: &(impl ChunkFile + ?Sized), bytes: &[u8], offset: u64) -> io::Result<()> {
    move_all(Way::Write, bytes.len(), |rest| {
        let at = offset + rest.start as u64;
        file.write_at(&bytes[rest], at)
    })
}

fn move_all(
    way: Way,
    bytes: usize,
    mut step: impl FnMut(Range<usize>) -> io::Result<usize>,
) -> io::Result<()> {
    if bytes == 0 {
        return Ok(());
    }
    let mut progress = Progress::new(way, bytes);
    loop {
        let rest = progress.rest(usize::MAX);
        let asked = rest.len();
        match progress.take(asked, step(rest)) {
            Step::Done => return Ok(()),
            Step::Next | Step::Short | Step::Retry => {}
            Step::Failed(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// Moves at most 3 bytes a call, and is interrupted before every second one.
    struct Hesitant {
        bytes: Mutex<Vec<u8>>,
        calls: Mutex<u32>,
        writes_nothing: bool,
    }

    impl Hesitant {
        fn new(bytes: Vec<u8>) -> Self {
            Self { bytes: Mutex::new(bytes), calls: Mutex::new(0), writes_nothing: false }
        }

        fn interrupt(&self) -> io::Result<()> {
            let mut calls = self.calls.lock().unwrap();
            *calls += 1;
            if *calls % 2 == 1 { Err(io::ErrorKind::Interrupted.into()) } else { Ok(()) }
        }
    }

    impl ChunkFile for Hesitant {
        fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
            self.interrupt()?;
            let at = usize::try_from(offset).unwrap();
            let from = self.bytes.lock().unwrap();
            let count = bytes.len().min(3).min(from.len().saturating_sub(at));
            bytes[..count].copy_from_slice(&from[at..at + count]);
            Ok(count)
        }

        fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
            self.interrupt()?;
            if self.writes_nothing {
                return Ok(0);
            }
            let at = usize::try_from(offset).unwrap();
            let count = bytes.len().min(3);
            self.bytes.lock().unwrap()[at..at + count].copy_from_slice(&bytes[..count]);
            Ok(count)
        }
    }

    #[test]
    fn short_and_interrupted_transfers_go_on() {
        let file = Hesitant::new(vec![0; 20]);
        let data: Vec<u8> = (1..=10).collect();
        write_all_at(&file, &data, 5).unwrap();
        let mut back = [0; 10];
        read_exact_at(&file, &mut back, 5).unwrap();
        assert_eq!(back, *data);
        assert_eq!(file.bytes.lock().unwrap()[..5], [0; 5]);
        assert_eq!(file.bytes.lock().unwrap()[15..], [0; 5]);
    }

    #[test]
    fn the_end_of_the_file_is_an_error() {
        let file = Hesitant::new(vec![1; 7]);
        let error = read_exact_at(&file, &mut [0; 8], 0).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
        read_exact_at(&file, &mut [0; 7], 0).unwrap();
    }

    #[test]
    fn a_write_that_takes_nothing_is_an_error() {
        let mut file = Hesitant::new(vec![1; 7]);
        file.writes_nothing = true;
        assert_eq!(write_all_at(&file, &[1], 0).unwrap_err().kind(), io::ErrorKind::WriteZero);
    }
}
