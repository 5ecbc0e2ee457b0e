//! The traffic of one bed.

mod compute;
mod transfers;

use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    ops::Range,
    time::Duration,
};

use kvo_core::{Direction, EventHandle, Fence, StreamHandle, Ticket};

use super::{
    Random, TrafficCounts,
    model::{Area, GUARD, Memory, Slot},
};
use crate::{
    bed::{BedOptions, Hold, POISON},
    handles,
    suite::rig::{Ground, Rig},
};

const NUM_STREAMS: usize = 3;
const NUM_AREAS: usize = 5;

/// Transfers between looks at every byte there is.
const PER_LOOK: u64 = 250;

/// One of the engine's streams.
struct Stream {
    handle: StreamHandle,
    /// To be recorded again and again.
    events: [EventHandle; 2],
    /// A fence behind all that is on it.
    fence: Option<Fence>,
}

/// A copy, by places in the model.
#[derive(Clone, Copy, Debug)]
struct Copy {
    area: usize,
    place: usize,
    slot: usize,
    offset: usize,
    bytes: usize,
    /// The pattern that a load brings, where it is one.
    seed: Option<u64>,
}

impl Copy {
    fn on_device(&self) -> Range<usize> {
        self.place..self.place + self.bytes
    }

    fn in_slot(&self) -> Range<usize> {
        self.offset..self.offset + self.bytes
    }
}

/// A transfer that has not ended.
struct Open {
    direction: Direction,
    stream: usize,
    copies: Vec<Copy>,
    marks: Vec<u32>,
    bytes: u64,
}

/// A pattern that compute has written.
struct Known {
    area: usize,
    range: Range<usize>,
    seed: u64,
}

pub(super) struct Round<'a> {
    random: Random,
    areas: Vec<Area>,
    slots: Vec<Slot>,
    streams: Vec<Stream>,
    open: HashMap<Ticket, Open>,
    known: VecDeque<Known>,
    /// What compute was given to do last, which may not have begun: by area.
    recent: VecDeque<(usize, Range<usize>)>,
    /// A load, and the mark of it that a stream is to wait for.
    layered: Option<(Ticket, usize)>,
    next_seed: u64,
    /// What holds a stream up, and for how many more steps.
    hold: Option<(Hold, usize)>,
    counts: TrafficCounts,
    // After the hold: a bed waits for its streams when it drops.
    rig: Rig<'a>,
}

impl<'a> Round<'a> {
    pub(super) fn new(ground: &'a Ground<'a>, options: &BedOptions, mut random: Random) -> Self {
        let mut rig = ground.rig_of(options, 64);
        let streams = (0..NUM_STREAMS).map(|_| Stream {
            handle: rig.bed.create_stream(),
            events: [rig.bed.create_event(), rig.bed.create_event()],
            fence: None,
        });
        let streams = streams.collect();
        let areas = (0..NUM_AREAS).map(|nth| area(&mut rig, nth % NUM_STREAMS, random.within(500, 4000)));
        let areas = areas.collect();
        let slot = |_| Slot {
            memory: Memory::new(vec![POISON; options.slot_bytes]),
            readers: 0,
            is_written: false,
            seed: None,
        };
        let slots = (0..options.num_slots).map(slot).collect();
        let (open, known, recent) = (HashMap::new(), VecDeque::new(), VecDeque::new());
        let (next_seed, counts) = (random.next(), TrafficCounts::default());
        Self {
            random,
            areas,
            slots,
            streams,
            open,
            known,
            recent,
            layered: None,
            next_seed,
            hold: None,
            counts,
            rig,
        }
    }

    /// Runs until so many have ended, and adds them to `counts`.
    pub(super) fn run(&mut self, transfers: u64, counts: &mut TrafficCounts) {
        let mut next_look = PER_LOOK;
        while self.counts.transfers < transfers {
            if self.counts.transfers >= next_look {
                self.look_at_all();
                next_look += PER_LOOK;
            }
            self.step(transfers);
        }
        self.look_at_all();
        *counts += self.counts;
    }

    /// Does one thing.
    fn step(&mut self, transfers: u64) {
        if let Some((_, steps)) = &mut self.hold {
            *steps -= 1;
            if *steps == 0 {
                self.hold = None;
            }
        }
        self.wait_for_mark();
        match self.random.below(32) {
            0..4 => self.fill(),
            4 => self.check_known(),
            5 => {
                let slot = self.random.below(self.slots.len());
                self.write_slot(slot);
            }
            6..11 => self.poll(Duration::ZERO),
            11 => self.hold_up(),
            _ if self.counts.transfers + (self.open.len() as u64) < transfers => self.submit(),
            _ => self.poll(Duration::from_micros(50)),
        }
    }

