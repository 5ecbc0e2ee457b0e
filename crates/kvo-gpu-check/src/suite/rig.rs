//! What cases are made of: a bed with a region and a stream, and words for what is done with it.

use std::{
    cell::RefCell,
    collections::HashSet,
    time::{Duration, Instant},
};

use kvo_core::{
    ComputePoint, CopyOp, DeviceBackend, DeviceSpan, EventHandle, Fence, HostMemory, RegionId, SlotId,
    StreamHandle, Ticket, Transfer, TransferClass, TransferCompletion, TransferFailure,
};
use kvo_cuda::CopyPath;

use crate::bed::{BedMaker, BedOptions, Hold, POISON, TestBed};

/// Bytes of a slot, and of a block on the device, in most cases.
pub(super) const SLOT: u64 = SLOT_LENGTH as u64;
pub(super) const SLOT_LENGTH: usize = 4096;
pub(super) const NUM_SLOTS: u32 = 16;
/// Blocks of the region.
pub(super) const NUM_BLOCKS: u64 = 32;

/// How long nothing has to happen to be taken as not happening. Longer than a copy takes whose fence is passed.
const A_WHILE: Duration = Duration::from_millis(30);

/// Where a case runs: the maker of its beds, and what was complained of.
pub(super) struct Ground<'a> {
    pub(super) maker: &'a dyn BedMaker,
    path: Option<CopyPath>,
    complaints: RefCell<Vec<String>>,
}

impl<'a> Ground<'a> {
    pub(super) fn new(maker: &'a dyn BedMaker, path: Option<CopyPath>) -> Self {
        // What was left by somebody else is none of this case's business.
        drop(maker.complaints());
        Self { maker, path, complaints: RefCell::default() }
    }

    pub(super) fn into_complaints(self) -> Vec<String> {
        let mut complaints = self.complaints.take();
        complaints.extend(self.maker.complaints());
        complaints
    }

    /// 16 slots and 32 blocks of 4 KiB.
    pub(super) fn options(&self) -> BedOptions {
        BedOptions { num_slots: NUM_SLOTS, slot_bytes: SLOT_LENGTH, path: self.path, ..BedOptions::default() }
    }

    pub(super) fn rig(&self) -> Rig<'_> {
        self.rig_with(&self.options())
    }

    pub(super) fn rig_with(&self, options: &BedOptions) -> Rig<'_> {
        self.rig_of(options, NUM_BLOCKS * SLOT)
    }

    /// A bed with a region of that many bytes.
    pub(super) fn rig_of(&self, options: &BedOptions, region_bytes: u64) -> Rig<'_> {
        let mut bed = self.maker.make(options);
        let stream = bed.create_stream();
        let span = bed.allocate(region_bytes);
        let region = bed.device().attach(span).unwrap_or_else(|error| panic!("memory of the bed: {error}"));
        let num_slots = options.num_slots;
        Rig { bed, stream, span, region, num_slots, ended: HashSet::new(), ground: self }
    }
}

/// A bed with a region, all of it poisoned, and a stream. What has to be made for a case is made before a stream is held:
/// some drivers wait for streams when something is allocated.
pub(super) struct Rig<'a> {
    pub(super) bed: Box<dyn TestBed>,
    pub(super) stream: StreamHandle,
    pub(super) span: DeviceSpan,
    pub(super) region: RegionId,
    num_slots: u32,
    /// Tickets that have completed.
    ended: HashSet<Ticket>,
    ground: &'a Ground<'a>,
}

impl Drop for Rig<'_> {
    fn drop(&mut self) {
        self.ground.complaints.borrow_mut().extend(self.bed.complaints());
    }
}

