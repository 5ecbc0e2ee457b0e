//! The bytes of one file, on a disk with a cache that a loss of power empties.

use std::ops::Range;

use super::rng::Rng;

/// What a disk writes whole or not at all.
pub(crate) const SECTOR_BYTES: usize = 512;

/// One file: what a read gives, and what of it would survive.
///
/// A loss of power keeps of every sector of every write since the last sync either the old bytes or the new ones, each
/// by itself.
#[derive(Clone)]
pub(crate) struct Image {
    /// What is on stable storage.
    stable: Vec<u8>,
    /// What a read gives: that, and whatever was written since.
    seen: Vec<u8>,
    /// Sectors written since the last sync, in the order of the writes.
    unsynced: Vec<(usize, [u8; SECTOR_BYTES])>,
    /// Of the file; nobody uses these bytes, and there are none here.
    hole: Range<u64>,
}

impl Image {
    /// A file of `bytes` zeroes, without those of `hole`.
    pub(crate) fn new(bytes: u64, hole: Range<u64>) -> Self {
        let held = usize::try_from(bytes - (hole.end - hole.start)).expect("images are small");
        let held = held.next_multiple_of(SECTOR_BYTES);
        Self { stable: vec![0; held], seen: vec![0; held], unsynced: Vec::new(), hole }
    }

    /// Where `offset` of the file is here.
    fn at(&self, offset: u64) -> usize {
        assert!(!self.hole.contains(&offset), "offset {offset} lies between the header and the slots");
        let skipped = if offset < self.hole.end { 0 } else { self.hole.end - self.hole.start };
        usize::try_from(offset - skipped).expect("images are small")
    }

    pub(crate) fn bytes(&self, offset: u64, count: usize) -> &[u8] {
        let at = self.at(offset);
        &self.seen[at..at + count]
    }

    /// The bytes that a loss of power would leave at worst.
    pub(crate) fn stable(&self, offset: u64, count: usize) -> &[u8] {
        let at = self.at(offset);
        &self.stable[at..at + count]
    }

    /// Whether a loss of power would leave the sector at `offset` as it is.
    pub(crate) fn is_synced(&self, offset: u64) -> bool {
        self.bytes(offset, SECTOR_BYTES) == self.stable(offset, SECTOR_BYTES)
    }

    /// Writes the sectors of `bytes` for which `lands` says so, counted from the first.
    pub(crate) fn write(&mut self, offset: u64, bytes: &[u8], mut lands: impl FnMut(usize) -> bool) {
        let start = self.at(offset);
        let mut done = 0;
        let mut nth = 0;
        while done < bytes.len() {
            let at = start + done;
            let count = (SECTOR_BYTES - at % SECTOR_BYTES).min(bytes.len() - done);
            if lands(nth) {
                self.seen[at..at + count].copy_from_slice(&bytes[done..done + count]);
                let sector = at / SECTOR_BYTES;
                self.unsynced.push((sector, *self.sector(sector)));
            }
            done += count;
            nth += 1;
        }
    }

    fn sector(&self, sector: usize) -> &[u8; SECTOR_BYTES] {
        let at = sector * SECTOR_BYTES;
        self.seen[at..at + SECTOR_BYTES].try_into().expect("a sector")
    }

    /// Changes a bit where it lies: no sync brings it back.
    pub(crate) fn flip(&mut self, offset: u64, bit: u32) {
        let at = self.at(offset);
        self.seen[at] ^= 1 << (bit % 8);
        self.stable[at] ^= 1 << (bit % 8);
        // A write that is still in the cache has decayed too.
        let sector = at / SECTOR_BYTES;
        for (other, bytes) in &mut self.unsynced {
            if *other == sector {
                bytes[at % SECTOR_BYTES] ^= 1 << (bit % 8);
            }
        }
    }

    /// Whatever was written is on stable storage now.
    pub(crate) fn sync(&mut self) {
        for (sector, bytes) in self.unsynced.drain(..) {
            put(&mut self.stable, sector, &bytes);
        }
    }

