//! One `io_uring`, and the buffers that the kernel reads and writes on its behalf. The unsafe code of this crate.
//!
//! A ring owns the buffer of each transfer from the push until the transfer's own completion: nothing else says that
//! the kernel is done with it, not an error of a submission, and not the end of the ring. So a ring that is dropped
//! with transfers in flight leaks their buffers, and with them the host memory and the file.

use std::{
    fs::File,
    io, mem,
    ops::Range,
    os::fd::{AsRawFd, BorrowedFd},
    sync::Arc,
};

use io_uring::{IoUring, Probe, opcode, squeue, types};
use kvo_core::{ReadClaim, StableMemory, WriteClaim};
use slab::Slab;

use crate::progress::{Way, is_transient};

/// Bytes of a [`Page`].
pub(super) const PAGE_BYTES: usize = 4096;
/// The most that the kernel takes as one registered buffer.
const PIECE_BYTES_MAX: usize = 1 << 30;
/// The most registered buffers that the kernel takes.
const NUM_PIECES_MAX: usize = 16_384;
/// The operations that transfers are made of.
const OPCODES: [u8; 4] =
    [opcode::Read::CODE, opcode::Write::CODE, opcode::ReadFixed::CODE, opcode::WriteFixed::CODE];

/// A page of its own, aligned as direct I/O wants it.
#[repr(align(4096))]
pub(super) struct Page(pub(super) [u8; PAGE_BYTES]);

/// Memory that the kernel may use until the transfer's completion.
pub(super) enum Buffer {
    /// A slot of the host memory, to be written to the file.
    Source(ReadClaim),
    /// A slot of the host memory, to be filled from the file.
    Target(WriteClaim),
    Page(Box<Page>),
    Word(Box<[u8; 8]>),
}

/// Which of a ring's two descriptors a transfer is on: their places in its table of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum On {
    Data = 0,
    Wake = 1,
}

/// A transfer to be made, with whatever the caller wants to have back with it.
pub(super) struct Transfer<S> {
    pub(super) way: Way,
    pub(super) on: On,
    /// Where in the file.
    pub(super) offset: u64,
    /// Which bytes of the buffer.
    pub(super) range: Range<usize>,
    pub(super) buffer: Buffer,
    pub(super) state: S,
}

/// A transfer that the kernel is done with.
pub(super) struct Completion<S> {
    /// Bytes that were asked for.
    pub(super) asked: usize,
    /// Bytes that were moved.
    pub(super) result: io::Result<usize>,
    pub(super) buffer: Buffer,
    pub(super) state: S,
}

struct Inflight<S> {
    tag: u32,
    asked: usize,
    buffer: Buffer,
    state: S,
}

/// The host memory as the kernel knows it beforehand: pieces of equal length, the last one shorter.
struct Registered {
    start: usize,
    bytes: usize,
    piece_bytes: usize,
}

impl Registered {
    /// Cuts memory of `num_slots` slots into pieces that the kernel takes and that no slot crosses, if it can be done.
    fn plan(start: usize, bytes: usize, num_slots: u32) -> Option<Self> {
        let stride = bytes / (num_slots as usize).max(1);
        if stride == 0 || stride > PIECE_BYTES_MAX {
            return None;
        }
        let piece_bytes = PIECE_BYTES_MAX / stride * stride;
        (bytes.div_ceil(piece_bytes) <= NUM_PIECES_MAX).then_some(Self { start, bytes, piece_bytes })
    }

    /// The piece that `bytes` from `address` on are in, if they are in one.
    fn piece_of(&self, address: usize, bytes: usize) -> Option<u16> {
        let at = address.checked_sub(self.start)?;
        let piece = at / self.piece_bytes;
        let end = self.bytes.min((piece + 1) * self.piece_bytes);
        if at + bytes <= end { u16::try_from(piece).ok() } else { None }
    }
}

