//! Random transfers among kernels, with a model of every byte of both memories.

use std::collections::HashMap;

use super::*;

/// Bytes of a piece of memory that is copied or computed as one.
const CELL: u64 = 8;

/// The generator of Steele, Lea and Flood's `SplitMix` (OOPSLA 2014).
#[derive(Clone, Debug)]
pub(super) struct Rng(u64);

impl Rng {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(super) fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % bound as u64).unwrap()
    }
}

/// An engine that keeps the rules: copies wait for the kernels before them, and a cell on either side is used for one
/// thing at a time. What it knows of each cell is what was put into it last.
pub(super) struct Traffic {
    rng: Rng,
    regions: Vec<(DeviceSpan, RegionId)>,
    slots: Arc<TestSlots>,
    /// By region, then by cell: its content, and whether a transfer uses it.
    device: Vec<Vec<(u64, bool)>>,
    /// By slot, likewise.
    host: Vec<Vec<(u64, bool)>>,
    /// By slot: whether a transfer uses it. One does at a time, as memory of slots wants it.
    slot_is_used: Vec<bool>,
    /// The cells of each open transfer: region, cell of it, slot, cell of it.
    open: HashMap<Ticket, Vec<[usize; 4]>>,
    next_content: u64,
    num_ended: u64,
}

impl Traffic {
    pub(super) fn new(seed: u64, spans: &[DeviceSpan], regions: &[RegionId], slots: &Arc<TestSlots>) -> Self {
        let cells = |bytes: u64| vec![(0, false); usize::try_from(bytes / CELL).unwrap()];
        let num_slots = usize::try_from(slots.num_slots()).unwrap();
        for slot in 0..slots.num_slots() {
            slots.fill(SlotId(slot), &vec![0; slots.slot_bytes()]);
        }
        Self {
            rng: Rng::new(seed),
            regions: spans.iter().copied().zip(regions.iter().copied()).collect(),
            device: spans.iter().map(|span| cells(span.bytes())).collect(),
            host: vec![cells(slots.slot_bytes() as u64); num_slots],
            slot_is_used: vec![false; num_slots],
            slots: Arc::clone(slots),
            open: HashMap::new(),
            next_content: 1,
            num_ended: 0,
        }
    }

    pub(super) fn num_ended(&self) -> u64 {
        self.num_ended
    }

    /// Does one thing: a kernel, a transfer, or a look at what has ended.
    pub(super) fn go_on(&mut self, device: &mut HostDevice, streams: &[ComputeStream]) {
        match self.rng.below(8) {
            0 | 1 => self.compute(streams),
            2 => self.poll(device),
            _ => self.submit(device, streams),
        }
    }

    /// Each region is computed on a stream of its own.
    fn compute(&mut self, streams: &[ComputeStream]) {
        let region = self.rng.below(self.device.len());
        let cell = self.rng.below(self.device[region].len());
        let (_, is_used) = self.device[region][cell];
        if !is_used {
            self.device[region][cell].0 = self.next_content;
            let bytes = self.next_content.to_le_bytes().to_vec();
            self.next_content += 1;
            streams[region].launch_write(self.address(region, cell), bytes).unwrap();
        }
    }

    fn address(&self, region: usize, cell: usize) -> u64 {
        self.regions[region].0.address() + cell as u64 * CELL
    }

