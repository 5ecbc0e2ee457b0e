//! The host memory region: slots of equal size in one mapping. All unsafe code of this crate is here.
//!
//! Each slot has an [access word](AccessWord): nobody touches it, some copies read it, or one writes it.
//! A slice of a slot exists only between a successful claim of the word and the drop of the guard that gives it back,
//! so safe code cannot make two copies race, whatever slots it is told to use.

mod access;
mod available;
#[cfg(test)]
mod tests;

use std::{
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    ptr::NonNull,
    slice,
    sync::{Arc, Mutex},
};

use kvo_core::{HostMemory, SlotAccessError, SlotId, StableMemory};
use memmap2::{Advice, MmapMut, MmapOptions, MmapRaw};
use rustix::fs::{MemfdFlags, Mode, SealFlags};

use self::access::AccessWord;
use crate::RegionError;

/// What the region is aligned to, so that the kernel can back it with huge pages.
const HUGE_PAGE_BYTES: usize = 2 << 20;
/// What each slot is aligned to: a page, which is also what direct I/O wants.
const SLOT_ALIGN_BYTES: usize = 4 << 10;

/// Options of a [`HostRegion`], checked before anything is mapped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegionOptions {
    /// Slots. At least 1.
    pub num_slots: u32,
    /// Bytes a slot. At least 1; slots start on page boundaries whatever it is.
    pub slot_bytes: usize,
    /// Whether to ask for 2 MiB pages. Without them, device and disk transfers reach about half the throughput.
    pub huge_pages: bool,
    /// Threads that touch all the memory before the constructor returns, so that no later copy waits for the kernel
    /// to find a page; as many as are to be had. 0 leaves the memory untouched.
    pub prefault_threads: usize,
}

impl RegionOptions {
    /// Options for `num_slots` slots of `slot_bytes` bytes, with huge pages, prefaulted by as many threads as there
    /// are cores, up to 8.
    pub fn new(num_slots: u32, slot_bytes: usize) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self { num_slots, slot_bytes, huge_pages: true, prefault_threads: cores.min(8) }
    }

    /// Distance between slots and the bytes of all of them, if there can be that many.
    fn sizes(&self) -> Result<(usize, usize), RegionError> {
        for (field, zero) in [("num_slots", self.num_slots == 0), ("slot_bytes", self.slot_bytes == 0)] {
            if zero {
                return Err(RegionError::Zero { field });
            }
        }
        let overflow = RegionError::Overflow { num_slots: self.num_slots, slot_bytes: self.slot_bytes };
        let stride = self.slot_bytes.checked_next_multiple_of(SLOT_ALIGN_BYTES);
        let total = stride.and_then(|stride| stride.checked_mul(self.num_slots as usize));
        match (stride, total) {
            // A mapping's length must also fit a signed size, room for the alignment included.
            (Some(stride), Some(total)) if total <= isize::MAX as usize - HUGE_PAGE_BYTES => {
                Ok((stride, total))
            }
            _ => Err(overflow),
        }
    }
}

/// Host memory for one primary tier: `num_slots` slots, each `slot_bytes` long and starting on a page boundary.
///
/// Devices and tiers share it by `Arc`; it is unmapped when the last of them lets go, so no copy outlives it.
#[derive(Debug)]
pub struct HostRegion {
    map: MmapRaw,
    /// Where the first slot starts in the mapping.
    offset: usize,
    stride: usize,
    slot_bytes: usize,
    access: Box<[AccessWord]>,
    shared: Option<OwnedFd>,
}

impl HostRegion {
    /// Memory of this process alone, aligned to 2 MiB, filled with zeros.
    ///
    /// A process that is forked off does not have it: else a fork would copy what is registered with a device, and let every
    /// page be waited for once more.
    ///
    /// # Errors
    /// [`RegionError::Zero`] and [`RegionError::Overflow`] name what is wrong with the options;
    /// [`RegionError::NotEnoughMemory`] says how much was asked for and how much there is; nothing is mapped then.
    pub fn anonymous(options: &RegionOptions) -> Result<Self, RegionError> {
        let (stride, total) = options.sizes()?;
        available::check(total)?;
        let mut map = MmapOptions::new()
            .len(total + HUGE_PAGE_BYTES)
            .map_anon()
            .map_err(|source| RegionError::System { operation: "map anonymous memory", source })?;
        let start = map.as_ptr() as usize;
        let offset = start.next_multiple_of(HUGE_PAGE_BYTES) - start;
        if let Err(error) = map.advise(Advice::DontFork) {
            tracing::warn!(%error, "a fork copies the host region; transfers will be slower after it");
        }
        if options.huge_pages {
            advise_huge_pages(map.advise_range(Advice::HugePage, offset, total));
        }
        prefault_anonymous(&mut map, offset, total, options.prefault_threads)?;
        Ok(Self::over(MmapRaw::from(map), offset, stride, options, None))
    }

