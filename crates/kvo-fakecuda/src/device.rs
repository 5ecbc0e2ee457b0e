//! A device: its allocations with red zones around them, its engines, its primary context.

use std::collections::{BTreeMap, VecDeque};

use crate::{
    abi::{Code, Done},
    memory::{Arena, PAGE_BYTES, Span},
    state::State,
    tally,
};

/// What fresh memory is full of.
pub(crate) const FRESH: u8 = 0xA5;
/// What red zones are full of.
const RED: u8 = 0xFD;
/// How much of it there is on each side, at least.
const RED_BYTES: usize = PAGE_BYTES;

/// A device.
#[derive(Default)]
pub(crate) struct Device {
    /// The primary context, while anybody has it.
    pub(crate) context: Option<u64>,
    pub(crate) retains: u32,
    /// The NULL stream of the context.
    pub(crate) null_stream: u64,
    /// The sticky error. It outlives the context: only a new process gets rid of it.
    pub(crate) dead: Option<Code>,
    /// By address.
    pub(crate) allocations: BTreeMap<u64, usize>,
    allocated_bytes: usize,
    /// Where the next allocation goes: addresses come back only when all have been used.
    pub(crate) cursor: usize,
    /// The copies that wait for the engine to the device, and for the one from it, first come, first served.
    pub(crate) engines: [VecDeque<u64>; 2],
}

/// How much of the arena an allocation takes, red zones and all.
fn extent(bytes: usize) -> Option<usize> {
    bytes.checked_next_multiple_of(PAGE_BYTES)?.checked_add(2 * RED_BYTES)
}

impl State {
    pub(crate) fn allocate(&mut self, device: usize, bytes: usize) -> Result<u64, Code> {
        if bytes == 0 {
            return Err(Code::INVALID_VALUE);
        }
        let (arena, memory) = (&self.arenas[device], &mut self.devices[device]);
        let left = self.config.memory_bytes.saturating_sub(memory.allocated_bytes);
        let extent = extent(bytes).filter(|_| bytes <= left).ok_or(Code::OUT_OF_MEMORY)?;
        let offset = memory.place(arena, extent).ok_or(Code::OUT_OF_MEMORY)?;
        let address = arena.start() + (offset + RED_BYTES) as u64;
        let whole = arena.span(address - RED_BYTES as u64, extent).expect("placed inside of the arena");
        whole.fill(RED);
        whole.part(RED_BYTES, bytes).fill(FRESH);
        memory.cursor = offset + extent;
        memory.allocations.insert(address, bytes);
        memory.allocated_bytes += bytes;
        Ok(address)
    }

    /// Frees an allocation, whose work must be over, and looks at its red zones.
    pub(crate) fn free(&mut self, device: usize, address: u64) -> Done {
        let bytes = *self.devices[device].allocations.get(&address).ok_or(Code::INVALID_VALUE)?;
        self.check_red_zones_of(device, address, bytes);
        let memory = &mut self.devices[device];
        memory.allocations.remove(&address);
        memory.allocated_bytes -= bytes;
        self.whole(device, address, bytes).discard();
        Ok(())
    }

    pub(crate) fn free_bytes(&self, device: usize) -> usize {
        self.config.memory_bytes.saturating_sub(self.devices[device].allocated_bytes)
    }

    /// The allocation that holds `address`: its device, start and length. Red zones are of none.
    pub(crate) fn allocation_at(&self, address: u64) -> Option<(usize, u64, usize)> {
        let device = self.device_at(address)?;
        let (start, bytes) = self.devices[device].allocations.range(..=address).next_back()?;
        (address - start < *bytes as u64).then_some((device, *start, *bytes))
    }

    /// The device whose address it is, allocated or not.
    pub(crate) fn device_at(&self, address: u64) -> Option<usize> {
        let arenas = self.arenas.iter().take(self.devices.len());
        arenas.enumerate().find(|(_, arena)| arena.contains(address)).map(|(device, _)| device)
    }

    /// Memory in or across a red zone: the allocation that the zone is of, and where the bytes are.
    pub(crate) fn red_zone_at(&self, address: u64, bytes: usize) -> Option<(u64, Span)> {
        let device = self.device_at(address)?;
        let arena = &self.arenas[device];
        let allocations = &self.devices[device].allocations;
        let near = [allocations.range(..=address).next_back(), allocations.range(address..).next()];
        near.into_iter().flatten().find_map(|(start, length)| {
            let zone = start - RED_BYTES as u64;
            let extent = extent(*length)? as u64;
            let is_inside = zone <= address && address + bytes as u64 <= zone + extent;
            is_inside.then(|| arena.span(address, bytes)).flatten().map(|span| (*start, span))
        })
    }

    pub(crate) fn check_red_zones(&mut self) {
        for device in 0..self.devices.len() {
            for (address, bytes) in self.devices[device].allocations.clone() {
                self.check_red_zones_of(device, address, bytes);
            }
        }
    }

    /// Each zone with a wrong byte is a violation, and made anew.
    fn check_red_zones_of(&mut self, device: usize, address: u64, bytes: usize) {
        let whole = self.whole(device, address, bytes);
        let after = RED_BYTES + bytes;
        let zones = [whole.part(0, RED_BYTES), whole.part(after, whole.bytes() - after)];
        for (zone, start) in zones.into_iter().zip([address - RED_BYTES as u64, address + bytes as u64]) {
            if let Some(offset) = first_other(zone, RED) {
                zone.fill(RED);
                self.tally.violation(tally::RED_ZONE, [address, start + offset as u64, 0, 0, 0]);
            }
        }
    }

    fn whole(&self, device: usize, address: u64, bytes: usize) -> Span {
        let extent = extent(bytes).expect("it was allocated");
        let whole = self.arenas[device].span(address - RED_BYTES as u64, extent);
        whole.expect("an allocation is inside of its arena")
    }
}

impl Device {
    /// A device whose first allocation is behind `cursor`.
    pub(crate) fn starting_at(cursor: usize) -> Self {
        Self { cursor, ..Self::default() }
    }

    /// Where `extent` bytes are free: behind the last allocation, or in the first gap.
    fn place(&self, arena: &Arena, extent: usize) -> Option<usize> {
        if extent <= arena.bytes().saturating_sub(self.cursor) {
            return Some(self.cursor);
        }
        let mut start = 0;
        for (address, bytes) in &self.allocations {
            let taken = usize::try_from(address - arena.start()).ok()? - RED_BYTES;
            if extent <= taken.saturating_sub(start) {
                return Some(start);
            }
            start = taken + self::extent(*bytes)?;
        }
        (extent <= arena.bytes().saturating_sub(start)).then_some(start)
    }
}

fn first_other(span: Span, value: u8) -> Option<usize> {
    span.to_vec().iter().position(|byte| *byte != value)
}
