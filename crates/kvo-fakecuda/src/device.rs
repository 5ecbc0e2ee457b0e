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
    pub(crate) allocations: BTreeMap<u64, Allocation>,
    allocated_bytes: usize,
    /// Where the next allocation goes: addresses come back only when all have been used.
    pub(crate) cursor: usize,
    /// The copies that wait for the engine to the device, and for the one from it, first come, first served.
    pub(crate) engines: [VecDeque<u64>; 2],
}

/// An allocation, alone or one of several side by side, which have red zones around them and none in between.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Allocation {
    bytes: usize,
    is_first: bool,
    is_last: bool,
}

impl Allocation {
    fn alone(bytes: usize) -> Self {
        Self { bytes, is_first: true, is_last: true }
    }

    fn is_alone(self) -> bool {
        self.is_first && self.is_last
    }

    /// Bytes of the red zone before it.
    fn before(self) -> usize {
        if self.is_first { RED_BYTES } else { 0 }
    }

    /// Bytes of the red zone behind it, and the rest of its last page.
    fn after(self) -> usize {
        self.bytes.next_multiple_of(PAGE_BYTES) - self.bytes + if self.is_last { RED_BYTES } else { 0 }
    }

    /// How much of the arena it takes, red zones and all.
    fn extent(self) -> usize {
        self.before() + self.bytes + self.after()
    }
}

/// How much of the arena an allocation takes that is alone.
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
        memory.allocations.insert(address, Allocation::alone(bytes));
        memory.allocated_bytes += bytes;
        Ok(address)
    }

    /// `count` allocations of so many whole pages, side by side, as if they were mapped so; the address of the first.
    pub(crate) fn allocate_side_by_side(
        &mut self,
        device: usize,
        bytes: usize,
        count: usize,
    ) -> Result<u64, Code> {
        if device >= self.devices.len() || !bytes.is_multiple_of(PAGE_BYTES) {
            return Err(Code::INVALID_VALUE);
        }
        let address = self.allocate(device, bytes.checked_mul(count).ok_or(Code::OUT_OF_MEMORY)?)?;
        for nth in 0..count {
            let allocation = Allocation { bytes, is_first: nth == 0, is_last: nth + 1 == count };
            self.devices[device].allocations.insert(address + (nth * bytes) as u64, allocation);
        }
        Ok(address)
    }

    /// Whether an allocation may be freed as one that is alone.
    pub(crate) fn is_alone(&self, device: usize, address: u64) -> bool {
        self.devices[device].allocations.get(&address).is_some_and(|allocation| allocation.is_alone())
    }

    /// Frees an allocation, whose work must be over, and looks at its red zones.
    pub(crate) fn free(&mut self, device: usize, address: u64) -> Done {
        let allocation = *self.devices[device].allocations.get(&address).ok_or(Code::INVALID_VALUE)?;
        self.check_red_zones_of(device, address, allocation);
        let memory = &mut self.devices[device];
        memory.allocations.remove(&address);
        memory.allocated_bytes -= allocation.bytes;
        self.whole(device, address, allocation).discard();
        Ok(())
    }

    pub(crate) fn free_bytes(&self, device: usize) -> usize {
        self.config.memory_bytes.saturating_sub(self.devices[device].allocated_bytes)
    }

    /// The allocation that holds `address`: its device, start and length. Red zones are of none.
    pub(crate) fn allocation_at(&self, address: u64) -> Option<(usize, u64, usize)> {
        let device = self.device_at(address)?;
        let (start, allocation) = self.devices[device].allocations.range(..=address).next_back()?;
        let bytes = allocation.bytes;
        (address - start < bytes as u64).then_some((device, *start, bytes))
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
        near.into_iter().flatten().find_map(|(start, allocation)| {
            let zone = start - allocation.before() as u64;
            let extent = allocation.extent() as u64;
            let is_inside = zone <= address && address + bytes as u64 <= zone + extent;
            is_inside.then(|| arena.span(address, bytes)).flatten().map(|span| (*start, span))
        })
    }

    pub(crate) fn check_red_zones(&mut self) {
        for device in 0..self.devices.len() {
            for (address, allocation) in self.devices[device].allocations.clone() {
                self.check_red_zones_of(device, address, allocation);
            }
        }
    }

    /// Each zone with a wrong byte is a violation, and made anew.
    fn check_red_zones_of(&mut self, device: usize, address: u64, allocation: Allocation) {
        let whole = self.whole(device, address, allocation);
        let (before, end) = (allocation.before(), allocation.before() + allocation.bytes);
        let zones = [whole.part(0, before), whole.part(end, whole.bytes() - end)];
        let starts = [address - before as u64, address + allocation.bytes as u64];
        for (zone, start) in zones.into_iter().zip(starts) {
            if let Some(offset) = first_other(zone, RED) {
                zone.fill(RED);
                self.tally.violation(tally::RED_ZONE, [address, start + offset as u64, 0, 0, 0]);
            }
        }
    }

    fn whole(&self, device: usize, address: u64, allocation: Allocation) -> Span {
        let whole = self.arenas[device].span(address - allocation.before() as u64, allocation.extent());
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
        for (address, allocation) in &self.allocations {
            let taken = usize::try_from(address - arena.start()).ok()? - allocation.before();
            if extent <= taken.saturating_sub(start) {
                return Some(start);
            }
            start = taken + allocation.extent();
        }
        (extent <= arena.bytes().saturating_sub(start)).then_some(start)
    }
}

fn first_other(span: Span, value: u8) -> Option<usize> {
    span.to_vec().iter().position(|byte| *byte != value)
}
