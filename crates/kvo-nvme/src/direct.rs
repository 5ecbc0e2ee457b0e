//! A file that is read and written around the page cache.
//!
//! The kernel then wants buffers, lengths and places that are multiples of a page. Slots of the host memory are; what
//! is not goes through a buffer that is, which costs a copy, and the copies are counted.

use std::{
    fs::File,
    io,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use memmap2::MmapMut;

use crate::file::ChunkFile;

/// What direct I/O wants everything to be a multiple of.
pub(crate) const ALIGN_BYTES: usize = 4096;

/// A file that was opened with `O_DIRECT`.
pub(crate) struct DirectFile {
    file: Arc<File>,
    /// Aligned, as long as the longest transfer that needed it; one transfer at a time.
    bounce: Mutex<Option<MmapMut>>,
    copied_bytes: Arc<AtomicU64>,
}

impl DirectFile {
    /// `copied_bytes` counts what had to be copied.
    pub(crate) fn new(file: Arc<File>, copied_bytes: Arc<AtomicU64>) -> Self {
        Self { file, bounce: Mutex::new(None), copied_bytes }
    }

    /// Calls `with` with an aligned buffer of at least `len` bytes, a whole number of pages.
    fn bounced<T>(&self, len: usize, with: impl FnOnce(&mut [u8]) -> io::Result<T>) -> io::Result<T> {
        let len = len.next_multiple_of(ALIGN_BYTES);
        let mut bounce = self.bounce.lock().unwrap_or_else(PoisonError::into_inner);
        if bounce.as_ref().is_none_or(|buffer| buffer.len() < len) {
            // A mapping begins at a page.
            *bounce = Some(MmapMut::map_anon(len)?);
        }
        let buffer = bounce.as_mut().expect("it was made if there was none");
        with(&mut buffer[..len])
    }

    fn count(&self, bytes: usize) {
        self.copied_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

fn is_aligned(bytes: &[u8]) -> bool {
    bytes.as_ptr().addr().is_multiple_of(ALIGN_BYTES) && bytes.len().is_multiple_of(ALIGN_BYTES)
}

impl ChunkFile for DirectFile {
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        if is_aligned(bytes) {
            return self.file.read_at(bytes, offset);
        }
        self.bounced(bytes.len(), |buffer| {
            let count = self.file.read_at(buffer, offset)?.min(bytes.len());
            bytes[..count].copy_from_slice(&buffer[..count]);
            self.count(count);
            Ok(count)
        })
    }

    /// Writes whole pages: what follows `bytes` in the last one becomes zero. Nothing of another chunk is there.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        if is_aligned(bytes) {
            return self.file.write_at(bytes, offset);
        }
        self.bounced(bytes.len(), |buffer| {
            let (payload, rest) = buffer.split_at_mut(bytes.len());
            payload.copy_from_slice(bytes);
            rest.fill(0);
            self.count(bytes.len());
            Ok(self.file.write_at(buffer, offset)?.min(bytes.len()))
        })
    }
}

#[cfg(test)]
mod tests {
    use std::{fs::OpenOptions, os::unix::fs::OpenOptionsExt};

    use rustix::fs::OFlags;

    use super::*;

    /// A direct file of 64 KiB; none where the file system has no direct I/O.
    fn direct_file() -> Option<(tempfile::TempDir, DirectFile, Arc<AtomicU64>)> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, vec![7; 64 << 10]).unwrap();
        let flags = OFlags::DIRECT.bits().cast_signed();
        let Ok(file) = OpenOptions::new().read(true).write(true).custom_flags(flags).open(&path) else {
            eprintln!("SKIPPED: no direct I/O in {}", dir.path().display());
            return None;
        };
        let copied = Arc::<AtomicU64>::default();
        Some((dir, DirectFile::new(Arc::new(file), Arc::clone(&copied)), copied))
    }

    #[test]
    fn bytes_anywhere_in_memory_are_written_and_read() {
        let Some((_dir, file, copied)) = direct_file() else { return };
        let content: Vec<u8> = (0..=255).cycle().take(3 * ALIGN_BYTES + 1).collect();
        // Wherever a vector begins, one of these does not begin at a page.
        for start in [0, 1] {
            let bytes = &content[start..][..3 * ALIGN_BYTES];
            assert_eq!(file.write_at(bytes, 8192).unwrap(), bytes.len());
            let mut room = vec![0; bytes.len() + 1];
            let back = &mut room[start..][..bytes.len()];
            assert_eq!(file.read_at(back, 8192).unwrap(), bytes.len());
            assert_eq!(back, bytes);
        }
        assert!(copied.load(Ordering::Relaxed) >= 6 * ALIGN_BYTES as u64);
    }

    #[test]
    fn a_length_that_is_no_whole_page_is_written_and_read() {
        let Some((_dir, file, _)) = direct_file() else { return };
        assert_eq!(file.write_at(&[9; 5000], 0).unwrap(), 5000);
        let mut back = [0; 9000];
        assert_eq!(file.read_at(&mut back, 0).unwrap(), 9000);
        assert_eq!(
            (&back[..5000], &back[5000..8192], &back[8192..]),
            (&[9; 5000][..], &[0; 3192][..], &[7; 808][..])
        );
    }

    #[test]
    fn aligned_bytes_are_not_copied() {
        let Some((_dir, file, copied)) = direct_file() else { return };
        let mut pages = MmapMut::map_anon(2 * ALIGN_BYTES).unwrap();
        pages.fill(3);
        assert_eq!(file.write_at(&pages, 4096).unwrap(), 8192);
        pages.fill(0);
        assert_eq!(file.read_at(&mut pages, 4096).unwrap(), 8192);
        assert!(pages.iter().all(|byte| *byte == 3));
        assert_eq!(copied.load(Ordering::Relaxed), 0);
    }
}
