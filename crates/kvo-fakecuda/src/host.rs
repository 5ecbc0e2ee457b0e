//! Host memory that the device may reach: registered by a caller, or allocated here.

use std::collections::BTreeMap;

use crate::{
    abi::{Code, Done, HOST_ALLOC_FLAGS, HOST_PORTABLE, HOST_READ_ONLY, HOST_REGISTER_FLAGS},
    memory::{self, Arena, PAGE_BYTES, Span},
    state::{ARENA_BYTES, State},
    tally,
};

/// `CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM`.
const CAN_USE_HOST_POINTER: u64 = 91;
/// `CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED`.
const READ_ONLY_SUPPORTED: u64 = 113;

/// A stretch that the device may reach.
#[derive(Clone)]
pub(crate) struct HostRange {
    pub(crate) start: u64,
    pub(crate) bytes: usize,
    pub(crate) flags: u32,
    pub(crate) context: u64,
    /// Where each device reaches it.
    device_addresses: Vec<u64>,
    /// The mapping, if it is ours.
    mapping: Option<Span>,
}

impl HostRange {
    fn end(&self) -> u64 {
        self.start + self.bytes as u64
    }

    /// Where a device reaches it.
    pub(crate) fn address_on(&self, device: usize) -> u64 {
        self.device_addresses.get(device).copied().unwrap_or(self.start)
    }

    /// Whether work in `context` sees it.
    fn is_seen_from(&self, context: u64) -> bool {
        self.context == context || self.flags & HOST_PORTABLE != 0
    }
}

/// All such memory, by address.
#[derive(Default)]
pub(crate) struct HostMemory {
    ranges: BTreeMap<u64, HostRange>,
    /// Addresses for devices that do not take the host's.
    aliases: Option<Arena>,
    aliased_bytes: usize,
}

/// How some host memory lies to the ranges.
pub(crate) enum Overlap {
    /// In one of them.
    Inside(HostRange),
    /// In part.
    Straddles,
    /// Outside of all.
    Outside,
}

impl HostMemory {
    /// Where the memory is, of which `bytes` bytes from `address` on are asked for.
    pub(crate) fn overlap(&self, context: u64, address: u64, bytes: usize) -> Overlap {
        let end = address.saturating_add(bytes as u64);
        let mut touched = self.ranges.range(..end).rev().map(|(_, range)| range);
        match touched.find(|range| range.is_seen_from(context)) {
            Some(range) if range.start <= address && end <= range.end() => Overlap::Inside(range.clone()),
            Some(range) if range.end() > address => Overlap::Straddles,
            _ => Overlap::Outside,
        }
    }

    /// The host's address of one that only `device` uses, or of one that is the host's itself. Those of other devices
    /// are none.
    pub(crate) fn host_address_of(&self, device: usize, address: u64) -> Result<u64, Code> {
        if !self.aliases.as_ref().is_some_and(|aliases| aliases.contains(address)) {
            return Ok(address);
        }
        let offset = |range: &HostRange| {
            address.checked_sub(range.address_on(device)).filter(|offset| *offset < range.bytes as u64)
        };
        let found = self.ranges.values().find_map(|range| offset(range).map(|offset| range.start + offset));
        found.ok_or(Code::INVALID_VALUE)
    }

    pub(crate) fn len(&self) -> usize {
        self.ranges.len()
    }

    fn alias(&mut self, bytes: usize) -> Option<u64> {
        if self.aliases.is_none() {
            self.aliases = Arena::new(ARENA_BYTES);
        }
        let start = self.aliases.as_ref()?.start() + self.aliased_bytes as u64;
        self.aliased_bytes += bytes.next_multiple_of(PAGE_BYTES) + PAGE_BYTES;
        (self.aliased_bytes <= ARENA_BYTES).then_some(start)
    }