/// What is done.
impl Rig<'_> {
    pub(super) fn device(&mut self) -> &mut dyn DeviceBackend {
        self.bed.device()
    }

    pub(super) fn patience(&self) -> Duration {
        self.ground.maker.patience()
    }

    /// Where a block lies.
    pub(super) fn at(&self, block: u64) -> u64 {
        self.span.address() + block * SLOT
    }

    /// Puts compute on the stream that writes pattern `seed` to a block.
    pub(super) fn fill_block(&mut self, block: u64, seed: u64) {
        let (stream, address) = (self.stream, self.at(block));
        self.bed.fill(stream, address, SLOT, seed);
    }

    /// Puts compute on the stream that looks for it.
    pub(super) fn check_block(&mut self, block: u64, seed: u64) {
        let (stream, address) = (self.stream, self.at(block));
        self.bed.check(stream, address, SLOT, seed);
    }

    /// Holds the stream up.
    pub(super) fn hold(&mut self) -> Hold {
        let stream = self.stream;
        self.bed.hold(stream)
    }

    /// Waits for the stream; what its checks have found has to be right.
    #[track_caller]
    pub(super) fn compute_found_all(&mut self, what: &str) {
        let stream = self.stream;
        let wrong = self.bed.synchronize(stream);
        assert_eq!(wrong, 0, "compute has found {wrong} wrong bytes: {what}");
    }

    /// A fence behind all that is on the stream.
    #[track_caller]
    pub(super) fn fence(&mut self) -> Fence {
        let stream = self.stream;
        self.fence_on(stream)
    }

    #[track_caller]
    pub(super) fn fence_on(&mut self, stream: StreamHandle) -> Fence {
        let fence = self.device().record_fence(ComputePoint::Stream(stream));
        fence.unwrap_or_else(|error| panic!("a fence on a stream is refused: {error}"))
    }

    #[track_caller]
    pub(super) fn fence_after(&mut self, event: EventHandle) -> Fence {
        let fence = self.device().record_fence(ComputePoint::Event(event));
        fence.unwrap_or_else(|error| panic!("a fence on an event is refused: {error}"))
    }

    pub(super) fn op(&self, device_offset: u64, slot: u32, slot_offset: u64, bytes: u64) -> CopyOp {
        CopyOp { region: self.region, device_offset, slot: SlotId(slot), slot_offset, bytes }
    }

    /// A whole block and a whole slot.
    pub(super) fn transfer(&self, class: TransferClass, block: u64, slot: u32, after: Fence) -> Transfer {
        Transfer::new(class, vec![self.op(block * SLOT, slot, 0, SLOT)], after)
    }

    #[track_caller]
    pub(super) fn submit(&mut self, transfer: Transfer) -> Ticket {
        match self.device().submit(transfer) {
            Ok(ticket) => ticket,
            Err(error) => panic!("{error}"),
        }
    }

    /// As [`transfer`](Self::transfer), submitted.
    #[track_caller]
    pub(super) fn start(&mut self, class: TransferClass, block: u64, slot: u32, after: Fence) -> Ticket {
        let transfer = self.transfer(class, block, slot, after);
        self.submit(transfer)
    }
}

/// What comes of it.
impl Rig<'_> {
    /// What ends within `time`, at most until something does. No ticket ends twice.
    #[track_caller]
    pub(super) fn wait(&mut self, time: Duration) -> Vec<TransferCompletion> {
        let mut done = Vec::new();
        self.device().wait(time, &mut done);
        self.count(&done);
        done
    }

    #[track_caller]
    pub(super) fn count(&mut self, done: &[TransferCompletion]) {
        for TransferCompletion { ticket, .. } in done {
            assert!(self.ended.insert(*ticket), "ticket {} has completed twice", ticket.0);
        }
    }

    /// Waits until those have ended, which are the only ones; in the order in which they ended.
    #[track_caller]
    pub(super) fn ends(&mut self, tickets: &[Ticket]) -> Vec<TransferCompletion> {
        let (start, patience) = (Instant::now(), self.patience());
        let mut done = Vec::new();
        while done.len() < tickets.len() {
            let left = patience.saturating_sub(start.elapsed());
            let num_open = tickets.len() - done.len();
            assert!(!left.is_zero(), "{num_open} transfers did not end within {patience:?}");
            done.extend(self.wait(left));
        }
        let stranger = done.iter().find(|completion| !tickets.contains(&completion.ticket));
        assert_eq!(stranger, None, "it was not to end");
        done
    }

    /// Waits until those have ended, well.
    #[track_caller]
    pub(super) fn succeed(&mut self, tickets: &[Ticket]) -> Vec<Ticket> {
        let done = self.ends(tickets);
        let failed = done.iter().find(|completion| completion.result.is_err() || completion.held);
        assert_eq!(failed, None, "it was to succeed");
        done.iter().map(|completion| completion.ticket).collect()
    }

    /// Whether something ends within a while that is long for a copy that waits for nothing.
    #[track_caller]
    pub(super) fn ended_early(&mut self) -> Vec<TransferCompletion> {
        self.wait(A_WHILE)
    }

    #[track_caller]
    pub(super) fn nothing_ends(&mut self) {
        let early = self.ended_early();
        assert_eq!(early, [], "it was to wait");
    }

    #[track_caller]
    pub(super) fn nothing_is_left(&mut self) {
        let drained = self.device().drain(Duration::ZERO);
        assert_eq!(drained, Ok(()), "all has ended");
        let mut done = Vec::new();
        self.device().poll(&mut done);
        assert_eq!(done, [], "all was polled");
        let mut released = Vec::new();
        self.device().take_released(&mut released);
        assert_eq!(released, [], "nothing was held that was not taken");
    }

    /// Waits until the tickets of `held` are released, each once.
    #[track_caller]
    pub(super) fn are_released(&mut self, held: &[Ticket]) {
        let mut released = Vec::new();
        self.until("held transfers are released", |rig| {
            rig.device().take_released(&mut released);
            released.len() >= held.len()
        });
        released.sort_unstable();
        let mut expected = held.to_vec();
        expected.sort_unstable();
        assert_eq!(released, expected, "each held ticket is released once");
    }

    #[track_caller]
    pub(super) fn until(&mut self, what: &str, mut is_so: impl FnMut(&mut Self) -> bool) {
        self.spin_until(what, |rig| {
            let is_now = is_so(rig);
            if !is_now {
                std::thread::yield_now();
            }
            is_now
        });
    }

    /// As [`until`](Self::until), for what does not stay so for long.
    #[track_caller]
    pub(super) fn spin_until(&mut self, what: &str, mut is_so: impl FnMut(&mut Self) -> bool) {
        let (start, patience) = (Instant::now(), self.patience());
        while !is_so(self) {
            assert!(start.elapsed() < patience, "it never came to be: {what}");
            std::hint::spin_loop();
        }
    }

    /// Those that fail do so like this.
    #[track_caller]
    pub(super) fn fails(&mut self, ticket: Ticket) -> (TransferFailure, bool) {
        let done = self.ends(&[ticket]).remove(0);
        let failure = done.result.expect_err("it was to fail");
        (failure, done.held)
    }
}

