//! Uploads that take their turn on a stream.

use super::{
    engine::{CudaEngine, StreamId},
    raw::{self, EngineError},
};

/// Bytes of pinned memory that a stream's uploads are read from.
const STAGING_BYTES: usize = 16 << 20;

/// Pinned memory that uploads of one stream are read from, some time after the call.
#[derive(Debug)]
pub(super) struct Staging {
    memory: raw::Pinned,
    /// What uploads may still be read from, since the stream was last waited for.
    used_bytes: usize,
}

impl Staging {
    /// Gives the memory back.
    pub(super) fn release(self) {
        raw::unpin(self.memory);
    }
}

impl CudaEngine {
    /// Writes bytes when all that is on the stream is over, which need not be before the call returns. They are read
    /// during the call. Of each stream 16 MiB may be under way; what is more waits for what is before it.
    pub fn upload_on(&mut self, stream: StreamId, address: u64, bytes: &[u8]) -> Result<(), EngineError> {
        self.own(address, bytes.len() as u64)?;
        let raw_stream = self.stream(stream);
        let mut staging = match self.stagings.remove(&stream) {
            Some(staging) => staging,
            None => Staging { memory: raw::pin(STAGING_BYTES)?, used_bytes: 0 },
        };
        let uploaded = staging.upload(raw_stream, address, bytes);
        self.stagings.insert(stream, staging);
        uploaded
    }
}

impl Staging {
    fn upload(&mut self, stream: raw::Stream, address: u64, bytes: &[u8]) -> Result<(), EngineError> {
        let mut address = address;
        for part in bytes.chunks(STAGING_BYTES) {
            if STAGING_BYTES - self.used_bytes < part.len() {
                raw::synchronize(stream)?;
                self.used_bytes = 0;
            }
            raw::upload_on(stream, address, &mut self.memory, self.used_bytes, part)?;
            self.used_bytes += part.len();
            address += part.len() as u64;
        }
        Ok(())
    }
}
