//! The host memory of all subjects: a slot a chunk, on huge pages.

use std::{fs, sync::Arc};

use anyhow::Context;
use kvo_core::{HostMemory, OffloadKey, SlotAccessError, SlotId, StableMemory};
use kvo_cpu::{HostRegion, RegionOptions};

use crate::{bytes, run_parallel};

/// Host memory with a slot for each chunk of a round, and some more. The subjects share it: they run in turns.
#[derive(Clone, Debug)]
pub struct HostChunks {
    region: Arc<HostRegion>,
    num_chunks: u32,
}

/// What a comparison found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checked {
    /// Bytes that are right.
    pub right_bytes: u64,
    /// Chunks that are not.
    pub wrong_chunks: u64,
}

impl HostChunks {
    /// Room for `num_chunks` chunks of `chunk_bytes` bytes, and behind them `more_slots` further slots; all of it is
    /// there when this returns.
    ///
    /// # Errors
    /// If there is too little memory.
    pub fn new(num_chunks: u32, chunk_bytes: usize, more_slots: u32) -> anyhow::Result<Self> {
        let num_slots = num_chunks.saturating_add(more_slots);
        let region = HostRegion::anonymous(&RegionOptions::new(num_slots, chunk_bytes))
            .with_context(|| format!("no host memory for {num_slots} chunks of {chunk_bytes} bytes"))?;
        Ok(Self { region: Arc::new(region), num_chunks })
    }

    /// The memory.
    pub fn region(&self) -> &Arc<HostRegion> {
        &self.region
    }

    /// The memory, as a store wants it.
    pub fn memory(&self) -> Arc<dyn HostMemory> {
        Arc::clone(&self.region) as _
    }

    /// Chunks a round.
    pub fn num_chunks(&self) -> u32 {
        self.num_chunks
    }

    /// Bytes a chunk.
    pub fn chunk_bytes(&self) -> usize {
        self.region.slot_bytes()
    }

    /// Writes the bytes of each chunk into the slot of its number.
    ///
    /// # Errors
    /// If a slot is in use.
    pub fn fill(&self, key: impl Fn(u32) -> OffloadKey + Sync) -> Result<(), SlotAccessError> {
        self.each(|index| self.region.with_write(SlotId(index), &mut |slot| bytes::fill(&key(index), slot)))?;
        Ok(())
    }

    /// Zeroes the slots of all chunks, so that what is left in them cannot pass for what is read.
    ///
    /// # Errors
    /// If a slot is in use.
    pub fn clear(&self) -> Result<(), SlotAccessError> {
        self.each(|index| self.region.with_write(SlotId(index), &mut |slot| slot.fill(0)))?;
        Ok(())
    }

    /// Compares the slot of each number with the bytes of its chunk.
    ///
    /// # Errors
    /// If a slot is in use.
    pub fn compare(&self, key: impl Fn(u32) -> OffloadKey + Sync) -> Result<Checked, SlotAccessError> {
        let parts = self.each(|index| {
            let mut checked = Checked::default();
            self.region.with_read(SlotId(index), &mut |slot| checked = Checked::of(&key(index), slot))?;
            Ok(checked)
        })?;
        Ok(parts.into_iter().fold(Checked::default(), Checked::and))
    }

    /// Of the memory, what is on huge pages, in percent; none where the system does not say.
    pub fn huge_percent(&self) -> Option<f64> {
        let (start, len) = self.region.span();
        let start = start.as_ptr().addr();
        huge_percent(&fs::read_to_string("/proc/self/smaps").ok()?, start..start + len)
    }

    fn each<R: Send>(
        &self,
        run: impl Fn(u32) -> Result<R, SlotAccessError> + Sync,
    ) -> Result<Vec<R>, SlotAccessError> {
        let indices: Vec<u32> = (0..self.num_chunks).collect();
        run_parallel(&indices, |&index| run(index)).into_iter().collect()
    }
}

impl Checked {
    /// That of one chunk.
    pub fn of(key: &OffloadKey, bytes: &[u8]) -> Self {
        if bytes::holds(key, bytes) {
            Self { right_bytes: bytes.len() as u64, wrong_chunks: 0 }
        } else {
            Self { right_bytes: 0, wrong_chunks: 1 }
        }
    }

    /// Both together.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            right_bytes: self.right_bytes + other.right_bytes,
            wrong_chunks: self.wrong_chunks + other.wrong_chunks,
        }
    }
}

/// The share of huge pages in what is resident of the mappings that `range` lies in, in percent.
fn huge_percent(smaps: &str, range: std::ops::Range<usize>) -> Option<f64> {
    let (mut is_in, mut resident, mut huge) = (false, 0, 0);
    for line in smaps.lines() {
        let kib =
            |name: &str| line.strip_prefix(name)?.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok();
        if let Some(mapping) = mapping_of(line) {
            is_in = mapping.start < range.end && range.start < mapping.end;
        } else if is_in {
            resident += kib("Rss:").unwrap_or(0);
            huge += kib("AnonHugePages:").unwrap_or(0);
        }
    }
    (resident > 0).then(|| 100.0 * huge as f64 / resident as f64)
}

fn mapping_of(line: &str) -> Option<std::ops::Range<usize>> {
    let (start, end) = line.split(' ').next()?.split_once('-')?;
    let address = |text| usize::from_str_radix(text, 16).ok();
    Some(address(start)?..address(end)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key;

    #[test]
    fn what_is_filled_compares_and_one_wrong_byte_is_seen() {
        let host = HostChunks::new(6, 4096, 1).unwrap();
        assert_eq!((host.num_chunks(), host.chunk_bytes(), host.region().num_slots()), (6, 4096, 7));
        host.fill(key).unwrap();
        assert_eq!(host.compare(key).unwrap(), Checked { right_bytes: 6 * 4096, wrong_chunks: 0 });
        host.region().with_write(SlotId(4), &mut |slot| slot[4000] ^= 1).unwrap();
        assert_eq!(host.compare(key).unwrap(), Checked { right_bytes: 5 * 4096, wrong_chunks: 1 });
        host.clear().unwrap();
        assert_eq!(host.compare(key).unwrap(), Checked { right_bytes: 0, wrong_chunks: 6 });
    }

    const SMAPS: &str = "\
1000-3000 rw-p 00000000 00:00 0
Size:               8 kB
Rss:                8 kB
AnonHugePages:      0 kB
5000-9000 rw-p 00000000 00:00 0
Rss:               16 kB
AnonHugePages:     12 kB
VmFlags: rd wr mr mw me ac hg
9000-a000 r--p 00000000 08:01 7 a/file-with-dashes
Rss:                4 kB
AnonHugePages:      4 kB
";

    #[test]
    fn huge_pages_are_counted_in_the_mappings_of_a_range() {
        assert_eq!(huge_percent(SMAPS, 0x5000..0x8000), Some(75.0));
        assert_eq!(huge_percent(SMAPS, 0x2000..0x6000), Some(50.0));
        assert_eq!(huge_percent(SMAPS, 0xb000..0xc000), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn this_system_says_what_is_on_huge_pages() {
        let host = HostChunks::new(4, 2 << 20, 0).unwrap();
        assert!((0.0..=100.0).contains(&host.huge_percent().unwrap()));
    }
}
