//! The store on its own: one chunk at a time, on the caller's thread.

use std::io;

use hashbrown::HashSet;
use kvo_core::{OffloadKey, SlotId};
use kvo_policies::{AccessKind, KeyAccess, Met, RequestAccesses};

use super::{Life, NvmeStore, Recording, Request};
use crate::{
    ChunkError,
    catalog::{Origin, Residence},
    engine::Fault,
    health::{Direction, Task},
};

impl NvmeStore {
    /// Writes one chunk and waits for it. A chunk that is there already is kept as it is.
    ///
    /// Each call counts as one access. Not for the scheduler's path.
    ///
    /// # Errors
    /// [`ChunkError::Length`] unless `bytes` is one chunk; [`ChunkError::Pending`] if a job is writing the key, or
    /// is the first to read it since the store was killed;
    /// [`ChunkError::Refused`] while the device has failed too often or cannot be written;
    /// [`ChunkError::NoRoom`] if nothing can be evicted; then nothing has changed. After [`ChunkError::Write`] the
    /// chunk is not in the store, and another may have been evicted for it; in a durable store whose record is late
    /// ([`TimedOut`](io::ErrorKind::TimedOut)) it comes there once the record is safe.
    pub fn write_chunk(&mut self, key: OffloadKey, bytes: &[u8]) -> Result<(), ChunkError> {
        self.check_length(bytes.len())?;
        self.absorb();
        if self.life != Life::Open {
            return Err(ChunkError::Refused);
        }
        let Request { mut accesses, run } = self.new_request();
        match self.catalog.residence(&key) {
            Residence::Writing(_) => return Err(ChunkError::Pending),
            Residence::Valid { slot, evictable } if self.catalog.is_unproven(slot) => {
                if !evictable {
                    return Err(ChunkError::Pending);
                }
            }
            Residence::Valid { slot, .. } => {
                self.stats.chunks_present += 1;
                self.commit(&mut accesses, &key, slot, Met::Ready);
                return Ok(());
            }
            Residence::Absent => {}
        }
        let pass = self.health.allow(Direction::Write, self.clock.now()).map_err(|_| ChunkError::Refused)?;
        self.catalog.evict_unproven(&key);
        self.catalog.on_store_miss(&[KeyAccess {
            key,
            slot: None,
            end_token: None,
            kind: AccessKind::Inserted,
        }]);
        self.catalog.make_room(1, &HashSet::new(), 0);
        let Some((slot, tenant)) =
            self.catalog.begin_write(&mut accesses.recency, key, Origin { run, end_token: None })
        else {
            self.health.on_cancelled(pass);
            self.stats.chunks_refused += 1;
            return Err(ChunkError::NoRoom);
        };
        match self.worker.write(slot, &tenant, bytes) {
            Ok(checksum) => {
                self.health.on_success(pass);
                self.put_record(slot, checksum);
                if self.durable {
                    self.recording.insert(slot, Recording { op: None, checksum });
                    self.await_record(slot, &key)?;
                } else {
                    self.end_write(slot, Ok(checksum));
                }
            }
            Err(fault) => {
                let verdict = self.note_fault(Task::Write, &fault, pass);
                self.end_write(slot, Err(verdict.slot));
                return Err(ChunkError::Write(into_io(fault)));
            }
        }
        self.stats.write.chunks += 1;
        self.stats.write.bytes += bytes.len() as u64;
        self.commit(&mut accesses, &key, slot, Met::Stored);
        Ok(())
    }

    /// Waits until the record of a chunk is safe, or is known not to be, or is late.
    fn await_record(&mut self, slot: u32, key: &OffloadKey) -> Result<(), ChunkError> {
        self.wait_while(self.deadline, |store| store.recording.contains_key(&slot));
        match self.catalog.residence(key) {
            Residence::Valid { .. } => Ok(()),
            // The slot is settled when the record is.
            Residence::Writing(_) => Err(ChunkError::Write(io::ErrorKind::TimedOut.into())),
            Residence::Absent => {
                Err(ChunkError::Write(io::Error::other("the record of the chunk could not be made safe")))
            }
        }
    }

    /// Reads one chunk into `bytes` and waits for it; `false` is a miss.
    ///
    /// A read that fails, or whose checksum is wrong, is a miss too; the chunk is dropped then, and `bytes` is of no
    /// use. Each hit counts as one access. Not for the scheduler's path.
    ///
    /// # Errors
    /// [`ChunkError::Length`] unless `bytes` has room for one chunk exactly.
    pub fn read_chunk(&mut self, key: &OffloadKey, bytes: &mut [u8]) -> Result<bool, ChunkError> {
        self.check_length(bytes.len())?;
        self.absorb();
        let pass = match self.catalog.residence(key) {
            Residence::Valid { .. } if self.life == Life::Open => {
                self.health.allow(Direction::Read, self.clock.now()).ok()
            }
            _ => None,
        };
        let Some((pass, pinned)) = pass.and_then(|pass| Some((pass, self.catalog.begin_read(key)?))) else {
            self.stats.read_misses += 1;
            return Ok(false);
        };
        let result = self.worker.read(pinned.slot, &pinned.tenant, pinned.checksum, bytes);
        self.end_read(pinned.slot, &result, pass);
        if let Err(fault) = result {
            tracing::warn!(tier = &*self.name, ?key, %fault, "read failed");
            return Ok(false);
        }
        self.stats.read.chunks += 1;
        self.stats.read.bytes += bytes.len() as u64;
        self.commit(&mut RequestAccesses::default(), key, pinned.slot, Met::Ready);
        Ok(true)
    }

    fn check_length(&self, given: usize) -> Result<(), ChunkError> {
        let chunk_bytes = self.chunk_bytes();
        if given == chunk_bytes { Ok(()) } else { Err(ChunkError::Length { given, chunk_bytes }) }
    }

    /// One access that begins and ends here.
    fn commit(&mut self, accesses: &mut RequestAccesses, key: &OffloadKey, slot: u32, met: Met) {
        if let Some(access) = accesses.record(key, Some(SlotId(slot)), None, met) {
            self.catalog.on_request_access(&mut accesses.recency, &[access]);
        }
        self.catalog.finish(accesses, &mut self.scratch.accesses);
    }
}

fn into_io(fault: Fault) -> io::Error {
    match fault {
        Fault::Io(error) => error,
        other => io::Error::other(other),
    }
}