    /// Memory that other processes can map as well, by the descriptor that [`shared_fd`](Self::shared_fd) lends.
    ///
    /// It has no name in any file system, so nothing is left behind when the last process that has it ends, however
    /// it ends. It is sealed against shrinking and growing, so that no process can take it from under the others.
    ///
    /// # Errors
    /// As [`anonymous`](Self::anonymous).
    pub fn shared(options: &RegionOptions) -> Result<Self, RegionError> {
        let (stride, total) = options.sizes()?;
        available::check(total)?;
        let system = |operation| {
            move |errno: rustix::io::Errno| RegionError::System { operation, source: errno.into() }
        };
        let fd = rustix::fs::memfd_create("kvo-host-region", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
            .map_err(system("create shared memory"))?;
        // Who opens it by way of `/proc` is of the same user; no other need be able to.
        rustix::fs::fchmod(&fd, Mode::RUSR | Mode::WUSR).map_err(system("close up shared memory"))?;
        rustix::fs::ftruncate(&fd, total as u64).map_err(system("size shared memory"))?;
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
            .map_err(system("seal shared memory"))?;
        Self::map_shared(fd, stride, total, options)
    }

    /// Maps the shared region of another process, given its descriptor and the options it was made with.
    ///
    /// # Errors
    /// [`RegionError::SizeMismatch`] if the region is not of the options' size, [`RegionError::NotSealed`] if it
    /// could be shrunk while it is mapped, and those of [`shared`](Self::shared).
    ///
    /// # Safety
    /// The access words are kept by each process for itself. The caller guarantees that, over all processes that map
    /// the region, a slot is written by at most one of them at a time and read by none meanwhile: that is, that each
    /// touches only slots which one manager has handed to it, and only until the manager was told of the completion.
    pub unsafe fn attach(fd: OwnedFd, options: &RegionOptions) -> Result<Self, RegionError> {
        let (stride, total) = options.sizes()?;
        let stat = rustix::fs::fstat(&fd).map_err(|errno| RegionError::System {
            operation: "look at shared memory",
            source: errno.into(),
        })?;
        let actual_bytes = u64::try_from(stat.st_size).unwrap_or(0);
        if actual_bytes != total as u64 {
            return Err(RegionError::SizeMismatch { asked_bytes: total, actual_bytes });
        }
        match rustix::fs::fcntl_get_seals(&fd) {
            Ok(seals) if seals.contains(SealFlags::SHRINK | SealFlags::GROW) => {}
            _ => return Err(RegionError::NotSealed),
        }
        Self::map_shared(fd, stride, total, options)
    }

    /// The descriptor of a shared region, to be handed to another process: inherited, or sent over a socket.
    ///
    /// # Safety
    /// By the descriptor the memory can be changed under whoever borrows a slot. The caller guarantees that it, and every
    /// other that is made of it, is used to [`attach`](Self::attach) the region, and to change nothing.
    pub unsafe fn shared_fd(&self) -> Option<BorrowedFd<'_>> {
        self.shared.as_ref().map(AsFd::as_fd)
    }

    /// Writes zeros over every slot that nobody reads or writes at that moment; says which were left, as somebody does.
    ///
    /// It asks nobody which slots have chunks. It is for an owner who knows that none has: after a reset, with everybody held
    /// off who would store anew. It takes as long as it takes to write all of the memory, on the thread that calls.
    pub fn wipe(&self) -> Vec<SlotId> {
        let slots = (0..self.num_slots()).map(SlotId);
        slots.filter(|slot| self.with_write(*slot, &mut |bytes| bytes.fill(0)).is_err()).collect()
    }

    fn map_shared(
        fd: OwnedFd,
        stride: usize,
        total: usize,
        options: &RegionOptions,
    ) -> Result<Self, RegionError> {
        let map = MmapOptions::new()
            .len(total)
            .map_raw(&fd)
            .map_err(|source| RegionError::System { operation: "map shared memory", source })?;
        if options.huge_pages {
            advise_huge_pages(map.advise(Advice::HugePage));
        }
        let populate = |offset, len| map.advise_range(Advice::PopulateWrite, offset, len);
        if !populate_pieces(0, total, options.prefault_threads, &populate)? {
            tracing::warn!("the kernel cannot populate shared memory ahead; pages are found at first use");
        }
        Ok(Self::over(map, 0, stride, options, Some(fd)))
    }

