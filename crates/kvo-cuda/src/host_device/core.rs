//! One host device's state: transfers, streams, regions and, where it is wanted, the race detector.

use std::{ops::Range, sync::Arc, time::Duration};

use kvo_core::{
    AttachError, CopyOp, DeviceHealth, DeviceSpan, Direction, EventHandle, Fence, FenceError, MarkOrder,
    OwnerId, RegionId, StreamHandle, SubmitError, SubmitErrorReason, Ticket, Transfer, TransferCompletion,
    TransferFailure,
};

use super::{
    copy::Region,
    handles,
    memory::{DeviceMemory, Watch},
    race::{Detector, Job, Place, Race, RaceKind, Touch},
    streams::{Item, Streams, healthy},
};
use crate::{
    ComputeError,
    queue::{FenceState, MarkState, Piece, TransferQueue},
};

/// What keeps a device from losing data. A test switches one of them off, and shows what it is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Guard {
    /// Stores wait for their fences.
    StoreFences,
    /// Loads wait for their fences.
    LoadFences,
    /// A fence is behind what its event was recorded behind at that time.
    EventSnapshots,
    /// A completion is kept until it is polled, however many there are.
    Completions,
    /// An error ends every open transfer.
    Errors,
}

/// Bytes that a kernel says it touches, as addresses of the device's memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Accesses {
    /// What it reads.
    pub reads: Vec<Range<u64>>,
    /// What it writes.
    pub writes: Vec<Range<u64>>,
}

/// The state of a host device. It is behind one lock, which is held for a few instructions only: never while bytes are
/// copied, a kernel runs, or anything but an allocation table is locked.
#[derive(Debug)]
pub(super) struct Core {
    id: OwnerId,
    pub(super) queue: TransferQueue,
    pub(super) streams: Streams,
    /// By region; replaced, not changed, so that whoever copies keeps what it needs.
    pub(super) regions: Arc<Vec<Option<Region>>>,
    pub(super) detector: Option<Detector>,
    #[cfg(test)]
    pub(super) switched_off: Option<Guard>,
    touches: Vec<Touch>,
}

impl Core {
    pub(super) fn new(id: OwnerId, queue: TransferQueue, streams: Streams, detect: bool) -> Self {
        Self {
            id,
            queue,
            streams,
            regions: Arc::default(),
            detector: detect.then(Detector::default),
            #[cfg(test)]
            switched_off: None,
            touches: Vec::new(),
        }
    }

    #[cfg(test)]
    fn guards(&self, guard: Guard) -> bool {
        self.switched_off != Some(guard)
    }

    #[cfg(not(test))]
    #[expect(clippy::unused_self, reason = "tests ask the device")]
    fn guards(&self, _: Guard) -> bool {
        true
    }

    pub(super) fn add_stream(&mut self) -> u32 {
        if let Some(detector) = &mut self.detector {
            detector.add_stream();
        }
        self.streams.add_stream()
    }

    pub(super) fn add_event(&mut self) -> u32 {
        if let Some(detector) = &mut self.detector {
            detector.add_event();
        }
        self.streams.add_event()
    }

    pub(super) fn attach(
        &mut self,
        span: DeviceSpan,
        memory: &DeviceMemory,
    ) -> Result<RegionId, AttachError> {
        healthy(self.queue.health()).map_err(AttachError::Unhealthy)?;
        let (address, bytes) = (span.address(), span.bytes());
        if span.ordinal() != 0 {
            return Err(AttachError::OtherDevice { given: span.ordinal(), ordinal: 0 });
        }
        let end = address.checked_add(bytes).filter(|_| bytes > 0);
        let end = end.ok_or(AttachError::NoSpan { address, bytes })?;
        let found = memory.find(address, bytes);
        let (allocation, start) = found.map_err(|_| AttachError::NotDeviceMemory { address, bytes })?;
        if let Some(region) = self.region_in(address..end) {
            return Err(AttachError::Overlap { region });
        }
        let region = self.queue.add_region(bytes);
        Arc::make_mut(&mut self.regions).push(Some(Region { allocation, start, address, bytes }));
        Ok(region)
    }

    /// A region that shares bytes with a range of addresses.
    pub(super) fn region_in(&self, range: Range<u64>) -> Option<RegionId> {
        let shares =
            |region: &Region| region.address < range.end && range.start < region.address + region.bytes;
        let index = self.regions.iter().position(|region| region.as_ref().is_some_and(shares))?;
        Some(RegionId(u32::try_from(index).expect("regions are counted in 32 bits")))
    }

    pub(super) fn detach(&mut self, region: RegionId) -> Result<(), AttachError> {
        self.queue.remove_region(region)?;
        Arc::make_mut(&mut self.regions)[region.0 as usize] = None;
        Ok(())
    }