    /// A sync that fails: some sectors have arrived, the others never will, although a read still gives them, and no
    /// later sync tells of them. Returns where in the file those begin.
    pub(crate) fn fail_sync(&mut self, rng: &mut Rng) -> Vec<u64> {
        let mut dropped = Vec::new();
        for (sector, bytes) in self.unsynced.drain(..) {
            if rng.one_in(2) {
                put(&mut self.stable, sector, &bytes);
            } else {
                dropped.push((sector * SECTOR_BYTES) as u64);
            }
        }
        let skipped = self.hole.end - self.hole.start;
        dropped.iter_mut().filter(|at| **at >= self.hole.start).for_each(|at| *at += skipped);
        dropped
    }

    /// Loses power: of what was not synced, each sector is there with a chance of `eighths` in 8.
    pub(crate) fn lose_power(&mut self, rng: &mut Rng, eighths: u64) {
        for (sector, bytes) in self.unsynced.drain(..) {
            if rng.below(8) < eighths {
                put(&mut self.stable, sector, &bytes);
            }
        }
        self.seen.copy_from_slice(&self.stable);
    }
}

fn put(into: &mut [u8], sector: usize, bytes: &[u8; SECTOR_BYTES]) {
    let at = sector * SECTOR_BYTES;
    into[at..at + SECTOR_BYTES].copy_from_slice(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image() -> Image {
        Image::new(4096 + 8192 + 2048, 4096..12_288)
    }

    /// The first byte of each of the four sectors behind the hole.
    fn firsts(image: &Image) -> [u8; 4] {
        [0, 1, 2, 3].map(|sector| image.bytes(12_288 + sector * 512, 1)[0])
    }

    #[test]
    fn a_loss_of_power_undoes_what_was_not_synced() {
        let mut image = image();
        image.write(12_288, &[1; 2048], |_| true);
        image.sync();
        image.write(12_288, &[2; 1024], |_| true);
        image.write(12_288 + 1024, &[3; 1024], |sector| sector == 1);
        assert_eq!(firsts(&image), [2, 2, 1, 3]);
        image.lose_power(&mut Rng::new(1), 0);
        assert_eq!(firsts(&image), [1; 4]);
    }

    #[test]
    fn each_sector_of_each_write_is_lost_or_kept_by_itself() {
        let mut seen = std::collections::BTreeSet::new();
        for seed in 0..200 {
            let mut image = image();
            image.write(12_288, &[1; 2048], |_| true);
            image.write(12_288, &[2; 512], |_| true);
            image.lose_power(&mut Rng::new(seed), 4);
            seen.insert(firsts(&image));
        }
        assert_eq!(seen.len(), 3 * 2 * 2 * 2);
    }

    #[test]
    fn what_a_failed_sync_dropped_no_later_sync_saves() {
        let mut image = image();
        image.write(12_288, &[1; 2048], |_| true);
        // With this seed something is dropped.
        let dropped = image.fail_sync(&mut Rng::new(3));
        assert!(!dropped.is_empty() && dropped.iter().all(|at| (12_288..14_336).contains(at)), "{dropped:?}");
        assert_eq!(firsts(&image), [1; 4]);
        image.sync();
        image.lose_power(&mut Rng::new(1), 8);
        assert!(firsts(&image).contains(&0), "{:?}", firsts(&image));
    }

    #[test]
    fn a_write_may_begin_and_end_within_a_sector() {
        let mut image = image();
        image.write(12_288 + 500, &[1; 24], |sector| sector == 1);
        assert_eq!(image.bytes(12_288 + 500, 25), [[0; 12].as_slice(), &[1; 12], &[0]].concat());
        image.flip(12_288 + 512, 9);
        assert_eq!(image.stable(12_288 + 512, 1), [2]);
        image.sync();
        assert_eq!(image.stable(12_288 + 512, 1), [3]);
    }
}