    fn over(
        map: MmapRaw,
        offset: usize,
        stride: usize,
        options: &RegionOptions,
        shared: Option<OwnedFd>,
    ) -> Self {
        let access = (0..options.num_slots).map(|_| AccessWord::default()).collect();
        Self { map, offset, stride, slot_bytes: options.slot_bytes, access, shared }
    }

    fn word(&self, slot: SlotId) -> Result<&AccessWord, SlotAccessError> {
        self.access
            .get(slot.0 as usize)
            .ok_or(SlotAccessError::OutOfRange { slot, num_slots: self.num_slots() })
    }

    /// Claims a slot's word for one reader more.
    fn begin_read(&self, slot: SlotId) -> Result<&AccessWord, SlotAccessError> {
        let word = self.word(slot)?;
        if word.begin_read() { Ok(word) } else { Err(SlotAccessError::Busy { slot }) }
    }

    /// Claims a slot's word for the only writer.
    fn begin_write(&self, slot: SlotId) -> Result<&AccessWord, SlotAccessError> {
        let word = self.word(slot)?;
        if word.begin_write() { Ok(word) } else { Err(SlotAccessError::Busy { slot }) }
    }

    /// The word of a slot that is claimed.
    fn claimed(&self, slot: SlotId) -> &AccessWord {
        let word = self.word(slot).expect("only a slot that there is can be claimed");
        debug_assert!(word.is_claimed(), "slot {slot} must be claimed to be released");
        word
    }

    fn start_of(&self, slot: SlotId) -> NonNull<u8> {
        NonNull::new(self.slot_ptr(slot)).expect("a mapping does not begin at address 0")
    }

    /// The first byte of a slot, which must be one of the region's.
    fn slot_ptr(&self, slot: SlotId) -> *mut u8 {
        assert!((slot.0 as usize) < self.access.len(), "slot {slot} must be one of {}", self.access.len());
        let distance = self.offset + slot.0 as usize * self.stride;
        // SAFETY: the mapping is at least `offset + num_slots * stride` bytes long, by its construction, and the
        // assertion keeps `slot` below `num_slots`; so the result lies within the mapping.
        unsafe { self.map.as_mut_ptr().add(distance) }
    }
}

impl HostMemory for HostRegion {
    fn num_slots(&self) -> u32 {
        u32::try_from(self.access.len()).expect("slots are counted in 32 bits")
    }

    fn slot_bytes(&self) -> usize {
        self.slot_bytes
    }

    fn with_read(&self, slot: SlotId, read: &mut dyn FnMut(&[u8])) -> Result<(), SlotAccessError> {
        let _guard = ReadGuard(self.begin_read(slot)?);
        // SAFETY: `slot_ptr` is the start of `slot_bytes` mapped bytes (`slot_bytes <= stride`), which stay mapped
        // while `self` is borrowed and always hold initialised memory; the claimed word keeps every writer of this
        // process out until `_guard` drops, after the slice is gone, and the contracts of `attach` and `shared_fd` all
        // others.
        read(unsafe { slice::from_raw_parts(self.slot_ptr(slot), self.slot_bytes) });
        Ok(())
    }

    fn with_write(&self, slot: SlotId, write: &mut dyn FnMut(&mut [u8])) -> Result<(), SlotAccessError> {
        let _guard = WriteGuard(self.begin_write(slot)?);
        // SAFETY: as in `with_read`, and the word was claimed for one writer and nobody else, so no other slice of this
        // slot exists until `_guard` drops, after the slice is gone.
        write(unsafe { slice::from_raw_parts_mut(self.slot_ptr(slot), self.slot_bytes) });
        Ok(())
    }

    fn into_stable(self: Arc<Self>) -> Option<Arc<dyn StableMemory>> {
        Some(self)
    }
}

// SAFETY: the mapping neither moves nor goes before `self` drops, and always holds initialised memory. A claim takes
// the slot's access word exactly as the closures of `HostMemory` do and keeps it until its release, so claims and
// closures keep each other out: any number of readers, or one writer. Writers in other processes, and by the descriptor,
// are kept out by the contracts of `attach` and `shared_fd`.
unsafe impl StableMemory for HostRegion {
    fn claim_read(&self, slot: SlotId) -> Result<NonNull<u8>, SlotAccessError> {
        self.begin_read(slot)?;
        Ok(self.start_of(slot))
    }