    /// The number of a stream of this device.
    pub(super) fn stream(&self, handle: StreamHandle) -> Result<u32, FenceError> {
        self.number(handle.device(), handle.raw(), self.streams.len())
    }

    /// The number of an event of this device.
    pub(super) fn event(&self, handle: EventHandle) -> Result<u32, FenceError> {
        self.number(handle.device(), handle.raw(), self.streams.num_events())
    }

    fn number(&self, device: OwnerId, raw: u64, count: u32) -> Result<u32, FenceError> {
        if device != self.id {
            return Err(FenceError::ForeignHandle);
        }
        handles::number(raw).filter(|number| *number < count).ok_or(FenceError::UnknownHandle { raw })
    }

    pub(super) fn fence_behind_stream(&mut self, stream: StreamHandle) -> Result<Fence, FenceError> {
        healthy(self.queue.health()).map_err(FenceError::Unhealthy)?;
        let stream = self.stream(stream)?;
        let fence = self.streams.add_fence(Some(self.streams.behind_stream(stream)))?;
        if let Some(detector) = &mut self.detector {
            detector.fence_behind_stream(fence, stream);
        }
        Ok(fence)
    }

    pub(super) fn fence_behind_event(&mut self, event: EventHandle) -> Result<Fence, FenceError> {
        healthy(self.queue.health()).map_err(FenceError::Unhealthy)?;
        let event = self.event(event)?;
        let fence = if self.guards(Guard::EventSnapshots) {
            self.streams.add_fence(self.streams.behind_event(event))?
        } else {
            self.streams.add_loose_fence(event)?
        };
        if let Some(detector) = &mut self.detector {
            detector.fence_behind_event(fence, event);
        }
        Ok(fence)
    }

    pub(super) fn submit(&mut self, transfer: Transfer, now: Duration) -> Result<Ticket, SubmitError> {
        let after = transfer.after;
        let reason = if after.device() != self.id {
            Some(SubmitErrorReason::ForeignFence)
        } else if !self.streams.has_recorded(after) {
            Some(SubmitErrorReason::UnknownFence)
        } else {
            None
        };
        if let Some(reason) = reason {
            return Err(SubmitError { transfer, reason });
        }
        self.touches.clear();
        if self.detector.is_some() {
            touches(&transfer, &self.regions, &mut self.touches);
        }
        let class = transfer.class;
        let ticket = self.queue.submit(transfer, now)?;
        if let Some(detector) = &mut self.detector {
            detector.submit(ticket, class, after, &self.touches);
        }
        Ok(ticket)
    }

    pub(super) fn order_after(
        &mut self,
        ticket: Ticket,
        mark: u32,
        stream: StreamHandle,
    ) -> Result<MarkOrder, FenceError> {
        healthy(self.queue.health()).map_err(FenceError::Unhealthy)?;
        let stream = self.stream(stream)?;
        Ok(match self.queue.mark(ticket, mark)? {
            MarkState::Queued => MarkOrder::NotYet,
            MarkState::Over => MarkOrder::Ended,
            MarkState::Issued | MarkState::Copied => {
                self.streams.push(stream, Item::Mark(ticket, mark));
                if let Some(detector) = &mut self.detector {
                    detector.wait_mark(stream, ticket, mark);
                }
                MarkOrder::Ordered
            }
        })
    }

    /// Puts a kernel on a stream. `accesses` lie in the device's memory.
    pub(super) fn launch(
        &mut self,
        stream: u32,
        kernel: Box<dyn FnOnce(&DeviceMemory) + Send>,
        accesses: Option<Accesses>,
        memory: &DeviceMemory,
    ) -> Result<(), ComputeError> {
        healthy(self.queue.health()).map_err(ComputeError::Unhealthy)?;
        let position = self.streams.next_position(stream);
        let mut memory = memory.clone();
        if let Some(detector) = &mut self.detector {
            self.touches.clear();
            for (ranges, writes) in
                accesses.iter().flat_map(|said| [(&said.reads, false), (&said.writes, true)])
            {
                let touch = |range: &Range<u64>| Touch {
                    place: Place::Device,
                    range: range.clone(),
                    writes,
                    part: 0,
                };
                self.touches.extend(ranges.iter().filter(|range| !range.is_empty()).map(touch));
            }
            detector.item(stream, position, &self.touches);
            let job = Job::Kernel { stream, position };
            memory = memory.watched(Watch { job, declared: accesses, races: detector.sink() });
        }
        self.streams.push(stream, Item::Kernel { kernel, memory });
        Ok(())
    }

    pub(super) fn record_event(&mut self, event: u32, stream: u32) {
        self.streams.record_event(event, stream);
        if let Some(detector) = &mut self.detector {
            detector.record(stream, event);
        }
    }

