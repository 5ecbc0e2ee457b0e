//! What compute does, and another tier.

use std::ops::Range;

use kvo_core::MarkOrder;

use super::{Known, NUM_AREAS, Round};
use crate::{
    pattern,
    suite::traffic::model::{Area, GUARD},
};

impl Round<'_> {
    /// Some bytes of an area.
    pub(super) fn somewhere(&mut self, area: usize) -> Range<usize> {
        let room = self.areas[area].region_bytes();
        let bytes = self.random.within(1, room.min(200));
        let start = GUARD + self.random.below(room - bytes + 1);
        start..start + bytes
    }

    pub(super) fn fill(&mut self) {
        let area = self.random.below(NUM_AREAS);
        let range = self.somewhere(area);
        self.fill_range(area, range);
    }

    pub(super) fn fill_range(&mut self, area: usize, range: Range<usize>) {
        if !self.areas[area].memory.can_write(range.clone()) {
            return;
        }
        let seed = self.new_seed();
        let Area { memory, stream, .. } = &mut self.areas[area];
        memory.bytes[range.clone()].copy_from_slice(&pattern(seed, range.len()));
        let stream = &mut self.streams[*stream];
        stream.fence = None;
        let address = self.areas[area].address(range.start);
        self.rig.bed.fill(stream.handle, address, range.len() as u64, seed);
        self.remember(area, range.clone());
        self.known.push_back(Known { area, range, seed });
        if self.known.len() > 8 {
            self.known.pop_front();
        }
        self.counts.fills += 1;
    }

    fn remember(&mut self, area: usize, range: Range<usize>) {
        self.recent.push_back((area, range));
        if self.recent.len() > 6 {
            self.recent.pop_front();
        }
    }

    /// Looks at what compute has written, if it is still there. A load that comes there later waits for this.
    pub(super) fn check_known(&mut self) {
        let Some(Known { area, range, seed }) = self.known.pop_back() else { return };
        let memory = &self.areas[area].memory;
        let is_there = memory.bytes[range.clone()] == pattern(seed, range.len());
        if is_there && memory.can_read(range.clone()) {
            self.check(area, range, seed);
        }
    }

    fn check(&mut self, area: usize, range: Range<usize>, seed: u64) {
        let stream = &mut self.streams[self.areas[area].stream];
        stream.fence = None;
        let address = self.areas[area].address(range.start);
        self.rig.bed.check(stream.handle, address, range.len() as u64, seed);
        self.counts.checks += 1;
        self.remember(area, range);
    }

    /// Another tier writes a slot, unless it is used.
    pub(super) fn write_slot(&mut self, nth: usize) {
        let seed = self.new_seed();
        let slot = &mut self.slots[nth];
        if slot.is_free() {
            slot.memory.bytes = pattern(seed, slot.memory.bytes.len());
            slot.seed = Some(seed);
            self.rig.write_slot(u32::try_from(nth).expect("few slots"), &slot.memory.bytes);
        }
    }

    /// Has a stream wait for a part of a load, once that is on its way, and look at what that has brought.
    pub(super) fn wait_for_mark(&mut self) {
        let Some((ticket, mark)) = self.layered.take() else { return };
        let Some(open) = self.open.get(&ticket) else { return };
        let handle = self.streams[open.stream].handle;
        let order = self.rig.device().order_after(ticket, u32::try_from(mark).expect("few marks"), handle);
        match order {
            Ok(MarkOrder::Ordered) => {}
            Ok(MarkOrder::NotYet) => {
                self.layered = Some((ticket, mark));
                return;
            }
            Ok(MarkOrder::Ended) => return,
            Err(error) => panic!("mark {mark} of ticket {}: {error}", ticket.0),
        }
        self.streams[open.stream].fence = None;
        let brought = &open.copies[..open.marks[mark] as usize];
        let known = brought.iter().rev().find_map(|copy| Some((copy.area, copy.on_device(), copy.seed?)));
        if let Some((area, range, seed)) = known {
            self.check(area, range, seed);
            self.counts.marks += 1;
        }
    }
}