/// A ring for one file. It stays on the thread that built it.
pub(super) struct Ring<S> {
    io: IoUring,
    inflight: Slab<Inflight<S>>,
    capacity: usize,
    next_tag: u32,
    registered: Option<Registered>,
    setup: &'static str,
    strange: u64,
    file: Arc<File>,
    memory: Arc<dyn StableMemory>,
}

impl<S> Ring<S> {
    /// A ring with room for `capacity` transfers at once on `file`, and on `wake`, which outlives it.
    ///
    /// # Errors
    /// What the system refused, and its error.
    pub(super) fn new(
        file: Arc<File>,
        wake: BorrowedFd<'_>,
        memory: Arc<dyn StableMemory>,
        capacity: usize,
    ) -> Result<Self, (&'static str, io::Error)> {
        let entries = u32::try_from(capacity).unwrap_or(u32::MAX).next_power_of_two();
        let (io, setup) = build(entries).map_err(|error| ("set up a ring", error))?;
        let mut probe = Probe::new();
        io.submitter().register_probe(&mut probe).map_err(|error| ("ask for the operations", error))?;
        if !OPCODES.into_iter().all(|code| probe.is_supported(code)) {
            return Err(("read and write at an address", io::ErrorKind::Unsupported.into()));
        }
        io.submitter()
            .register_files(&[file.as_raw_fd(), wake.as_raw_fd()])
            .map_err(|error| ("register the files", error))?;
        let registered = register(&io, &*memory);
        Ok(Self {
            io,
            inflight: Slab::with_capacity(capacity),
            capacity,
            next_tag: 0,
            registered,
            setup,
            strange: 0,
            file,
            memory,
        })
    }

