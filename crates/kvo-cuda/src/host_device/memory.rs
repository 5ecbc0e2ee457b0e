//! Host memory that stands for a GPU's.

use std::{
    fmt,
    ops::Range,
    sync::{Arc, Mutex, PoisonError, RwLock},
};

use kvo_core::DeviceSpan;

use super::{
    core::Accesses,
    handles,
    race::{Job, Place, RACES_MAX, Race, RaceKind},
};
use crate::{DeviceAccessError, HostDeviceError};

/// Where the first allocation lies. No address of a process is like that, so none is taken for one.
pub(super) const FIRST_ADDRESS: u64 = 0x00D0_0000_0000_0000;
/// Allocations start at multiples of this, and at least so many bytes of nothing lie between two of them.
const GUARD_BYTES: u64 = 2 << 20;

/// The memory of a [`HostDevice`](crate::HostDevice): allocations at addresses of its own, which mean nothing
/// elsewhere. Between two of them lies a guard zone, and an address is never given out twice, so an access beyond an
/// allocation's end, or after it was freed, finds nothing.
///
/// An allocation is cut into segments with a lock each. An access locks one segment at a time for as long as it copies
/// that segment's bytes, so accesses of different segments run side by side, and two accesses that race come out mixed
/// at segment borders at worst: like on a GPU they are a hazard that fences must rule out, but never undefined
/// behaviour. Nothing else is locked while a segment is, so accesses cannot deadlock. The operating system hands out
/// the zeroed pages when they are first written.
///
/// A clone is another handle to the same bytes.
#[derive(Clone)]
pub struct DeviceMemory {
    space: Arc<Space>,
    watch: Option<Arc<Watch>>,
}

struct Space {
    segment_bytes: usize,
    allocations: RwLock<Allocations>,
}

struct Allocations {
    /// By address.
    list: Vec<Arc<Allocation>>,
    next_address: u64,
}

type Segments = Box<[RwLock<Box<[u8]>>]>;

/// One allocation. Whoever has it may touch it, also after it was freed.
pub(super) struct Allocation {
    address: u64,
    bytes: u64,
    segment_bytes: usize,
    segments: Segments,
}

/// Whose accesses are watched, and what it said that it would touch.
pub(super) struct Watch {
    pub(super) job: Job,
    /// What it said, if it did. It may read what it writes.
    pub(super) declared: Option<Accesses>,
    pub(super) races: Arc<Mutex<Vec<Race>>>,
}

impl DeviceMemory {
    /// Memory without allocations, to be cut into segments of `segment_bytes`, at least 1.
    pub(super) fn new(segment_bytes: usize) -> Self {
        let allocations = Allocations { list: Vec::new(), next_address: FIRST_ADDRESS };
        Self { space: Arc::new(Space { segment_bytes, allocations: RwLock::new(allocations) }), watch: None }
    }

    /// The same memory, seen through the eyes of a job.
    pub(super) fn watched(&self, watch: Watch) -> Self {
        Self { space: Arc::clone(&self.space), watch: Some(Arc::new(watch)) }
    }

    /// Allocates `bytes` zero bytes, at least 1.
    pub(super) fn alloc(&self, bytes: u64) -> Result<DeviceSpan, HostDeviceError> {
        if bytes == 0 {
            return Err(HostDeviceError::Zero { field: "bytes" });
        }
        let segments = zeroed(bytes, self.space.segment_bytes)?;
        let mut allocations = self.space.allocations.write().unwrap_or_else(PoisonError::into_inner);
        let address = allocations.next_address;
        let next_address = bytes
            .checked_next_multiple_of(GUARD_BYTES)
            .and_then(|bytes| address.checked_add(bytes)?.checked_add(GUARD_BYTES));
        allocations.next_address = next_address.ok_or(HostDeviceError::OutOfMemory { bytes })?;
        let segment_bytes = self.space.segment_bytes;
        allocations.list.push(Arc::new(Allocation { address, bytes, segment_bytes, segments }));
        Ok(handles::span(address, bytes))
    }

    /// Frees an allocation; says whether there was one at that address.
    pub(super) fn free(&self, address: u64) -> bool {
        let mut allocations = self.space.allocations.write().unwrap_or_else(PoisonError::into_inner);
        let found = allocations.list.binary_search_by_key(&address, |allocation| allocation.address);
        found.map(|index| allocations.list.remove(index)).is_ok()
    }