    fn new_seed(&mut self) -> u64 {
        self.next_seed += 1;
        self.next_seed
    }

    /// Holds a stream up with something in front that its areas wait for.
    fn hold_up(&mut self) {
        if self.hold.is_some() {
            return;
        }
        let area = self.random.below(NUM_AREAS);
        let stream = &mut self.streams[self.areas[area].stream];
        stream.fence = None;
        self.hold = Some((self.rig.bed.hold(stream.handle), self.random.within(5, 60)));
        for _ in 0..4 {
            let range = self.somewhere(area);
            self.fill_range(area, range);
        }
        self.check_known();
        self.counts.holds += 1;
    }
}

/// What has ended.
impl Round<'_> {
    /// What a transfer has written is there as soon as it has completed.
    fn poll(&mut self, time: Duration) {
        let mut ended = Vec::new();
        for done in self.rig.wait(time) {
            let open = self.open.remove(&done.ticket).expect("a ticket that was given");
            assert_eq!((&done.result, done.held), (&Ok(open.bytes), false), "ticket {}", done.ticket.0);
            ended.push(open);
        }
        self.look_at(&ended);
        for open in ended {
            self.give_back(open.direction, &open.copies);
            self.counts.transfers += 1;
            self.counts.stores += u64::from(open.direction == Direction::Store);
            self.counts.copies += open.copies.len() as u64;
            self.counts.bytes += open.bytes;
        }
    }

    /// Compares what transfers have written; of a slot, every byte.
    fn look_at(&mut self, ended: &[Open]) {
        for store in ended.iter().filter(|open| open.direction == Direction::Store) {
            for slot in slots_of(&store.copies) {
                let found = self.rig.slot(u32::try_from(slot).expect("few slots"));
                self.slots[slot].memory.check(&found, 0..found.len(), "a slot behind its store");
            }
        }
        let loads = ended.iter().filter(|open| open.direction == Direction::Load);
        let loaded: Vec<_> = loads.flat_map(|open| &open.copies).collect();
        let areas: BTreeSet<_> = loaded.iter().map(|copy| copy.area).collect();
        for area in areas {
            let found = self.area_bytes(area);
            for copy in loaded.iter().filter(|copy| copy.area == area) {
                self.areas[area].memory.check(&found, copy.on_device(), "a block behind its load");
            }
        }
    }

    fn area_bytes(&mut self, area: usize) -> Vec<u8> {
        let Area { span, memory, .. } = &self.areas[area];
        let mut found = vec![0; memory.bytes.len()];
        let address = span.address();
        self.rig.bed.read(address, &mut found);
        found
    }

    /// Lets all end, and compares every byte of both memories, guards too.
    fn look_at_all(&mut self) {
        self.hold = None;
        let patience = self.rig.patience();
        let drained = self.rig.device().drain(patience);
        assert_eq!(drained, Ok(()), "all ends");
        self.poll(Duration::ZERO);
        assert!(self.open.is_empty(), "{} transfers have got lost", self.open.len());
        self.rig.nothing_is_left();
        for stream in 0..NUM_STREAMS {
            let wrong = self.rig.bed.synchronize(self.streams[stream].handle);
            assert_eq!(wrong, 0, "compute has found that {wrong} bytes differ");
        }
        for area in 0..NUM_AREAS {
            let found = self.area_bytes(area);
            self.areas[area].memory.is_unused();
            self.areas[area].memory.check(&found, 0..found.len(), "a region with its guards");
        }
        for (nth, slot) in (0..).zip(&self.slots) {
            assert!(slot.is_free(), "nothing uses slot {nth}");
            slot.memory.is_unused();
            let found = self.rig.slot(nth);
            slot.memory.check(&found, 0..found.len(), "a slot");
        }
    }
}

/// Memory with guards around a region, both poisoned.
fn area(rig: &mut Rig<'_>, stream: usize, bytes: usize) -> Area {
    let length = bytes + 2 * GUARD;
    let span = rig.bed.allocate(length as u64);
    let inside = handles::span(span.address() + GUARD as u64, bytes as u64, span.ordinal());
    let region = rig.device().attach(inside).unwrap_or_else(|error| panic!("memory of the bed: {error}"));
    Area { span, region, stream, memory: Memory::new(vec![POISON; length]) }
}

fn slots_of(copies: &[Copy]) -> BTreeSet<usize> {
    copies.iter().map(|copy| copy.slot).collect()
}