    /// Which of the kernel's ways to run a ring it got.
    pub(super) fn setup(&self) -> &'static str {
        self.setup
    }

    /// Whether the kernel knows the host memory beforehand.
    pub(super) fn has_registered_buffers(&self) -> bool {
        self.registered.is_some()
    }

    /// Transfers that the kernel is not done with.
    pub(super) fn num_inflight(&self) -> usize {
        self.inflight.len()
    }

    /// Completions that belonged to no transfer.
    pub(super) fn num_strange(&self) -> u64 {
        self.strange
    }

    /// Queues a transfer, to be given to the kernel by the next [`enter`](Self::enter).
    pub(super) fn push(&mut self, mut transfer: Transfer<S>) {
        assert!(self.inflight.len() < self.capacity, "{} transfers at once are promised", self.capacity);
        let (address, asked) = address_of(&mut transfer.buffer, &transfer.range, transfer.way);
        let entry = self.entry(&transfer, address, asked);
        self.next_tag = self.next_tag.wrapping_add(1);
        let tag = self.next_tag;
        let inflight =
            Inflight { tag, asked: asked as usize, buffer: transfer.buffer, state: transfer.state };
        let key = self.inflight.insert(inflight);
        let entry = entry.user_data(u64::from(tag) << 32 | key as u64);
        // SAFETY: `address` is the start of `asked` bytes of a buffer that is now in `inflight`, which gives it back
        // after this transfer's completion only, and leaks it otherwise. The buffer is a claim of a slot, whose memory
        // by the contract of `StableMemory` stays mapped and free of other readers or writers as long as the claim
        // lives, or a box whose content does not move with it.
        let pushed = unsafe { self.io.submission().push(&entry) };
        pushed.expect("the queue has an entry for each transfer in flight");
    }

    fn entry(&self, transfer: &Transfer<S>, address: *mut u8, asked: u32) -> squeue::Entry {
        let file = types::Fixed(transfer.on as u32);
        let registered = self.registered.as_ref();
        let piece = registered.and_then(|registered| registered.piece_of(address as usize, asked as usize));
        let offset = transfer.offset;
        match (transfer.way, piece) {
            (Way::Read, None) => opcode::Read::new(file, address, asked).offset(offset).build(),
            (Way::Write, None) => opcode::Write::new(file, address, asked).offset(offset).build(),
            (Way::Read, Some(piece)) => {
                opcode::ReadFixed::new(file, address, asked, piece).offset(offset).build()
            }
            (Way::Write, Some(piece)) => {
                opcode::WriteFixed::new(file, address, asked, piece).offset(offset).build()
            }
        }
    }

    /// Gives the kernel what is queued, and waits for a completion if `wait`. `false` if it could not do so just now:
    /// then what it has taken of the queue runs nonetheless, and the rest waits for the next call.
    ///
    /// # Errors
    /// The ring is of no use any more.
    pub(super) fn enter(&mut self, wait: bool) -> io::Result<bool> {
        match self.io.submit_and_wait(usize::from(wait)) {
            Ok(_) => Ok(true),
            Err(error) if is_transient(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The next transfer that the kernel is done with, if there is one by now.
    pub(super) fn reap(&mut self) -> Option<Completion<S>> {
        loop {
            let entry = self.io.completion().next()?;
            let (tag, key) = ((entry.user_data() >> 32) as u32, (entry.user_data() & 0xffff_ffff) as usize);
            if self.inflight.get(key).is_none_or(|inflight| inflight.tag != tag) {
                self.strange += 1;
                tracing::error!(tag, key, "a completion that belongs to no transfer");
                continue;
            }
            let Inflight { asked, buffer, state, .. } = self.inflight.remove(key);
            let result = entry.result();
            let result = match usize::try_from(result) {
                Ok(count) => Ok(count),
                Err(_) => Err(io::Error::from_raw_os_error(result.wrapping_neg())),
            };
            return Some(Completion { asked, result, buffer, state });
        }
    }
}

impl<S> Drop for Ring<S> {
    fn drop(&mut self) {
        if self.inflight.is_empty() {
            // The kernel ends rings in the background. The file with its lock, and the pinned memory, are given back
            // now; if that fails, they are then.
            let _ = self.io.submitter().unregister_files();
            if self.registered.is_some() {
                let _ = self.io.submitter().unregister_buffers();
            }
            return;
        }
        let transfers = self.inflight.len();
        tracing::error!(
            transfers,
            "a ring ends under I/O: its file and the host memory are never given back"
        );
        mem::forget(mem::take(&mut self.inflight));
        mem::forget((Arc::clone(&self.file), Arc::clone(&self.memory)));
    }
}

/// Builds a ring in the best way that the kernel knows.
fn build(entries: u32) -> io::Result<(IoUring, &'static str)> {
    let single_issuer = IoUring::builder()
        .dontfork()
        .setup_submit_all()
        .setup_single_issuer()
        .setup_defer_taskrun()
        .build(entries);
    match single_issuer {
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => {}
        other => return other.map(|ring| (ring, "single issuer, deferred task work")),
    }
    match IoUring::builder().dontfork().setup_coop_taskrun().build(entries) {
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => {}
        other => return other.map(|ring| (ring, "cooperative task work")),
    }
    IoUring::builder().dontfork().build(entries).map(|ring| (ring, "plain"))
}

/// Makes the host memory known to the kernel, in pieces that no slot crosses. Without, transfers cost more CPU time,
/// and work as well.
fn register(io: &IoUring, memory: &dyn StableMemory) -> Option<Registered> {
    let (start, bytes) = memory.span();
    let registered = Registered::plan(start.as_ptr() as usize, bytes, memory.num_slots())?;
    let piece_bytes = registered.piece_bytes;
    let iovecs: Vec<libc::iovec> = (0..bytes)
        .step_by(piece_bytes)
        .map(|at| libc::iovec {
            iov_base: start.as_ptr().wrapping_add(at).cast(),
            iov_len: piece_bytes.min(bytes - at),
        })
        .collect();
    // SAFETY: the iovecs lie within the memory's span, which by the contract of `StableMemory` stays mapped as long
    // as the memory lives, and the ring keeps a share of it until its buffers are registered no more. Registering
    // reads and writes none of its bytes.
    let result = unsafe { io.submitter().register_buffers(&iovecs) };
    match result {
        Ok(()) => Some(registered),
        Err(error) => {
            tracing::debug!(bytes, %error, "the host memory cannot be registered; I/O on it costs more");
            None
        }
    }
}

/// Where the `range` of a buffer begins, and how long it is.
fn address_of(buffer: &mut Buffer, range: &Range<usize>, way: Way) -> (*mut u8, u32) {
    let (start, bytes, fits) = match buffer {
        Buffer::Source(claim) => (claim.as_ptr().cast_mut(), claim.bytes().len(), way == Way::Write),
        Buffer::Target(claim) => {
            let bytes = claim.bytes_mut().len();
            (claim.as_mut_ptr(), bytes, way == Way::Read)
        }
        Buffer::Page(page) => (page.0.as_mut_ptr(), page.0.len(), true),
        Buffer::Word(word) => (word.as_mut_ptr(), word.len(), true),
    };
    assert!(fits, "a claim for reading is written from, and one for writing read into");
    assert!(range.start < range.end && range.end <= bytes, "{range:?} must be some of {bytes} bytes");
    let asked = u32::try_from(range.len()).expect("pieces are below 4 GiB");
    (start.wrapping_add(range.start), asked)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use kvo_core::{HostMemory, SlotAccessError, SlotId};
    use kvo_cpu::{HostRegion, RegionOptions};

    use super::*;
    use crate::engine::uring::doorbell::Doorbell;

    const SLOT_BYTES: usize = 8192;

    /// A ring on an empty file with four slots of memory, unless `io_uring` does not work here, which is said.
    fn ring<S>(doorbell: &Doorbell) -> Option<(Ring<S>, Arc<HostRegion>)> {
        let memory = Arc::new(HostRegion::anonymous(&RegionOptions::new(4, SLOT_BYTES)).unwrap());
        let file = Arc::new(tempfile::tempfile().unwrap());
        match Ring::new(file, doorbell.as_fd(), memory.clone(), 4) {
            Ok(ring) => Some((ring, memory)),
            Err(refusal) => {
                eprintln!("SKIPPED, no io_uring: {refusal:?}");
                None
            }
        }
    }

    fn target(memory: &Arc<HostRegion>, slot: u32) -> Buffer {
        Buffer::Target(WriteClaim::new(memory.clone(), SlotId(slot)).unwrap())
    }

    /// A read of the doorbell into a slot, which does not end before it is rung.
    fn endless<S>(buffer: Buffer, state: S) -> Transfer<S> {
        Transfer { way: Way::Read, on: On::Wake, offset: 0, range: 0..8, buffer, state }
    }

    /// B34: the transfer that the kernel has owns its buffer.
    #[test]
    fn a_slot_is_claimed_until_its_own_completion() {
        let doorbell = Doorbell::new().unwrap();
        let Some((mut ring, memory)) = ring(&doorbell) else { return };
        ring.push(endless(target(&memory, 1), 7));
        ring.enter(false).unwrap();
        assert!(ring.reap().is_none());
        let busy = memory.with_read(SlotId(1), &mut |_| ());
        assert_eq!(busy, Err(SlotAccessError::Busy { slot: SlotId(1) }));
        doorbell.ring_anyway();
        ring.enter(true).unwrap();
        let completion = ring.reap().unwrap();
        assert_eq!((completion.state, completion.asked, completion.result.unwrap()), (7, 8, 8));
        drop(completion.buffer);
        memory.with_read(SlotId(1), &mut |bytes| assert_eq!(bytes[..8], 1_u64.to_ne_bytes())).unwrap();
        assert_eq!(ring.num_inflight(), 0);
    }

    /// B34: rather leaked than given to somebody else under I/O.
    #[test]
    fn a_ring_that_ends_under_io_keeps_the_slot_and_the_memory_for_ever() {
        let doorbell = Doorbell::new().unwrap();
        let Some((mut ring, memory)) = ring(&doorbell) else { return };
        ring.push(endless(target(&memory, 2), ()));
        ring.enter(false).unwrap();
        drop(ring);
        let busy = memory.with_read(SlotId(2), &mut |_| ());
        assert_eq!(busy, Err(SlotAccessError::Busy { slot: SlotId(2) }));
        assert!(Arc::strong_count(&memory) > 1, "the mapping stays when all others let go");
    }

    /// B32: completions are matched by number and generation, and strange ones end nothing.
    #[test]
    fn a_completion_with_a_wrong_tag_is_counted_and_ends_nothing() {
        let doorbell = Doorbell::new().unwrap();
        let Some((mut ring, memory)) = ring(&doorbell) else { return };
        ring.push(endless(target(&memory, 0), ()));
        // The first transfer has key 0 and tag 1.
        for user_data in [2 << 32, 0, 1 << 32 | 1, u64::MAX] {
            let entry = opcode::Nop::new().build().user_data(user_data);
            // SAFETY: the operation has no parameters.
            let pushed = unsafe { ring.io.submission().push(&entry) };
            pushed.unwrap();
            ring.enter(true).unwrap();
            assert!(ring.reap().is_none(), "{user_data:#x}");
        }
        assert_eq!((ring.num_strange(), ring.num_inflight()), (4, 1));
        doorbell.ring_anyway();
        ring.enter(true).unwrap();
        assert!(ring.reap().is_some());
    }

    #[test]
    #[should_panic(expected = "4 transfers at once are promised")]
    fn more_transfers_than_promised_are_refused() {
        let doorbell = Doorbell::new().unwrap();
        let (mut ring, memory) = ring(&doorbell).expect("SKIPPED: 4 transfers at once are promised");
        for _ in 0..4 {
            ring.push(endless(Buffer::Word(Box::default()), ()));
        }
        ring.push(endless(target(&memory, 0), ()));
    }

    #[test]
    #[should_panic(expected = "must be some of 8192 bytes")]
    fn no_transfer_reaches_beyond_its_slot() {
        let doorbell = Doorbell::new().unwrap();
        let (mut ring, memory) = ring(&doorbell).expect("SKIPPED: must be some of 8192 bytes");
        ring.push(Transfer { range: 8..SLOT_BYTES + 1, ..endless(target(&memory, 0), ()) });
    }

    #[test]
    fn memory_is_cut_into_pieces_at_slots() {
        let slot = 3 << 20;
        let num_slots = 1000;
        let plan = Registered::plan(4096, slot * num_slots as usize, num_slots).unwrap();
        let per_piece = PIECE_BYTES_MAX / slot;
        assert_eq!(plan.piece_bytes, per_piece * slot);
        for (index, piece) in [(0, 0), (per_piece - 1, 0), (per_piece, 1), (999, 999 / per_piece)] {
            let start = 4096 + index * slot;
            assert_eq!(plan.piece_of(start, slot), Some(u16::try_from(piece).unwrap()), "slot {index}");
        }
        assert_eq!(plan.piece_of(4096 + per_piece * slot - 1, 2), None, "it crosses two pieces");
        assert_eq!(plan.piece_of(4096 + 1000 * slot - 1, 2), None, "it crosses the end");
        assert_eq!(plan.piece_of(4095, 1), None, "it lies before the start");
        assert!(Registered::plan(0, 2 * (PIECE_BYTES_MAX + 4096), 2).is_none(), "a slot too long");
        assert!(Registered::plan(0, (NUM_PIECES_MAX + 1) << 30, 1 << 20).is_none(), "too many pieces");
    }
}