    /// The allocation that all of an access is in, and where in it.
    pub(super) fn find(&self, address: u64, bytes: u64) -> Result<(Arc<Allocation>, u64), DeviceAccessError> {
        let error = DeviceAccessError { address, bytes };
        let allocations = self.space.allocations.read().unwrap_or_else(PoisonError::into_inner);
        let after = allocations.list.partition_point(|allocation| allocation.address <= address);
        let allocation = after.checked_sub(1).map(|index| &allocations.list[index]).ok_or(error)?;
        let offset = address - allocation.address;
        let inside = offset.checked_add(bytes).is_some_and(|end| end <= allocation.bytes);
        if inside { Ok((Arc::clone(allocation), offset)) } else { Err(error) }
    }

    /// Fills `into` with the bytes from `address` on, as they are now: without waiting for a stream or for transfers.
    ///
    /// # Errors
    /// [`DeviceAccessError`] unless they lie in one allocation.
    pub fn read(&self, address: u64, into: &mut [u8]) -> Result<(), DeviceAccessError> {
        let (allocation, offset) = self.watched_find(address, into.len() as u64, false)?;
        allocation.read(offset, into);
        Ok(())
    }

    /// Replaces the bytes from `address` on by those of `from`, now: without waiting for a stream or for transfers.
    ///
    /// # Errors
    /// [`DeviceAccessError`] unless they lie in one allocation.
    pub fn write(&self, address: u64, from: &[u8]) -> Result<(), DeviceAccessError> {
        let (allocation, offset) = self.watched_find(address, from.len() as u64, true)?;
        allocation.write(offset, from);
        Ok(())
    }

    fn watched_find(
        &self,
        address: u64,
        bytes: u64,
        writes: bool,
    ) -> Result<(Arc<Allocation>, u64), DeviceAccessError> {
        let found = self.find(address, bytes);
        if let Some(watch) = &self.watch {
            let range = address..address.saturating_add(bytes);
            if found.is_err() {
                watch.report(RaceKind::GuardZone, range);
            } else if bytes > 0 && !watch.expects(&range, writes) {
                watch.report(RaceKind::Undeclared, range);
            }
        }
        found
    }
}

impl Watch {
    fn expects(&self, range: &Range<u64>, writes: bool) -> bool {
        let Some(declared) = &self.declared else { return true };
        let covers = |said: &Range<u64>| said.start <= range.start && range.end <= said.end;
        declared.writes.iter().any(covers) || (!writes && declared.reads.iter().any(covers))
    }

    fn report(&self, kind: RaceKind, range: Range<u64>) {
        let race = Race { kind, first: self.job, second: Job::Outside, place: Place::Device, range };
        let mut races = self.races.lock().unwrap_or_else(PoisonError::into_inner);
        if races.len() < RACES_MAX {
            races.push(race);
        }
    }
}

impl Allocation {
    /// Fills `into` with the bytes from `offset` on, which lie inside.
    pub(super) fn read(&self, offset: u64, into: &mut [u8]) {
        self.each_piece(offset, into.len(), |segment, within, part| {
            let bytes = self.segments[segment].read().unwrap_or_else(PoisonError::into_inner);
            into[part].copy_from_slice(&bytes[within]);
        });
    }

    /// Replaces the bytes from `offset` on, which lie inside.
    pub(super) fn write(&self, offset: u64, from: &[u8]) {
        self.each_piece(offset, from.len(), |segment, within, part| {
            let mut bytes = self.segments[segment].write().unwrap_or_else(PoisonError::into_inner);
            bytes[within].copy_from_slice(&from[part]);
        });
    }

    /// Replaces so many bytes from `offset` on, which lie inside, by `value`.
    pub(super) fn fill(&self, offset: u64, len: usize, value: u8) {
        self.each_piece(offset, len, |segment, within, _| {
            let mut bytes = self.segments[segment].write().unwrap_or_else(PoisonError::into_inner);
            bytes[within].fill(value);
        });
    }

    /// Whether so many bytes from `offset` on, which lie inside, are all `value`.
    pub(super) fn holds(&self, offset: u64, len: usize, value: u8) -> bool {
        let mut holds = true;
        self.each_piece(offset, len, |segment, within, _| {
            let bytes = self.segments[segment].read().unwrap_or_else(PoisonError::into_inner);
            holds &= bytes[within].iter().all(|byte| *byte == value);
        });
        holds
    }

