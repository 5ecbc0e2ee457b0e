//! Plain, gzip and zstd files, told apart by their first bytes and not by their names.

use std::io::{self, BufRead, BufReader, Error, ErrorKind, Read};

use flate2::bufread::MultiGzDecoder;
use ruzstd::decoding::{
    BlockDecodingStrategy, FrameDecoder,
    errors::{FrameDecoderError, ReadFrameHeaderError},
};

const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];
const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// Skippable zstd frames, which may come first, have a magic number of 0x184d2a5? (little-endian).
const ZSTD_SKIPPABLE_MAGIC: [u8; 3] = [0x2a, 0x4d, 0x18];

/// The text in `file`, decompressed as its first bytes ask for.
pub(super) fn decompressed(mut file: impl Read + 'static) -> io::Result<Box<dyn BufRead>> {
    let mut magic = Vec::with_capacity(ZSTD_MAGIC.len());
    file.by_ref().take(ZSTD_MAGIC.len() as u64).read_to_end(&mut magic)?;
    let is_gzip = magic.starts_with(&GZIP_MAGIC);
    let is_zstd = magic == ZSTD_MAGIC
        || magic.len() == 4 && magic[0] & 0xf0 == 0x50 && magic[1..] == ZSTD_SKIPPABLE_MAGIC;
    let whole = BufReader::with_capacity(1 << 16, io::Cursor::new(magic).chain(file));
    Ok(if is_gzip {
        Box::new(BufReader::with_capacity(1 << 16, GzipReader(MultiGzDecoder::new(whole))))
    } else if is_zstd {
        Box::new(BufReader::with_capacity(1 << 16, ZstdReader::new(whole)))
    } else {
        Box::new(whole)
    })
}

/// Reads gzip members one after the other, with errors that say so.
struct GzipReader<R>(MultiGzDecoder<R>);

impl<R: BufRead> Read for GzipReader<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.0.read(buf).map_err(|source| match source.kind() {
            ErrorKind::UnexpectedEof => truncated("gzip"),
            ErrorKind::InvalidInput | ErrorKind::InvalidData => damaged("gzip", &source),
            _ => source,
        })
    }
}

/// Reads zstd frames one after the other, skips those to be skipped, and verifies the checksum of those that have one.
struct ZstdReader<R> {
    source: R,
    decoder: FrameDecoder,
    in_frame: bool,
}

impl<R: BufRead> ZstdReader<R> {
    fn new(source: R) -> Self {
        Self { source, decoder: FrameDecoder::new(), in_frame: false }
    }

    /// Moves to the next frame with content; `false` at the end of the file.
    fn next_frame(&mut self) -> io::Result<bool> {
        while !self.source.fill_buf()?.is_empty() {
            match self.decoder.reset(&mut self.source) {
                Ok(()) => return Ok(true),
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame {
                    length,
                    ..
                })) => {
                    let skipped =
                        io::copy(&mut self.source.by_ref().take(u64::from(length)), &mut io::sink())?;
                    if skipped < u64::from(length) {
                        return Err(truncated("zstd"));
                    }
                }
                Err(error) => return Err(zstd_error(&error)),
            }
        }
        Ok(false)
    }

    fn check_sum(&self) -> io::Result<()> {
        match (self.decoder.get_checksum_from_data(), self.decoder.get_calculated_checksum()) {
            (Some(stored), Some(calculated)) if stored != calculated => {
                Err(damaged("zstd", &"its checksum does not match its content"))
            }
            _ => Ok(()),
        }
    }
}

impl<R: BufRead> Read for ZstdReader<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if buf.is_empty() {
            return Ok(0);
        }
        loop {
            if !self.in_frame {
                if !self.next_frame()? {
                    return Ok(0);
                }
                self.in_frame = true;
            }
            while self.decoder.can_collect() == 0 && !self.decoder.is_finished() {
                self.decoder
                    .decode_blocks(&mut self.source, BlockDecodingStrategy::UptoBlocks(1))
                    .map_err(|error| zstd_error(&error))?;
            }
            match self.decoder.read(buf)? {
                0 => {
                    self.check_sum()?;
                    self.in_frame = false;
                }
                len => return Ok(len),
            }
        }
    }
}

/// Whether any error on the way down is an end of file where there should be more.
fn zstd_error(error: &(dyn std::error::Error + 'static)) -> Error {
    let mut cause = Some(error);
    while let Some(at) = cause {
        if at.downcast_ref::<Error>().is_some_and(|io| io.kind() == ErrorKind::UnexpectedEof) {
            return truncated("zstd");
        }
        cause = at.source();
    }
    damaged("zstd", error)
}

fn truncated(format: &str) -> Error {
    Error::new(ErrorKind::UnexpectedEof, format!("the {format} data ends early: the file is truncated"))
}

fn damaged(format: &str, why: &(impl std::fmt::Display + ?Sized)) -> Error {
    Error::new(ErrorKind::InvalidData, format!("the {format} data is damaged: {why}"))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::{Compression, write::GzEncoder};
    use ruzstd::encoding::{CompressionLevel, compress_to_vec};

    use super::*;

    fn text() -> Vec<u8> {
        (0..20_000_u32).flat_map(|n| format!("{}\n", n.wrapping_mul(2_654_435_761)).into_bytes()).collect()
    }

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    fn zstd(bytes: &[u8]) -> Vec<u8> {
        compress_to_vec(bytes, CompressionLevel::Fastest)
    }

    fn read(file: Vec<u8>) -> io::Result<Vec<u8>> {
        let mut out = Vec::new();
        decompressed(io::Cursor::new(file))?.read_to_end(&mut out)?;
        Ok(out)
    }

    #[test]
    fn each_form_gives_the_same_text() {
        let text = text();
        for file in [text.clone(), gzip(&text), zstd(&text)] {
            assert!(read(file).unwrap() == text);
        }
    }

    #[test]
    fn several_members_or_frames_are_read_to_the_end() {
        let text = text();
        let skippable = [&[0x53][..], &ZSTD_SKIPPABLE_MAGIC, &5_u32.to_le_bytes(), b"hello"].concat();
        for file in [
            [gzip(&text), gzip(&text)].concat(),
            [zstd(&text), zstd(&text)].concat(),
            [zstd(&text), skippable.clone(), zstd(&text)].concat(),
            [skippable, zstd(&text), zstd(&text)].concat(),
        ] {
            assert!(read(file).unwrap() == [text.clone(), text.clone()].concat());
        }
    }

    #[test]
    fn short_files_are_plain() {
        for file in [&b""[..], b"{", b"{}\n"] {
            assert_eq!(read(file.to_vec()).unwrap(), file);
        }
    }

    #[test]
    fn a_truncated_file_is_an_error_at_every_length() {
        let text = text();
        for whole in [gzip(&text), zstd(&text)] {
            for len in (4..whole.len()).step_by(997).chain([whole.len() - 1]) {
                let error = read(whole[..len].to_vec()).expect_err("a truncated file was read");
                assert_eq!(error.kind(), ErrorKind::UnexpectedEof, "{len} of {}: {error}", whole.len());
            }
        }
    }

    #[test]
    fn damage_is_an_error_and_not_other_text() {
        let text = text();
        for whole in [gzip(&text), zstd(&text)] {
            for at in (20..whole.len()).step_by(991) {
                let mut file = whole.clone();
                file[at] ^= 0x10;
                assert!(read(file).is_err(), "byte {at} was changed and nobody noticed");
            }
        }
    }
}
