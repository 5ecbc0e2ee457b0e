//! What is transferred.

use std::{ops::Range, time::Duration};

use kvo_core::{
    ComputePoint, CopyOp, Direction, Fence, FenceError, SlotId, SubmitErrorReason, Transfer, TransferClass,
};

use super::{Copy, NUM_AREAS, NUM_STREAMS, Open, Round, Stream, slots_of};
use crate::suite::traffic::model::GUARD;

impl Round<'_> {
    pub(super) fn submit(&mut self) {
        let any = TransferClass::ALL[self.random.below(4)];
        let class = if self.random.one_in(4) { TransferClass::Store } else { any };
        let (direction, stream) = (class.direction(), self.random.below(NUM_STREAMS));
        // Layer by layer, from slots of which compute can tell that they are there.
        let has_layers = direction == Direction::Load && self.random.one_in(6);
        let copies = self.copies(direction, stream, has_layers);
        if copies.is_empty() {
            return self.poll(Duration::from_micros(20));
        }
        let transfer = self.transfer(class, stream, &copies, has_layers);
        match self.rig.device().submit(transfer.clone()) {
            Ok(ticket) => {
                self.move_in_model(direction, &copies);
                let bytes = copies.iter().map(|copy| copy.bytes as u64).sum();
                let open = Open { direction, stream, copies, marks: transfer.marks, bytes };
                if has_layers && self.layered.is_none() {
                    self.layered = Some((ticket, self.random.below(open.marks.len())));
                }
                assert!(self.open.insert(ticket, open).is_none(), "ticket {} was given twice", ticket.0);
            }
            Err(error) => {
                assert!(matches!(error.reason, SubmitErrorReason::Full { .. }), "{}", error.reason);
                assert_eq!(error.transfer, transfer, "it is handed back as it was");
                self.give_back(direction, &copies);
                self.counts.handed_back += 1;
                self.hold = None;
                self.poll(Duration::from_millis(1));
            }
        }
    }

    /// Some copies, of which nothing else uses anything meanwhile.
    fn copies(&mut self, direction: Direction, stream: usize, has_layers: bool) -> Vec<Copy> {
        let slots = self.some_slots(direction);
        if has_layers {
            for slot in &slots {
                self.write_slot(*slot);
            }
        }
        let mut copies = Vec::new();
        if self.random.one_in(4) {
            self.take_row(direction, stream, slots[0], &mut copies);
            return copies;
        }
        let wanted = match self.random.below(20) {
            0 => self.random.within(17, 40),
            1..5 => self.random.within(5, 12),
            _ => self.random.within(1, 4),
        };
        for _ in 0..wanted {
            let slot = slots[self.random.below(slots.len())];
            let copy = self.any_copy(direction, stream, slot);
            self.take(direction, copy, &mut copies);
        }
        copies
    }

    fn transfer(
        &mut self,
        class: TransferClass,
        stream: usize,
        copies: &[Copy],
        has_layers: bool,
    ) -> Transfer {
        let op = |copy: &Copy| CopyOp {
            region: self.areas[copy.area].region,
            device_offset: (copy.place - GUARD) as u64,
            slot: SlotId(u32::try_from(copy.slot).expect("few slots")),
            slot_offset: copy.offset as u64,
            bytes: copy.bytes as u64,
        };
        let ops = copies.iter().map(op).collect();
        let mut marks = Vec::new();
        if has_layers || self.random.one_in(8) {
            marks.extend((0..self.random.within(1, 4)).map(|_| self.random.below(copies.len() + 1)));
            marks.sort_unstable();
        }
        let marks = marks.into_iter().map(|mark| u32::try_from(mark).expect("few copies")).collect();
        let deadline = self.random.one_in(8).then_some(Duration::from_hours(1));
        Transfer { class, ops, marks, after: self.fence(stream), deadline }
    }

    /// A fence behind all that is on a stream: a new one by the stream or by an event, or one that others wait for too.
    fn fence(&mut self, stream: usize) -> Fence {
        if let Some(fence) = self.streams[stream].fence
            && !self.random.one_in(4)
        {
            return fence;
        }
        // Each that waits for an event may cost the device a stream.
        let rarely = if self.hold.is_some() { 16 } else { 4 };
        let by_event = self.random.one_in(rarely).then(|| self.random.below(2));
        let Stream { handle, events, .. } = self.streams[stream];
        let point = match by_event.map(|nth| events[nth]) {
            Some(event) => {
                self.rig.bed.record(event, handle);
                ComputePoint::Event(event)
            }
            None => ComputePoint::Stream(handle),
        };
        let mut fence = self.rig.device().record_fence(point);
        if let Err(FenceError::Full { .. }) = fence {
            self.hold = None;
            self.rig.until("there are fences again", |rig| {
                fence = rig.device().record_fence(point);
                fence.is_ok()
            });
        }
        let fence = fence.unwrap_or_else(|error| panic!("a fence: {error}"));
        self.streams[stream].fence = Some(fence);
        fence
    }

    /// An area whose compute is on the stream.
    fn area_of(&mut self, stream: usize) -> usize {
        let areas = (NUM_AREAS - stream).div_ceil(NUM_STREAMS);
        stream + NUM_STREAMS * self.random.below(areas)
    }

    /// One to three that a transfer may use, if that is possible.
    fn some_slots(&mut self, direction: Direction) -> Vec<usize> {
        let count = self.random.within(1, 3);
        let one = |_| {
            let mut tries = (0..8).map(|_| self.random.below(self.slots.len()));
            let can_use = |slot: &usize| match direction {
                Direction::Store => self.slots[*slot].is_free(),
                Direction::Load => !self.slots[*slot].is_written,
            };
            tries.find(can_use).unwrap_or(0)
        };
        (0..count).map(one).collect()
    }

    fn any_copy(&mut self, direction: Direction, stream: usize, slot: usize) -> Copy {
        // Often what compute is about to use, for which a fence is there.
        let is_on_stream = |(area, _): &&(usize, Range<usize>)| self.areas[*area].stream == stream;
        let recent = self.recent.iter().rev().find(is_on_stream).cloned().filter(|_| self.random.one_in(3));
        if let Some((area, range)) = recent {
            let bytes = range.len().min(self.slots[slot].memory.bytes.len());
            return Copy { area, place: range.start, slot, offset: 0, bytes, seed: None };
        }
        let area = self.area_of(stream);
        let (room, slot_bytes) = (self.areas[area].region_bytes(), self.slots[slot].memory.bytes.len());
        let longest = if self.random.one_in(2) { 16 } else { 200 };
        let bytes = self.random.within(1, longest.min(room).min(slot_bytes));
        let place = GUARD + self.random.below(room - bytes + 1);
        let seed = self.slots[slot].seed.filter(|_| direction == Direction::Load && !self.random.one_in(4));
        let offset = if seed.is_some() { 0 } else { self.random.below(slot_bytes - bytes + 1) };
        Copy { area, place, slot, offset, bytes, seed }
    }

    /// Copies of one length at constant steps, as pages lie.
    fn take_row(&mut self, direction: Direction, stream: usize, slot: usize, copies: &mut Vec<Copy>) {
        let area = self.area_of(stream);
        let (bytes, count) = (self.random.within(1, 24), self.random.within(4, 24));
        let steps = [self.random.within(bytes, 60), self.random.within(bytes, 40)];
        let starts = [GUARD + self.random.below(50), self.random.below(20)];
        for nth in 0..count {
            let (place, offset) = (starts[0] + nth * steps[0], starts[1] + nth * steps[1]);
            let is_inside = place + bytes <= GUARD + self.areas[area].region_bytes()
                && offset + bytes <= self.slots[slot].memory.bytes.len();
            if is_inside {
                self.take(direction, Copy { area, place, slot, offset, bytes, seed: None }, copies);
            }
        }
    }

    /// Adds a copy to a transfer, unless something else uses what it would.
    fn take(&mut self, direction: Direction, copy: Copy, copies: &mut Vec<Copy>) {
        let is_mine = copies.iter().any(|other| other.slot == copy.slot);
        let (device, slot) = (&mut self.areas[copy.area].memory, &mut self.slots[copy.slot]);
        match direction {
            Direction::Store => {
                let can_write = (is_mine || slot.is_free()) && slot.memory.can_write(copy.in_slot());
                if !can_write || !device.can_read(copy.on_device()) {
                    return;
                }
                device.begin_read(copy.on_device());
                slot.memory.begin_write(copy.in_slot());
                slot.is_written = true;
            }
            Direction::Load => {
                if slot.is_written || !device.can_write(copy.on_device()) {
                    return;
                }
                device.begin_write(copy.on_device());
                slot.readers += u32::from(!is_mine);
            }
        }
        copies.push(copy);
    }

    pub(super) fn give_back(&mut self, direction: Direction, copies: &[Copy]) {
        for copy in copies {
            let (device, slot) = (&mut self.areas[copy.area].memory, &mut self.slots[copy.slot]);
            match direction {
                Direction::Store => {
                    device.end_read(copy.on_device());
                    slot.memory.end_write(copy.in_slot());
                    slot.is_written = false;
                }
                Direction::Load => device.end_write(copy.on_device()),
            }
        }
        if direction == Direction::Load {
            for slot in slots_of(copies) {
                self.slots[slot].readers -= 1;
            }
        }
    }

    fn move_in_model(&mut self, direction: Direction, copies: &[Copy]) {
        for copy in copies {
            let (device, slot) = (&mut self.areas[copy.area].memory, &mut self.slots[copy.slot]);
            let on_device = &mut device.bytes[copy.on_device()];
            let in_slot = &mut slot.memory.bytes[copy.in_slot()];
            match direction {
                Direction::Store => {
                    in_slot.copy_from_slice(on_device);
                    slot.seed = None;
                }
                Direction::Load => on_device.copy_from_slice(in_slot),
            }
        }
    }
}