    unsafe fn release_read(&self, slot: SlotId) {
        drop(ReadGuard(self.claimed(slot)));
    }

    fn claim_write(&self, slot: SlotId) -> Result<NonNull<u8>, SlotAccessError> {
        self.begin_write(slot)?;
        Ok(self.start_of(slot))
    }

    unsafe fn release_write(&self, slot: SlotId) {
        drop(WriteGuard(self.claimed(slot)));
    }

    fn span(&self) -> (NonNull<u8>, usize) {
        (self.start_of(SlotId(0)), self.access.len() * self.stride)
    }
}

/// Gives a read claim back, also when the reader panics.
struct ReadGuard<'a>(&'a AccessWord);

impl Drop for ReadGuard<'_> {
    fn drop(&mut self) {
        self.0.end_read();
    }
}

/// Gives a write claim back, also when the writer panics.
struct WriteGuard<'a>(&'a AccessWord);

impl Drop for WriteGuard<'_> {
    fn drop(&mut self) {
        self.0.end_write();
    }
}

/// Huge pages are a wish: a kernel without them serves small ones.
fn advise_huge_pages(advised: std::io::Result<()>) {
    if let Err(error) = advised {
        tracing::warn!(%error, "no huge pages for the host region; transfers will be slower");
    }
}

/// Touches fresh memory of this process, so that every page of it is there.
fn prefault_anonymous(
    map: &mut MmapMut,
    offset: usize,
    total: usize,
    threads: usize,
) -> Result<(), RegionError> {
    let populate = |at, len| map.advise_range(Advice::PopulateWrite, at, len);
    if populate_pieces(offset, total, threads, &populate)? {
        return Ok(());
    }
    // A kernel before 5.14: write to each page by hand, which changes nothing in memory that is all zeros.
    let pieces = map[offset..offset + total].chunks_mut(piece_bytes(total, threads));
    for_each_piece(pieces, &|piece: &mut [u8]| {
        piece.iter_mut().step_by(SLOT_ALIGN_BYTES).for_each(|byte| *byte = 0);
    });
    Ok(())
}

/// Populates `total` bytes from `offset` on, a piece a thread. Says whether the kernel knows how.
fn populate_pieces(
    offset: usize,
    total: usize,
    threads: usize,
    populate: &(dyn Fn(usize, usize) -> std::io::Result<()> + Sync),
) -> Result<bool, RegionError> {
    if threads == 0 {
        return Ok(true);
    }
    let piece_bytes = piece_bytes(total, threads);
    let failed = Mutex::new(None);
    for_each_piece((0..total).step_by(piece_bytes), &|start| {
        if let Err(error) = populate(offset + start, piece_bytes.min(total - start)) {
            failed.lock().expect("nobody panics with it").get_or_insert(error);
        }
    });
    match failed.into_inner().expect("nobody panics with it") {
        None => Ok(true),
        Some(error) if cannot_populate(&error) => Ok(false),
        Some(source) => Err(RegionError::System { operation: "populate the host region", source }),
    }
}

/// Touches each piece, on as many threads as there are pieces or, if fewer are to be had, on those: this is one of them.
fn for_each_piece<P>(pieces: impl ExactSizeIterator<Item = P> + Send, touch: &(dyn Fn(P) + Sync)) {
    let num_pieces = pieces.len();
    let pieces = Mutex::new(pieces);
    let next = || pieces.lock().expect("nobody panics with it").next();
    let touch_some = || std::iter::from_fn(next).for_each(touch);
    std::thread::scope(|scope| {
        let spawn = |_| std::thread::Builder::new().spawn_scoped(scope, touch_some).is_ok();
        let _ = (1..num_pieces).all(spawn);
        touch_some();
    });
}

/// Whether the kernel does not know how, or a container keeps it from being asked, and not that it has no memory.
fn cannot_populate(error: &std::io::Error) -> bool {
    use rustix::io::Errno;
    matches!(
        Errno::from_io_error(error),
        Some(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP | Errno::PERM | Errno::ACCESS)
    )
}

/// How much of `total` each of `threads` touches: whole huge pages.
fn piece_bytes(total: usize, threads: usize) -> usize {
    total.div_ceil(threads.max(1)).next_multiple_of(HUGE_PAGE_BYTES)
}