    /// Cuts an access at the borders of segments: the segment, the bytes in it, and those of the access.
    fn each_piece(&self, offset: u64, len: usize, mut piece: impl FnMut(usize, Range<usize>, Range<usize>)) {
        let start = usize::try_from(offset).expect("an allocation fits memory");
        let mut done = 0;
        while done < len {
            let (segment, first) = ((start + done) / self.segment_bytes, (start + done) % self.segment_bytes);
            let bytes = (len - done).min(self.segment_bytes - first);
            piece(segment, first..first + bytes, done..done + bytes);
            done += bytes;
        }
    }
}

/// `bytes` zero bytes in segments.
fn zeroed(bytes: u64, segment_bytes: usize) -> Result<Segments, HostDeviceError> {
    let out_of_memory = || HostDeviceError::OutOfMemory { bytes };
    let mut left = usize::try_from(bytes).map_err(|_| out_of_memory())?;
    // Only asked, not touched: a size that cannot be had becomes an error here, not an abort below.
    Vec::<u8>::new().try_reserve_exact(left).map_err(|_| out_of_memory())?;
    let mut segments = Vec::new();
    segments.try_reserve_exact(left.div_ceil(segment_bytes)).map_err(|_| out_of_memory())?;
    while left > 0 {
        let len = left.min(segment_bytes);
        segments.push(RwLock::new(vec![0; len].into_boxed_slice()));
        left -= len;
    }
    Ok(segments.into_boxed_slice())
}

impl fmt::Debug for DeviceMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let allocations = self.space.allocations.read().unwrap_or_else(PoisonError::into_inner);
        f.debug_struct("DeviceMemory").field("allocations", &allocations.list).finish_non_exhaustive()
    }
}

impl fmt::Debug for Allocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Allocation")
            .field("address", &format_args!("{:#x}", self.address))
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_access_across_segments_is_one_access() {
        for segment_bytes in 1..12 {
            let memory = DeviceMemory::new(segment_bytes);
            let start = memory.alloc(10).unwrap().address();
            memory.write(start + 2, &[1, 2, 3, 4, 5, 6]).unwrap();
            let mut all = [9; 10];
            memory.read(start, &mut all).unwrap();
            assert_eq!(all, [0, 0, 1, 2, 3, 4, 5, 6, 0, 0], "segments of {segment_bytes} bytes");
            let mut some = [9; 3];
            memory.read(start + 6, &mut some).unwrap();
            assert_eq!(some, [5, 6, 0]);
            let (allocation, _) = memory.find(start, 10).unwrap();
            allocation.fill(3, 4, 7);
            assert_eq!(
                [(3, 4), (2, 4), (3, 5)].map(|(at, len)| allocation.holds(at, len, 7)),
                [true, false, false]
            );
        }
    }

    #[test]
    fn an_access_beyond_an_allocation_touches_nothing() {
        let memory = DeviceMemory::new(4);
        let [first, second] = [memory.alloc(10).unwrap(), memory.alloc(10).unwrap()];
        let (start, end) = (first.address(), first.address() + 10);
        assert!(second.address() >= end + GUARD_BYTES, "a guard zone lies between");
        assert_eq!(memory.write(end - 2, &[1, 2, 3]), Err(DeviceAccessError { address: end - 2, bytes: 3 }));
        for (address, len) in [(start - 1, 1), (end, 1), (u64::MAX, 2), (0, 1), (start, 11)] {
            assert!(memory.read(address, &mut vec![0; len]).is_err(), "{address:#x}");
        }
        let mut all = [9; 10];
        memory.read(start, &mut all).unwrap();
        assert_eq!(all, [0; 10]);
        assert!(memory.read(end, &mut []).is_ok());
    }

    #[test]
    fn what_was_freed_is_gone_and_its_addresses_are_not_given_out_again() {
        let memory = DeviceMemory::new(4);
        let [first, second] = [memory.alloc(10).unwrap(), memory.alloc(10).unwrap()];
        assert!(memory.free(first.address()));
        assert!(!memory.free(first.address()));
        assert!(!memory.free(second.address() + 1));
        assert!(memory.read(first.address(), &mut [0]).is_err());
        assert!(memory.read(second.address(), &mut [0]).is_ok());
        assert!(memory.alloc(1).unwrap().address() > second.address());
    }

    #[test]
    fn more_memory_than_there_is_is_an_error() {
        for bytes in [u64::MAX, u64::MAX / 4] {
            let error = DeviceMemory::new(1 << 20).alloc(bytes).unwrap_err();
            assert!(matches!(error, HostDeviceError::OutOfMemory { .. }), "{error}");
        }
        assert!(matches!(DeviceMemory::new(1).alloc(0), Err(HostDeviceError::Zero { field: "bytes" })));
    }
}
