//! Writes batches of records, and what a clean close leaves. No thread and no clock: whoever has those calls it.
//!
//! Records go through the page cache: it is the stable copy that the kernel writes back a page at a time, and it
//! survives the process. A record lies within a sector, so one that a loss of power tears is told by its seal.

use std::{fmt, io, mem, sync::Arc, thread::sleep, time::Duration};

use crossbeam_channel::Sender;

use super::Entry;
use crate::{
    engine::Event,
    file::StableFile,
    format::{
        BLOCK_BYTES, RECORD_BYTES, StoreState, Superblock, encode_order, order_start, order_sum, record_start,
    },
};

/// How often in a row a write may be told to come again without a byte of progress.
const RETRIES_MAX: u32 = 8;
/// How long to wait before coming again, if the system has no room for the call right now.
const RETRY_PAUSE: Duration = Duration::from_millis(1);

/// The index file of an open store, as it is written.
pub(crate) struct Writer {
    index: Box<dyn StableFile>,
    /// The one that is on the device, and in which of the two blocks.
    superblock: Superblock,
    block: usize,
    /// One a device. For the syncs only.
    data: Vec<Arc<dyn StableFile>>,
    durable: bool,
    /// Whether a record could not be written. Then the store is not clean at its end.
    incomplete: Option<io::ErrorKind>,
    /// Why nothing is trusted any more: after a failed sync the kernel may have dropped what was written before, and
    /// a later sync says nothing about it.
    broken: Option<io::ErrorKind>,
    scratch: Scratch,
}

#[derive(Default)]
struct Scratch {
    /// The newest entry of each slot of the batch, by slot.
    latest: Vec<Entry>,
    bytes: Vec<u8>,
    devices: Vec<u32>,
}

/// What became of a batch.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// All records are written; in durable mode, with their payloads, on stable storage.
    Written,
    /// All but those of these slots.
    Except(Vec<(u32, io::Error)>),
    /// None is to be relied on.
    Failed(io::Error),
}

impl Outcome {
    /// What became of the record of `slot`.
    pub(crate) fn of(&self, slot: u32) -> io::Result<()> {
        let error = match self {
            Self::Written => None,
            Self::Except(failed) => failed.iter().find(|(at, _)| *at == slot).map(|(_, error)| error),
            Self::Failed(error) => Some(error),
        };
        error.map_or(Ok(()), |error| Err(again(error)))
    }

    /// Tells what the health of the store is to know: each error once, however many records it costs, and the loss of
    /// all trust once for ever. Nobody listens to a store that is gone.
    pub(crate) fn tell(&self, is_lost: &mut bool, events: &Sender<Event>) {
        match self {
            Self::Written => {}
            Self::Except(failed) => {
                let mut told: Vec<Option<i32>> = Vec::new();
                for (_, error) in failed {
                    let number = error.raw_os_error();
                    if !told.contains(&number) {
                        told.push(number);
                        let _ = events.send(Event::IndexFailed(again(error)));
                    }
                }
            }
            Self::Failed(error) => {
                if !mem::replace(is_lost, true) {
                    let _ = events.send(Event::JournalLost(again(error)));
                }
            }
        }
    }
}

impl Writer {
    /// Of the index whose newest superblock is `superblock`, in `block`; `data` are the files of the devices.
    pub(crate) fn new(
        index: Box<dyn StableFile>,
        (superblock, block): (Superblock, usize),
        data: Vec<Arc<dyn StableFile>>,
        durable: bool,
    ) -> Self {
        assert_eq!(data.len(), superblock.num_devices as usize, "one file a device");
        let scratch = Scratch::default();
        Self { index, superblock, block, data, durable, incomplete: None, broken: None, scratch }
    }

    pub(crate) fn is_durable(&self) -> bool {
        self.durable
    }

    /// Trusts nothing from here on.
    pub(crate) fn give_up(&mut self, error: &io::Error) {
        self.broken.get_or_insert(error.kind());
    }

    /// Writes the records of `batch`, of each slot the last one: those of neighbours in one piece. In durable mode the
    /// payloads are on the device before the records are written, and those before this returns.
    pub(crate) fn write(&mut self, batch: &[Entry]) -> Outcome {
        if let Some(kind) = self.broken {
            return Outcome::Failed(io::Error::new(kind, "an earlier failure: nothing is trusted since"));
        }
        let result = if self.durable { self.write_durably(batch) } else { Ok(self.write_records(batch)) };
        match result {
            Ok(failed) if failed.is_empty() => Outcome::Written,
            Ok(failed) => {
                let (slot, error) = &failed[0];
                tracing::warn!(num_records = failed.len(), slot, %error, "records could not be written");
                self.incomplete.get_or_insert(error.kind());
                Outcome::Except(failed)
            }
            Err(error) => {
                tracing::error!(%error, "a sync failed: nothing is recorded any more");
                self.give_up(&error);
                Outcome::Failed(error)
            }
        }
    }