/// Bytes.
impl Rig<'_> {
    pub(super) fn slot(&self, slot: u32) -> Vec<u8> {
        let mut copy = Vec::new();
        let read = self.bed.host().with_read(SlotId(slot), &mut |bytes| copy.extend_from_slice(bytes));
        read.unwrap_or_else(|error| panic!("a slot that nobody uses: {error}"));
        copy
    }

    #[track_caller]
    pub(super) fn write_slot(&self, slot: u32, with: &[u8]) {
        let write = &mut |bytes: &mut [u8]| bytes[..with.len()].copy_from_slice(with);
        let written = self.bed.host().with_write(SlotId(slot), write);
        written.unwrap_or_else(|error| panic!("a slot that nobody uses: {error}"));
    }

    pub(super) fn is_slot_free(&self, slot: u32) -> bool {
        self.bed.host().with_write(SlotId(slot), &mut |_| ()).is_ok()
    }

    /// The whole region.
    pub(super) fn region_bytes(&mut self) -> Vec<u8> {
        let mut bytes = vec![0; usize::try_from(self.span.bytes()).expect("it was allocated")];
        let address = self.span.address();
        self.bed.read(address, &mut bytes);
        bytes
    }

    pub(super) fn block(&mut self, block: u64) -> Vec<u8> {
        let mut bytes = vec![0; SLOT_LENGTH];
        let address = self.at(block);
        self.bed.read(address, &mut bytes);
        bytes
    }

    pub(super) fn write_region(&mut self, bytes: &[u8]) {
        let address = self.span.address();
        self.bed.write(address, bytes);
    }

    /// Every slot, one after the other.
    pub(super) fn slots(&self) -> Vec<Vec<u8>> {
        (0..self.num_slots).map(|slot| self.slot(slot)).collect()
    }

    pub(super) fn poisoned(bytes: u64) -> Vec<u8> {
        vec![POISON; usize::try_from(bytes).expect("it is memory")]
    }
}

/// The first place at which bytes differ, and how many do: whole memories are no message.
#[track_caller]
pub(super) fn same(found: &[u8], expected: &[u8], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    if found == expected {
        return;
    }
    let differs = |(_, (found, expected)): &(usize, (&u8, &u8))| found != expected;
    let pairs = || found.iter().zip(expected).enumerate();
    let count = pairs().filter(differs).count();
    let first = pairs().find(differs).map(|(at, (found, expected))| (at, *found, *expected));
    panic!("{what}: {count} bytes differ, the first of them (place, found, expected) is {first:?}");
}