    /// Lets a stream wait for what an event was last recorded behind.
    pub(super) fn wait_event(&mut self, stream: u32, event: u32) -> Result<(), ComputeError> {
        healthy(self.queue.health()).map_err(ComputeError::Unhealthy)?;
        let Some(point) = self.streams.behind_event(event) else { return Ok(()) };
        self.streams.push(stream, Item::Point(point));
        if let Some(detector) = &mut self.detector {
            detector.wait_event(stream, event);
        }
        Ok(())
    }

    /// Whether a stream can go on with what is next on it.
    pub(super) fn can_run(&self, stream: u32) -> bool {
        match self.streams.front(stream) {
            None => false,
            Some(Item::Kernel { .. }) => true,
            Some(Item::Point(point)) => self.streams.has_passed(*point),
            Some(Item::Mark(ticket, mark)) => match self.queue.mark(*ticket, *mark) {
                Ok(MarkState::Queued | MarkState::Issued) => false,
                // What is held may still be written.
                Ok(MarkState::Over) => !self.queue.is_held(*ticket),
                Ok(MarkState::Copied) | Err(_) => true,
            },
        }
    }

    pub(super) fn next_piece(&mut self, direction: Direction) -> Option<Piece> {
        let guard = match direction {
            Direction::Store => Guard::StoreFences,
            Direction::Load => Guard::LoadFences,
        };
        let (waits, streams) = (self.guards(guard), &mut self.streams);
        self.queue.next_piece(direction, |fence, _| {
            if !waits || streams.fence_has_passed(fence) { FenceState::Passed } else { FenceState::NotYet }
        })
    }

    /// The device fails, unless it has before. Returns what its streams have not begun, to be dropped without the lock.
    pub(super) fn fail(&mut self, code: u32, now: Duration) -> Option<Vec<Item>> {
        if !self.guards(Guard::Errors) || matches!(self.queue.health(), DeviceHealth::Dead { .. }) {
            return None;
        }
        self.queue.die(code, now);
        Some(self.streams.give_up())
    }

    pub(super) fn take_done(&mut self, done: &mut Vec<TransferCompletion>) {
        let before = done.len();
        self.queue.take_done(done);
        if !self.guards(Guard::Completions) {
            done.truncate(before + 8);
        }
        if let Some(detector) = &mut self.detector {
            for TransferCompletion { ticket, result, .. } in done[before..].iter().filter(|done| !done.held) {
                detector.retire(*ticket, result.is_ok());
            }
        }
    }

    pub(super) fn take_released(&mut self, released: &mut Vec<Ticket>) {
        let before = released.len();
        self.queue.take_released(released);
        if let Some(detector) = &mut self.detector {
            released[before..].iter().for_each(|ticket| detector.retire(*ticket, false));
        }
    }

    /// The device does not touch the bytes of a piece any more.
    pub(super) fn end(&mut self, piece: Piece, result: Result<(), TransferFailure>, now: Duration) {
        self.queue.end(piece, result, now);
    }

    /// A copy found that bytes which were to be its own were written.
    pub(super) fn report_disturbed(&self, piece: &Piece, op: &CopyOp) {
        let Some(detector) = &self.detector else { return };
        let (ticket, class) = (piece.ticket(), piece.class());
        let (place, range) = match class.direction() {
            Direction::Store => slot_range(op),
            Direction::Load => device_range(op, &self.regions),
        };
        let (kind, first) = (RaceKind::PoisonDisturbed, Job::Transfer { ticket, class });
        detector.report(Race { kind, first, second: Job::Outside, place, range });
    }
}

/// What a transfer touches; of one that names what is not there, only what is.
fn touches(transfer: &Transfer, regions: &[Option<Region>], into: &mut Vec<Touch>) {
    let stores = transfer.class.direction() == Direction::Store;
    for (nth, op) in (0..).zip(&transfer.ops) {
        let part = transfer.marks.partition_point(|mark| *mark <= nth);
        let part = u32::try_from(part).unwrap_or(u32::MAX);
        let is_there = regions.get(op.region.0 as usize).is_some_and(Option::is_some);
        let ends = [op.device_offset.checked_add(op.bytes), op.slot_offset.checked_add(op.bytes)];
        if is_there && ends.iter().all(Option::is_some) {
            let sides = [(device_range(op, regions), !stores), (slot_range(op), stores)];
            into.extend(sides.map(|((place, range), writes)| Touch { place, range, writes, part }));
        }
    }
}

fn slot_range(op: &CopyOp) -> (Place, Range<u64>) {
    (Place::Slot(op.slot), op.slot_offset..op.slot_offset + op.bytes)
}

fn device_range(op: &CopyOp, regions: &[Option<Region>]) -> (Place, Range<u64>) {
    let region = regions[op.region.0 as usize].as_ref().expect("a region stays while a transfer names it");
    let start = region.address.saturating_add(op.device_offset);
    (Place::Device, start..start.saturating_add(op.bytes))
}