    /// Forgets all ranges of a context, or all; unmaps what is ours, and says what the others were.
    pub(crate) fn end(&mut self, context: Option<u64>) -> Vec<u64> {
        let gone =
            self.ranges.values().filter(|range| context.is_none_or(|context| range.context == context));
        let gone: Vec<HostRange> = gone.cloned().collect();
        for range in &gone {
            self.ranges.remove(&range.start);
            if let Some(mapping) = range.mapping {
                mapping.unmap();
            }
        }
        gone.iter().map(|range| range.start).collect()
    }
}

impl State {
    pub(crate) fn register(&mut self, context: u64, start: u64, bytes: usize, flags: u32) -> Done {
        let is_range = start != 0 && bytes > 0 && start.checked_add(bytes as u64).is_some();
        if !is_range || flags & !HOST_REGISTER_FLAGS != 0 || self.device_at(start).is_some() {
            return Err(Code::INVALID_VALUE);
        }
        if flags & HOST_READ_ONLY != 0 && self.attribute(self.usable(context)?, READ_ONLY_SUPPORTED) == 0 {
            return Err(Code::NOT_SUPPORTED);
        }
        // Whole pages are pinned, so two ranges do not share one.
        let page = PAGE_BYTES as u64;
        let (first, end) = (start / page * page, (start + bytes as u64).next_multiple_of(page));
        let is_taken = self
            .host
            .ranges
            .range(..end)
            .next_back()
            .is_some_and(|(_, range)| range.end().next_multiple_of(page) > first);
        if is_taken {
            return Err(Code::HOST_MEMORY_ALREADY_REGISTERED);
        }
        if !memory::is_mapped(start, bytes) {
            return Err(Code::INVALID_VALUE);
        }
        if bytes >= self.config.registration_bytes_max {
            return Err(Code::OUT_OF_MEMORY);
        }
        self.add_range(context, start, bytes, flags, None)
    }

    pub(crate) fn unregister(&mut self, start: u64) -> Done {
        let range = self.host.ranges.get(&start).filter(|range| range.mapping.is_none());
        let bytes = range.ok_or(Code::HOST_MEMORY_NOT_REGISTERED)?.bytes;
        if self.is_in_flight(start, bytes) {
            self.tally.violation(tally::UNREGISTERED_IN_FLIGHT, [start, bytes as u64, 0, 0, 0]);
        }
        self.host.ranges.remove(&start);
        Ok(())
    }

    pub(crate) fn allocate_host(&mut self, context: u64, bytes: usize, flags: u32) -> Result<u64, Code> {
        if bytes == 0 || flags & !HOST_ALLOC_FLAGS != 0 {
            return Err(Code::INVALID_VALUE);
        }
        let whole = bytes.checked_next_multiple_of(PAGE_BYTES).ok_or(Code::OUT_OF_MEMORY)?;
        let (start, mapping) = memory::map_host(whole).ok_or(Code::OUT_OF_MEMORY)?;
        self.add_range(context, start, bytes, flags, Some(mapping))?;
        Ok(start)
    }

    /// The mapping of an allocation, whose work must be over.
    pub(crate) fn free_host(&mut self, start: u64) -> Done {
        let mapping = self.host.ranges.get(&start).and_then(|range| range.mapping);
        let mapping = mapping.ok_or(Code::INVALID_VALUE)?;
        self.host.ranges.remove(&start);
        mapping.unmap();
        Ok(())
    }

    fn add_range(
        &mut self,
        context: u64,
        start: u64,
        bytes: usize,
        flags: u32,
        mapping: Option<Span>,
    ) -> Done {
        self.usable(context)?;
        let mut device_addresses = Vec::new();
        for device in 0..self.devices.len() {
            device_addresses.push(match self.attribute(device, CAN_USE_HOST_POINTER) {
                0 => self.host.alias(bytes).ok_or(Code::OUT_OF_MEMORY)?,
                _ => start,
            });
        }
        let range = HostRange { start, bytes, flags, context, device_addresses, mapping };
        self.host.ranges.insert(start, range);
        Ok(())
    }
}