    fn submit(&mut self, device: &mut HostDevice, streams: &[ComputeStream]) {
        let class = TransferClass::ALL[self.rng.below(4)];
        // All from one region, behind its stream.
        let region = self.rng.below(self.device.len());
        let (mut ops, mut cells) = (Vec::new(), Vec::<[usize; 4]>::new());
        for _ in 0..=self.rng.below(6) {
            let slot = self.rng.below(self.host.len());
            let device_cell = self.rng.below(self.device[region].len());
            let slot_cell = self.rng.below(self.host[slot].len());
            let room = (self.device[region].len() - device_cell).min(self.host[slot].len() - slot_cell);
            let len = 1 + self.rng.below(room.min(8));
            let run: Vec<_> =
                (0..len).map(|nth| [region, device_cell + nth, slot, slot_cell + nth]).collect();
            let others = self.slot_is_used[slot] && !cells.iter().any(|[_, _, mine, _]| *mine == slot);
            let is_used = |[region, cell, slot, of_slot]: &[usize; 4]| {
                self.device[*region][*cell].1 || self.host[*slot][*of_slot].1
            };
            if others || run.iter().any(is_used) {
                continue;
            }
            self.slot_is_used[slot] = true;
            for [region, cell, slot, of_slot] in &run {
                self.device[*region][*cell].1 = true;
                self.host[*slot][*of_slot].1 = true;
            }
            cells.extend(run);
            ops.push(CopyOp {
                region: self.regions[region].1,
                device_offset: device_cell as u64 * CELL,
                slot: SlotId(u32::try_from(slot).unwrap()),
                slot_offset: slot_cell as u64 * CELL,
                bytes: len as u64 * CELL,
            });
        }
        if ops.is_empty() {
            return self.poll(device);
        }
        let after = device.record_fence(streams[region].point()).unwrap();
        let marks = if self.rng.below(3) == 0 { vec![u32::try_from(ops.len()).unwrap() / 2] } else { vec![] };
        match device.submit(Transfer { marks, ..Transfer::new(class, ops, after) }) {
            Ok(ticket) => {
                for [region, cell, slot, of_slot] in &cells {
                    let (device, host) = (&mut self.device[*region][*cell], &mut self.host[*slot][*of_slot]);
                    match class.direction() {
                        Direction::Store => host.0 = device.0,
                        Direction::Load => device.0 = host.0,
                    }
                }
                self.open.insert(ticket, cells);
            }
            Err(error) => {
                assert!(matches!(error.reason, SubmitErrorReason::Full { .. }), "{error}");
                self.give_back(&cells);
                self.poll(device);
            }
        }
    }

    fn give_back(&mut self, cells: &[[usize; 4]]) {
        for [region, cell, slot, of_slot] in cells {
            self.device[*region][*cell].1 = false;
            self.host[*slot][*of_slot].1 = false;
            self.slot_is_used[*slot] = false;
        }
    }

    /// Looks at what has ended, byte by byte.
    pub(super) fn poll(&mut self, device: &mut HostDevice) {
        let mut done = Vec::new();
        device.wait(Duration::from_micros(50), &mut done);
        for TransferCompletion { ticket, result, held } in done {
            assert!(!held);
            let cells = self.open.remove(&ticket).expect("a ticket completes once");
            result.unwrap_or_else(|failure| panic!("transfer {}: {failure}", ticket.0));
            for cell in &cells {
                self.check(device, *cell);
            }
            self.give_back(&cells);
            self.num_ended += 1;
        }
    }

    fn check(&self, device: &HostDevice, [region, cell, slot, of_slot]: [usize; 4]) {
        let expected = (self.device[region][cell].0, self.host[slot][of_slot].0);
        let mut on_device = [0; 8];
        device.memory().read(self.address(region, cell), &mut on_device).unwrap();
        let on_host = self.slots.part(SlotId(u32::try_from(slot).unwrap()), of_slot * 8..of_slot * 8 + 8);
        let found = (u64::from_le_bytes(on_device), u64::from_le_bytes(on_host.try_into().unwrap()));
        assert_eq!(found, expected, "region {region}, cell {cell} and slot {slot}, cell {of_slot}");
    }

    /// Waits for all that is open, and compares every cell.
    pub(super) fn finish(&mut self, device: &mut HostDevice, streams: &[ComputeStream]) {
        device.drain(LONG).unwrap();
        self.poll(device);
        for stream in streams {
            stream.synchronize(LONG).unwrap();
        }
        self.check_all(device);
    }

    /// Compares every cell, once nothing is open.
    pub(super) fn check_all(&self, device: &HostDevice) {
        assert!(self.open.is_empty(), "{:?} did not end", self.open.keys());
        for (region, cells) in self.device.iter().enumerate() {
            for cell in 0..cells.len() {
                for slot in 0..self.host.len() {
                    self.check(device, [region, cell, slot, cell % self.host[slot].len()]);
                }
            }
        }
    }
}
