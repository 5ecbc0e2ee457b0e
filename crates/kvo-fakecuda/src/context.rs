//! The driver's start, its devices, and their primary contexts.

use crate::{
    abi::{Code, Done},
    device::Device,
    memory::Arena,
    state::{ARENA_BYTES, Driver, State},
    streams::Stream,
    tally,
};

/// Numbers from here on are no attribute.
const ATTRIBUTES_END: u64 = 150;

/// Attributes that are not 0: number and value. Those of a large server GPU, where it matters.
const ATTRIBUTES: [(u64, i32); 32] = [
    (1, 1024),
    (2, 1024),
    (3, 1024),
    (4, 64),
    (5, i32::MAX),
    (6, 65_535),
    (7, 65_535),
    (8, 49_152),
    (9, 65_536),
    (10, 32),
    (11, i32::MAX),
    (12, 65_536),
    (13, 1_980_000),
    // MULTIPROCESSOR_COUNT
    (16, 132),
    // CAN_MAP_HOST_MEMORY
    (19, 1),
    (31, 1),
    (36, 3_201_000),
    (37, 6144),
    (38, 62_914_560),
    (39, 2048),
    // ASYNC_ENGINE_COUNT
    (40, 3),
    // UNIFIED_ADDRESSING
    (41, 1),
    // COMPUTE_CAPABILITY_MAJOR, and MINOR is 0
    (75, 9),
    // STREAM_PRIORITIES_SUPPORTED
    (78, 1),
    (79, 1),
    (80, 1),
    (81, 233_472),
    (82, 65_536),
    // CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM
    (91, 1),
    (97, 232_448),
    // HOST_REGISTER_SUPPORTED
    (99, 1),
    // HOST_NUMA_ID
    (134, 0),
];

impl State {
    /// `cuInit`. The number of devices is settled by it.
    pub(crate) fn init(&mut self) -> Done {
        if self.config.init_code != 0 {
            return Err(Code(self.config.init_code));
        }
        if self.config.device_count == 0 {
            return Err(Code::NO_DEVICE);
        }
        while self.devices.len() < self.config.device_count {
            if self.arenas.len() == self.devices.len() {
                self.arenas.push(Arena::new(ARENA_BYTES).ok_or(Code::OUT_OF_MEMORY)?);
            }
            let cursor = self.cursors.get(self.devices.len()).copied().unwrap_or_default();
            self.devices.push(Device::starting_at(cursor));
        }
        self.is_initialised = true;
        Ok(())
    }

    /// The device that a caller means.
    pub(crate) fn device(&self, device: i32) -> Result<usize, Code> {
        let device = usize::try_from(device).map_err(|_| Code::INVALID_DEVICE)?;
        if device < self.devices.len() { Ok(device) } else { Err(Code::INVALID_DEVICE) }
    }

    /// An attribute of a device; 0 for what it has not.
    pub(crate) fn attribute(&self, device: usize, attribute: u64) -> i32 {
        let known = || ATTRIBUTES.iter().find(|(number, _)| *number == attribute).map(|(_, value)| *value);
        let bus = || (attribute == 33).then(|| i32::try_from(bus_of(device)).unwrap_or_default());
        let set = self.config.attributes.get(&(device as u64, attribute)).copied();
        set.or_else(known).or_else(bus).unwrap_or(0)
    }

    pub(crate) fn known_attribute(&self, device: usize, attribute: i32) -> Result<i32, Code> {
        let attribute = u64::try_from(attribute).ok().filter(|number| (1..ATTRIBUTES_END).contains(number));
        attribute.map(|attribute| self.attribute(device, attribute)).ok_or(Code::INVALID_VALUE)
    }

    /// The primary context, made by the first who asks.
    pub(crate) fn retain(&mut self, device: usize) -> Result<u64, Code> {
        if let Some(code) = self.devices[device].dead {
            return Err(code);
        }
        if self.devices[device].context.is_none() {
            let context = self.new_handle();
            self.contexts.insert(context, device);
            let null = self.add_stream(context, 0, 0).inspect_err(|_| {
                self.contexts.remove(&context);
            })?;
            self.devices[device].context = Some(context);
            self.devices[device].null_stream = null;
        }
        self.devices[device].retains += 1;
        self.devices[device].context.ok_or(Code::INVALID_CONTEXT)
    }

    /// Gives one claim up; the last one ends the context and everything in it. What a caller left is a leak.
    pub(crate) fn release(&mut self, device: usize) -> Done {
        let context = self.devices[device].context.ok_or(Code::INVALID_CONTEXT)?;
        self.devices[device].retains -= 1;
        if self.devices[device].retains > 0 {
            return Ok(());
        }
        if self.devices[device].dead.is_none() {
            self.note_leaks_of(context, device);
        }
        self.end_context(context, device);
        Ok(())
    }

    fn note_leaks_of(&mut self, context: u64, device: usize) {
        self.note_leaks(context);
        for address in self.devices[device].allocations.keys() {
            self.tally.leak(tally::LEAKED_ALLOCATION, *address);
        }
        for start in self.host.end(Some(context)) {
            self.tally.leak(tally::LEAKED_REGISTRATION, start);
        }
        for module in self.modules.end(Some(context)) {
            self.tally.leak(tally::LEAKED_MODULE, module);
        }
    }

    fn end_context(&mut self, context: u64, device: usize) {
        self.drop_work_of(context);
        self.contexts.remove(&context);
        self.host.end(Some(context));
        self.modules.end(Some(context));
        let allocations: Vec<u64> = self.devices[device].allocations.keys().copied().collect();
        for address in allocations {
            let _is_freed = self.free(device, address);
        }
        self.devices[device].context = None;
        self.devices[device].null_stream = 0;
    }
}

impl Driver {
    /// Ends everything, and is as if it had just been loaded; but no handle and no address comes back soon.
    pub(crate) fn reset(&self) {
        let mut state = self.lock();
        state.holds = crate::state::Holds::default();
        for context in state.contexts.keys().copied().collect::<Vec<u64>>() {
            state.drop_work_of(context);
        }
        // Whoever is blocked on a context meets its end.
        let contexts = std::mem::take(&mut state.contexts);
        self.wake();
        while state.streams.values().any(Stream::is_running) {
            state = self.wait(state);
        }
        for (context, device) in contexts {
            state.end_context(context, device);
        }
        // An address is worth nothing after a reset, so it is not given to somebody else at once.
        state.cursors = state.devices.iter().map(|device| device.cursor).collect();
        state.devices.clear();
        state.events.clear();
        state.captures.clear();
        state.config = crate::state::Config::default();
        state.is_initialised = false;
        state.faults = crate::faults::Faults::default();
        state.tally = tally::Tally::default();
        state.calls.clear();
        self.wake();
    }
}

/// Where a device is on the PCI bus.
fn bus_of(device: usize) -> usize {
    0x1b + device * 0x10
}

pub(crate) fn pci_bus_id(device: usize) -> String {
    format!("00000000:{:02X}:00.0", bus_of(device))
}

/// Sixteen bytes that are a device's own.
pub(crate) fn uuid(device: usize) -> [u8; 16] {
    let mut uuid = *b"kvo fake device\0";
    uuid[15] = u8::try_from(device).unwrap_or(u8::MAX);
    uuid
}
