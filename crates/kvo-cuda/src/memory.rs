//! Host memory that stands for a GPU's.

use std::{
    ops::Range,
    sync::{Arc, PoisonError, RwLock},
};

use crate::{DeviceAccessError, HostDeviceError};

/// The KV memory of a [`HostDevice`](crate::HostDevice): bytes 0 to `device_bytes`, all zero at first.
///
/// It is cut into segments with a lock each. An access locks one segment at a time for as long as it copies that
/// segment's bytes, so accesses of different segments run side by side, and two accesses that race come out mixed at
/// segment borders at worst: like on a GPU they are a hazard that fences must rule out, but never undefined
/// behaviour. Nothing else is locked while a segment is, so accesses cannot deadlock. The operating system hands out
/// the zeroed pages when they are first written.
///
/// A clone is another handle to the same bytes.
#[derive(Clone)]
pub struct DeviceMemory {
    segments: Arc<[RwLock<Box<[u8]>>]>,
    segment_bytes: usize,
    device_bytes: usize,
}

impl DeviceMemory {
    /// `device_bytes` zero bytes in segments of `segment_bytes`, both at least 1.
    pub(crate) fn new(device_bytes: u64, segment_bytes: usize) -> Result<Self, HostDeviceError> {
        let out_of_memory = || HostDeviceError::OutOfMemory { device_bytes };
        let bytes = usize::try_from(device_bytes).map_err(|_| out_of_memory())?;
        // Only asked, not touched: a size that cannot be had becomes an error here, not an abort below.
        Vec::<u8>::new().try_reserve_exact(bytes).map_err(|_| out_of_memory())?;
        let mut segments = Vec::new();
        segments.try_reserve_exact(bytes.div_ceil(segment_bytes)).map_err(|_| out_of_memory())?;
        let mut left = bytes;
        while left > 0 {
            let len = left.min(segment_bytes);
            segments.push(RwLock::new(vec![0; len].into_boxed_slice()));
            left -= len;
        }
        Ok(Self { segments: segments.into(), segment_bytes, device_bytes: bytes })
    }

    /// Bytes there are.
    pub fn device_bytes(&self) -> u64 {
        self.device_bytes as u64
    }

    /// Fills `into` with the bytes from `offset` on, as they are now: without waiting for the compute stream or for
    /// transfers.
    ///
    /// # Errors
    /// [`DeviceAccessError`] if they reach beyond the memory.
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), DeviceAccessError> {
        for (segment, within, part) in self.pieces(offset, into.len())? {
            let bytes = self.segments[segment].read().unwrap_or_else(PoisonError::into_inner);
            into[part].copy_from_slice(&bytes[within]);
        }
        Ok(())
    }

    /// Replaces the bytes from `offset` on by those of `from`, now: without waiting for the compute stream or for
    /// transfers.
    ///
    /// # Errors
    /// [`DeviceAccessError`] if they reach beyond the memory.
    pub fn write(&self, offset: u64, from: &[u8]) -> Result<(), DeviceAccessError> {
        for (segment, within, part) in self.pieces(offset, from.len())? {
            let mut bytes = self.segments[segment].write().unwrap_or_else(PoisonError::into_inner);
            bytes[within].copy_from_slice(&from[part]);
        }
        Ok(())
    }

    /// Whether an access stays inside the memory.
    ///
    /// # Errors
    /// [`DeviceAccessError`] if it does not.
    pub(crate) fn check(&self, offset: u64, bytes: usize) -> Result<usize, DeviceAccessError> {
        let error = DeviceAccessError { offset, bytes, device_bytes: self.device_bytes() };
        let start = usize::try_from(offset).map_err(|_| error)?;
        match start.checked_add(bytes) {
            Some(end) if end <= self.device_bytes => Ok(start),
            _ => Err(error),
        }
    }

    /// Cuts an access at the borders of segments: the segment, the bytes in it, and those of the access.
    fn pieces(
        &self,
        offset: u64,
        bytes: usize,
    ) -> Result<impl Iterator<Item = (usize, Range<usize>, Range<usize>)> + use<>, DeviceAccessError> {
        let start = self.check(offset, bytes)?;
        let segment_bytes = self.segment_bytes;
        let mut done = 0;
        Ok(std::iter::from_fn(move || {
            let (segment, first) = ((start + done) / segment_bytes, (start + done) % segment_bytes);
            let len = (bytes - done).min(segment_bytes - first);
            let part = done..done + len;
            done += len;
            (len > 0).then_some((segment, first..first + len, part))
        }))
    }
}

impl std::fmt::Debug for DeviceMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DeviceMemory")
            .field("device_bytes", &self.device_bytes)
            .field("segment_bytes", &self.segment_bytes)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_access_across_segments_is_one_access() {
        for segment_bytes in 1..12 {
            let memory = DeviceMemory::new(10, segment_bytes).unwrap();
            memory.write(2, &[1, 2, 3, 4, 5, 6]).unwrap();
            let mut all = [9; 10];
            memory.read(0, &mut all).unwrap();
            assert_eq!(all, [0, 0, 1, 2, 3, 4, 5, 6, 0, 0], "segments of {segment_bytes} bytes");
            let mut some = [9; 3];
            memory.read(6, &mut some).unwrap();
            assert_eq!(some, [5, 6, 0]);
        }
    }

    #[test]
    fn an_access_beyond_the_end_touches_nothing() {
        let memory = DeviceMemory::new(10, 4).unwrap();
        let error = memory.write(8, &[1, 2, 3]).unwrap_err();
        assert_eq!(error, DeviceAccessError { offset: 8, bytes: 3, device_bytes: 10 });
        assert!(memory.read(u64::MAX, &mut [0; 2]).is_err());
        let mut all = [9; 10];
        memory.read(0, &mut all).unwrap();
        assert_eq!(all, [0; 10]);
        assert!(memory.read(10, &mut []).is_ok());
    }

    #[test]
    fn more_memory_than_there_is_is_an_error() {
        let error = DeviceMemory::new(u64::MAX, 1 << 20).unwrap_err();
        assert!(matches!(error, HostDeviceError::OutOfMemory { device_bytes: u64::MAX }), "{error}");
    }
}
