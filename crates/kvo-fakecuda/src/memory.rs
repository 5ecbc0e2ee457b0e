//! Raw memory: mappings, and the bytes in them.
//!
//! Every [`Span`] is either a stretch of an [`Arena`], which is never unmapped, or memory that a caller of an exported
//! function named. Those functions are unsafe, and their contract is the real driver's: such memory stays mapped until
//! the work on it is over. So spans carry no lifetime, and nothing here makes a reference to what they name. Bytes that
//! others touch meanwhile are torn, as with a real copy engine; that is what the tests are for.

use std::{ffi::c_void, ptr};

use crate::wire::native;

/// How many bytes are copied at a time, from the last to the first.
const STRIDE: usize = 64 << 10;

/// A stretch of mapped memory of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    address: usize,
    bytes: usize,
}

impl Span {
    /// Memory that the caller of an exported function says is there.
    pub(crate) fn of_caller(address: u64, bytes: usize) -> Self {
        Self { address: native(address), bytes }
    }

    pub(crate) fn bytes(self) -> usize {
        self.bytes
    }

    pub(crate) fn address(self) -> u64 {
        self.address as u64
    }

    /// `bytes` bytes of it from `offset` on.
    pub(crate) fn part(self, offset: usize, bytes: usize) -> Self {
        assert!(offset <= self.bytes && bytes <= self.bytes - offset, "{self:?} has no {offset}+{bytes}");
        Self { address: self.address + offset, bytes }
    }

    fn start(self) -> *mut u8 {
        ptr::with_exposed_provenance_mut(self.address)
    }

    pub(crate) fn fill(self, value: u8) {
        // SAFETY: the span is mapped and writable, as its maker has said.
        unsafe { ptr::write_bytes(self.start(), value, self.bytes) };
    }

    /// Copies all bytes of `from`, which is as long, the last stretch first: whoever looks at the last byte to learn
    /// whether the copy is over is wrong.
    pub(crate) fn copy_from(self, from: Self) {
        assert_eq!(self.bytes, from.bytes, "a copy is as long as its source");
        let mut end = self.bytes;
        while end > 0 {
            let begin = (end - 1) / STRIDE * STRIDE;
            let (to, from) = (self.part(begin, end - begin), from.part(begin, end - begin));
            // SAFETY: both are mapped, as their makers have said; `copy` allows for an overlap.
            unsafe { ptr::copy(from.start(), to.start(), to.bytes) };
            end = begin;
        }
    }

    pub(crate) fn write(self, bytes: &[u8]) {
        assert_eq!(self.bytes, bytes.len());
        // SAFETY: the span is mapped and writable, as its maker has said, and no Rust reference into it exists here.
        unsafe { ptr::copy(bytes.as_ptr(), self.start(), bytes.len()) };
    }

    pub(crate) fn read(self, bytes: &mut [u8]) {
        assert_eq!(self.bytes, bytes.len());
        // SAFETY: the span is mapped, as its maker has said; `bytes` is ours.
        unsafe { ptr::copy(self.start(), bytes.as_mut_ptr(), bytes.len()) };
    }

    pub(crate) fn to_vec(self) -> Vec<u8> {
        let mut bytes = vec![0; self.bytes];
        self.read(&mut bytes);
        bytes
    }

    /// Gives the pages back; they read as zeros until they are filled. The span is whole pages of an arena.
    pub(crate) fn discard(self) {
        // SAFETY: the span is of a private anonymous mapping of ours, so nothing but its bytes changes.
        let code = unsafe { libc::madvise(self.start().cast::<c_void>(), self.bytes, libc::MADV_DONTNEED) };
        assert_eq!(code, 0, "madvise of {self:?} failed");
    }

    /// Unmaps memory that [`map`] made.
    pub(crate) fn unmap(self) {
        // SAFETY: the span is a whole mapping of ours, and its owner has just given it up.
        let code = unsafe { libc::munmap(self.start().cast::<c_void>(), self.bytes) };
        assert_eq!(code, 0, "munmap of {self:?} failed");
    }
}

/// Addresses that no host thread may touch, and the memory behind them.
#[derive(Debug)]
pub(crate) struct Arena {
    /// Where the addresses that callers see start. Without access: a touch is a segmentation fault.
    reservation: usize,
    /// Where the same bytes really are.
    shadow: usize,
    bytes: usize,
}

impl Arena {
    /// Reserves `bytes` bytes, and nothing of it is in memory yet.
    pub(crate) fn new(bytes: usize) -> Option<Self> {
        let reservation = map(bytes, libc::PROT_NONE)?;
        let shadow = map(bytes, libc::PROT_READ | libc::PROT_WRITE)?;
        Some(Self { reservation: reservation.address, shadow: shadow.address, bytes })
    }

    pub(crate) fn start(&self) -> u64 {
        self.reservation as u64
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn contains(&self, address: u64) -> bool {
        address.checked_sub(self.start()).is_some_and(|offset| offset < self.bytes as u64)
    }

    /// The memory behind `bytes` bytes from `address` on; `None` if they are not all here.
    pub(crate) fn span(&self, address: u64, bytes: usize) -> Option<Span> {
        let offset = usize::try_from(address.checked_sub(self.start())?).ok()?;
        let is_inside = offset <= self.bytes && bytes <= self.bytes - offset;
        is_inside.then_some(Span { address: self.shadow + offset, bytes })
    }
}

/// Maps `bytes` bytes of fresh memory.
pub(crate) fn map(bytes: usize, protection: i32) -> Option<Span> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a fresh mapping, at an address of the kernel's choice, touches nothing that there is.
    let start = unsafe { libc::mmap(ptr::null_mut(), bytes, protection, flags, -1, 0) };
    (start != libc::MAP_FAILED).then(|| Span { address: start.expose_provenance(), bytes })
}

/// Maps memory that the host may use.
pub(crate) fn map_host(bytes: usize) -> Option<(u64, Span)> {
    let span = map(bytes, libc::PROT_READ | libc::PROT_WRITE)?;
    Some((span.address as u64, span))
}

/// Whether every page of these bytes is mapped.
pub(crate) fn is_mapped(address: u64, bytes: usize) -> bool {
    let start = native(address) / PAGE_BYTES * PAGE_BYTES;
    let Some(end) = native(address).checked_add(bytes) else { return false };
    let start_of = ptr::with_exposed_provenance_mut::<c_void>(start);
    // SAFETY: with MS_ASYNC alone it only looks whether the pages are mapped.
    let code = unsafe { libc::msync(start_of, end - start, libc::MS_ASYNC) };
    code == 0
}

/// What the host's memory is pinned in.
pub(crate) const PAGE_BYTES: usize = 4096;
