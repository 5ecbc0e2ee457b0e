//! Compute streams, events and fences of a host device: what is on them, and how far they are.

use std::collections::{HashMap, VecDeque};

use kvo_core::{DeviceHealth, Fence, FenceError, OwnerId, Ticket};

use super::memory::DeviceMemory;

/// A place on a stream: behind so many items.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Point {
    stream: u32,
    items: u64,
}

/// Something on a stream.
pub(super) enum Item {
    Kernel {
        kernel: Box<dyn FnOnce(&DeviceMemory) + Send>,
        memory: DeviceMemory,
    },
    /// Waits for another stream.
    Point(Point),
    /// Waits for the copies of a transfer up to a mark.
    Mark(Ticket, u32),
}

#[derive(Default)]
struct Stream {
    items: VecDeque<Item>,
    /// Items put on it.
    launched: u64,
    /// Items it is behind, in order.
    passed: u64,
}

/// What a fence is behind.
#[derive(Clone, Copy, Debug)]
enum Behind {
    Point(Point),
    /// Only where a test has switched a guard off: whatever the event was last recorded behind.
    Event(u32),
}

/// All streams, events and fences of one device.
pub(super) struct Streams {
    device: OwnerId,
    list: Vec<Stream>,
    /// By event: what it was last recorded behind.
    events: Vec<Option<Point>>,
    /// Fences that were not known to be passed when they were last asked for.
    pending: HashMap<u64, Behind>,
    pending_max: usize,
    next_fence: u64,
}

impl Streams {
    pub(super) fn new(device: OwnerId, pending_max: usize) -> Self {
        let (list, events, pending) = (Vec::new(), Vec::new(), HashMap::new());
        Self { device, list, events, pending, pending_max, next_fence: 0 }
    }

    pub(super) fn len(&self) -> u32 {
        u32::try_from(self.list.len()).expect("there are never 2^32 streams")
    }

    pub(super) fn num_events(&self) -> u32 {
        u32::try_from(self.events.len()).expect("there are never 2^32 events")
    }

    /// Adds a stream and returns its number.
    pub(super) fn add_stream(&mut self) -> u32 {
        self.list.push(Stream::default());
        self.len() - 1
    }

    /// Adds an event, behind nothing, and returns its number.
    pub(super) fn add_event(&mut self) -> u32 {
        self.events.push(None);
        self.num_events() - 1
    }

    /// Puts something on a stream and returns its position.
    pub(super) fn push(&mut self, stream: u32, item: Item) -> u64 {
        let stream = &mut self.list[stream as usize];
        stream.items.push_back(item);
        stream.launched += 1;
        stream.launched - 1
    }

    /// The position that the next item of a stream gets.
    pub(super) fn next_position(&self, stream: u32) -> u64 {
        self.list[stream as usize].launched
    }

    pub(super) fn behind_stream(&self, stream: u32) -> Point {
        Point { stream, items: self.list[stream as usize].launched }
    }

    pub(super) fn record_event(&mut self, event: u32, stream: u32) {
        self.events[event as usize] = Some(self.behind_stream(stream));
    }

    /// What an event was last recorded behind.
    pub(super) fn behind_event(&self, event: u32) -> Option<Point> {
        self.events[event as usize]
    }

    pub(super) fn has_passed(&self, point: Point) -> bool {
        self.list[point.stream as usize].passed >= point.items
    }

    /// A fence behind a point, or behind nothing.
    pub(super) fn add_fence(&mut self, point: Option<Point>) -> Result<Fence, FenceError> {
        self.add(point.map(Behind::Point))
    }

    /// As [`add_fence`](Self::add_fence), but behind whatever the event will be recorded behind.
    pub(super) fn add_loose_fence(&mut self, event: u32) -> Result<Fence, FenceError> {
        self.add(Some(Behind::Event(event)))
    }

    fn add(&mut self, behind: Option<Behind>) -> Result<Fence, FenceError> {
        if self.pending.len() >= self.pending_max {
            let mut pending = std::mem::take(&mut self.pending);
            pending.retain(|_, behind| !self.is_behind(*behind));
            self.pending = pending;
        }
        let (pending, pending_max) = (self.pending.len(), self.pending_max);
        let behind = behind.filter(|behind| !self.is_behind(*behind) || matches!(behind, Behind::Event(_)));
        if let Some(behind) = behind {
            if pending >= pending_max {
                return Err(FenceError::Full { pending, pending_max });
            }
            self.pending.insert(self.next_fence, behind);
        }
        self.next_fence += 1;
        Ok(Fence::new(self.device, self.next_fence - 1))
    }

    /// Whether the streams have passed what a fence is behind.
    fn is_behind(&self, behind: Behind) -> bool {
        match behind {
            Behind::Point(point) => self.has_passed(point),
            Behind::Event(event) => self.behind_event(event).is_none_or(|point| self.has_passed(point)),
        }
    }

    pub(super) fn has_recorded(&self, fence: Fence) -> bool {
        fence.sequence() < self.next_fence
    }

    pub(super) fn fence_has_passed(&mut self, fence: Fence) -> bool {
        let Some(behind) = self.pending.get(&fence.sequence()) else { return true };
        let passed = self.is_behind(*behind);
        if passed {
            self.pending.remove(&fence.sequence());
        }
        passed
    }

    /// What a stream does next, if it has something to do.
    pub(super) fn front(&self, stream: u32) -> Option<&Item> {
        self.list[stream as usize].items.front()
    }

    /// Takes what a stream does next; it has passed it once [`pass`](Self::pass) says so.
    pub(super) fn take(&mut self, stream: u32) -> Option<Item> {
        self.list[stream as usize].items.pop_front()
    }

    pub(super) fn pass(&mut self, stream: u32) {
        self.list[stream as usize].passed += 1;
    }

    /// Takes all that no stream has begun, to be dropped. The streams are behind it.
    pub(super) fn give_up(&mut self) -> Vec<Item> {
        let mut given_up = Vec::new();
        for stream in &mut self.list {
            stream.passed += stream.items.len() as u64;
            given_up.extend(stream.items.drain(..));
        }
        given_up
    }
}

impl std::fmt::Debug for Streams {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Streams")
            .field("streams", &self.list.len())
            .field("events", &self.events.len())
            .field("pending", &self.pending.len())
            .finish_non_exhaustive()
    }
}

/// Refuses what only a healthy device does.
pub(super) fn healthy(health: DeviceHealth) -> Result<(), DeviceHealth> {
    if health == DeviceHealth::Healthy { Ok(()) } else { Err(health) }
}