    fn write_durably(&mut self, batch: &[Entry]) -> io::Result<Vec<(u32, io::Error)>> {
        let num_devices = self.superblock.num_devices;
        let devices = &mut self.scratch.devices;
        devices.clear();
        devices.extend(batch.iter().map(|entry| entry.slot % num_devices));
        devices.sort_unstable();
        devices.dedup();
        for &device in &*devices {
            self.data[device as usize].sync()?;
        }
        let failed = self.write_records(batch);
        self.index.sync()?;
        Ok(failed)
    }

    /// Hands on what failed.
    fn write_records(&mut self, batch: &[Entry]) -> Vec<(u32, io::Error)> {
        let Scratch { latest, bytes, .. } = &mut self.scratch;
        latest.clear();
        latest.extend(batch.iter().rev());
        // Stable: of the entries of a slot the last one of the batch comes first, and stays.
        latest.sort_by_key(|entry| entry.slot);
        latest.dedup_by_key(|entry| entry.slot);
        let mut failed = Vec::new();
        for run in latest.chunk_by(|a, b| a.slot + 1 == b.slot) {
            bytes.clear();
            for entry in run {
                assert!(entry.slot < self.superblock.num_slots, "{entry:?} is beyond the table");
                bytes.extend(entry.state.encode(self.superblock.id, entry.slot));
            }
            debug_assert_eq!(bytes.len(), run.len() * RECORD_BYTES);
            if let Err(error) = write_patiently(&*self.index, bytes, record_start(run[0].slot)) {
                failed.extend(run.iter().map(|entry| (entry.slot, again(&error))));
            }
        }
        failed
    }

    /// Sees everything to the device, then writes the eviction order and a superblock that says that the store was
    /// closed.
    ///
    /// # Errors
    /// If anything could not be written, now or before: then no superblock says so.
    pub(crate) fn close(&mut self, order: &[u32], written_bytes: u64) -> io::Result<()> {
        if let Some(kind) = self.broken {
            return Err(io::Error::new(kind, "an earlier failure: the store is not closed cleanly"));
        }
        let result = self.try_close(order, written_bytes);
        if let Err(error) = &result {
            self.give_up(error);
        }
        result
    }

    fn try_close(&mut self, order: &[u32], written_bytes: u64) -> io::Result<()> {
        for data in &self.data {
            data.sync()?;
        }
        self.index.sync()?;
        if let Some(kind) = self.incomplete {
            return Err(io::Error::new(kind, "records are missing: the store is not closed cleanly"));
        }
        let order_slots = u32::try_from(order.len()).unwrap_or(u32::MAX);
        assert!(order_slots <= self.superblock.num_slots, "{order_slots} slots in the order");
        let order = encode_order(order);
        write_patiently(&*self.index, &order, order_start(self.superblock.num_slots))?;
        self.index.sync()?;
        let next = self.superblock.next(StoreState::Clean);
        let next = Superblock { order_slots, order_sum: order_sum(&order), written_bytes, ..next };
        let block = 1 - self.block;
        write_patiently(&*self.index, &next.encode(), (block * BLOCK_BYTES) as u64)?;
        self.index.sync()?;
        (self.superblock, self.block) = (next, block);
        Ok(())
    }
}

impl fmt::Debug for Writer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Writer")
            .field("superblock", &self.superblock)
            .field("durable", &self.durable)
            .field("broken", &self.broken)
            .finish_non_exhaustive()
    }
}

/// The same error once more. Those of the system are known by their number.
pub(crate) fn again(error: &io::Error) -> io::Error {
    error
        .raw_os_error()
        .map_or_else(|| io::Error::new(error.kind(), error.to_string()), io::Error::from_raw_os_error)
}

/// Writes all of `bytes`. Short writes go on where they stopped; a call that was interrupted, or that the system had no
/// room for, is made again a few times.
fn write_patiently(file: &dyn StableFile, mut bytes: &[u8], mut offset: u64) -> io::Result<()> {
    let mut retries = 0;
    while !bytes.is_empty() {
        match file.write_at(bytes, offset) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => {
                bytes = &bytes[count..];
                offset += count as u64;
                retries = 0;
            }
            Err(error) if retries < RETRIES_MAX && is_momentary(&error) => {
                retries += 1;
                if error.kind() == io::ErrorKind::WouldBlock {
                    sleep(RETRY_PAUSE);
                }
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn is_momentary(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock)
}
