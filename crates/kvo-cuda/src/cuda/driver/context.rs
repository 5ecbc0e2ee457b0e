//! A device's primary context and what belongs to it. A context that broke is not called again: every call goes
//! through [`Context::call`], which knows.

use std::{
    ffi::{c_int, c_uint, c_void},
    ptr::{self, NonNull},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use cudarc::driver::sys::{
    CUDA_MEMCPY2D, CUcontext, CUdevice, CUevent, CUmemorytype, CUpointer_attribute, CUstream,
};
use kvo_core::{EventHandle, StreamHandle};

use super::{Driver, table::Table};
use crate::cuda::codes::DriverCode;

/// A stream that does not wait for the legacy default stream, and that which does not wait for it.
const STREAM_NON_BLOCKING: c_uint = 1;
/// No timing, and a thread that waits for it sleeps.
const EVENT_FLAGS: c_uint = 2 | 1;
/// Memory that every context may copy from and to, and kernels may address.
const REGISTER_FLAGS: c_uint = 1 | 2;

/// A call that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{call} failed with {code}")]
pub(crate) struct CallError {
    /// The driver's function.
    pub(crate) call: &'static str,
    /// What it returned, or what broke the context before.
    pub(crate) code: DriverCode,
}

/// A share of a device's primary context, which is the one that an engine uses too. Given back on drop, unless the
/// context broke.
#[derive(Debug)]
pub(crate) struct Context {
    driver: &'static Driver,
    device: CUdevice,
    raw: CUcontext,
    /// The code that broke it; 0 while it works.
    broken: AtomicU32,
}

// SAFETY: a context is the driver's, and the driver takes calls of one context from any thread.
unsafe impl Send for Context {}

// SAFETY: as for `Send`.
unsafe impl Sync for Context {}

impl Context {
    /// Takes a share of the primary context of the device with that ordinal, of a driver that was initialised.
    pub(crate) fn retain(driver: &'static Driver, ordinal: u32) -> Result<Arc<Self>, CallError> {
        let call = |call| move |code| CallError { call, code };
        let device = driver.device(ordinal).map_err(call("cuDeviceGet"))?;
        let mut raw = ptr::null_mut();
        // SAFETY: the driver writes one handle, during the call.
        let code = unsafe { (driver.table.retain)(&raw mut raw, device) };
        super::outcome(code).map_err(call("cuDevicePrimaryCtxRetain"))?;
        Ok(Arc::new(Self { driver, device, raw, broken: AtomicU32::new(0) }))
    }

    /// The code that broke it.
    pub(crate) fn broken(&self) -> Option<DriverCode> {
        let code = self.broken.load(Ordering::Acquire);
        (code != 0).then_some(DriverCode(code))
    }

    /// From now on it is not called any more. The first code stays.
    pub(crate) fn break_with(&self, call: &'static str, code: DriverCode) {
        if self.broken.compare_exchange(0, code.0, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            tracing::error!(device = self.device, call, %code, "the device's context is broken");
        }
    }

    /// Makes a call, unless the context is broken; takes note if that is what the call says.
    pub(super) fn call(&self, call: &'static str, make: impl FnOnce(&Table) -> u32) -> Result<(), CallError> {
        if let Some(code) = self.broken() {
            return Err(CallError { call, code });
        }
        let code = DriverCode(make(&self.driver.table));
        if code == DriverCode::SUCCESS {
            return Ok(());
        }
        if code.is_sticky() {
            self.break_with(call, code);
        }
        Err(CallError { call, code })
    }

    /// Makes it this thread's context for good.
    pub(crate) fn bind(&self) -> Result<(), CallError> {
        exchange_capture_mode(&self.driver.table, CAPTURE_MODE_RELAXED);
        self.make_current()
    }

    fn make_current(&self) -> Result<(), CallError> {
        // SAFETY: the handle is of a context that `self` has a share of.
        self.call("cuCtxSetCurrent", |table| unsafe { (table.set_current)(self.raw) })
    }

    /// Makes it this thread's context until the guard drops; for threads that are an engine's.
    pub(crate) fn enter(&self) -> Result<Current<'_>, CallError> {
        let mut before = ptr::null_mut();
        // SAFETY: the driver writes one handle, during the call.
        self.call("cuCtxGetCurrent", |table| unsafe { (table.current)(&raw mut before) })?;
        if before != self.raw {
            self.make_current()?;
        }
        let mode = exchange_capture_mode(&self.driver.table, CAPTURE_MODE_RELAXED);
        Ok(Current { context: self, before, mode })
    }

    /// The lowest priority of a stream, which is the greatest number, and the highest.
    pub(crate) fn priorities(&self) -> Result<(c_int, c_int), CallError> {
        let (mut least, mut greatest) = (0, 0);
        // SAFETY: the driver writes two ints, during the call.
        self.call("cuCtxGetStreamPriorityRange", |table| unsafe {
            (table.priority_range)(&raw mut least, &raw mut greatest)
        })?;
        Ok((least, greatest))
    }

    /// A new stream. The context is current.
    pub(crate) fn stream(self: &Arc<Self>, priority: c_int) -> Result<Stream, CallError> {
        let mut raw = ptr::null_mut();
        // SAFETY: the driver writes one handle, during the call.
        self.call("cuStreamCreateWithPriority", |table| unsafe {
            (table.stream_create)(&raw mut raw, STREAM_NON_BLOCKING, priority)
        })?;
        Ok(Stream { context: Arc::clone(self), raw })
    }

    /// A new event, which has passed. The context is current.
    pub(crate) fn event(self: &Arc<Self>) -> Result<Event, CallError> {
        let mut raw = ptr::null_mut();
        // SAFETY: the driver writes one handle, during the call.
        self.call("cuEventCreate", |table| unsafe { (table.event_create)(&raw mut raw, EVENT_FLAGS) })?;
        Ok(Event { context: Arc::clone(self), raw })
    }

    /// Records `event` behind what is on an engine's stream now. The context is current. A stream that is being captured
    /// is refused: the event would become part of the graph, and never pass.
    pub(crate) fn record_on(&self, event: &Event, stream: StreamHandle) -> Result<(), CallError> {
        self.check_not_capturing("cuEventRecord", stream)?;
        // SAFETY: `event` owns its handle, which is destroyed when it drops and not before; the stream is not destroyed
        // during the call, by the contract of `StreamHandle::from_raw`.
        self.call("cuEventRecord", |table| unsafe { (table.event_record)(event.raw, stream_of(stream)) })
    }

    /// Refuses `for_call` for a stream that is being captured.
    fn check_not_capturing(&self, for_call: &'static str, stream: StreamHandle) -> Result<(), CallError> {
        let refused = CallError { call: for_call, code: DriverCode(CAPTURE_UNSUPPORTED) };
        if self.is_capturing(stream_of(stream))? { Err(refused) } else { Ok(()) }
    }

    /// Whether a stream is part of a capture, also of one that was spoilt.
    fn is_capturing(&self, stream: CUstream) -> Result<bool, CallError> {
        let mut status: c_int = 0;
        self.call("cuStreamIsCapturing", |table| match table.is_capturing {
            // SAFETY: the stream is kvo's, whose owner has called, or is not destroyed during the call by the contract of
            // `StreamHandle::from_raw`; the driver writes one int, during the call.
            Some(call) => unsafe { call(stream, &raw mut status) },
            None => 0,
        })?;
        Ok(status != 0)
    }

    /// Makes an engine's stream wait for what `event` was last recorded behind. The context is current. A stream that is
    /// being captured is refused: the wait would spoil the capture.
    pub(crate) fn order_after(&self, stream: StreamHandle, event: &Event) -> Result<(), CallError> {
        self.check_not_capturing("cuStreamWaitEvent", stream)?;
        // SAFETY: `event` owns its handle, which is destroyed when it drops and not before; the stream is not destroyed
        // during the call, by the contract of `StreamHandle::from_raw`.
        self.call("cuStreamWaitEvent", |table| unsafe {
            (table.stream_wait)(stream_of(stream), event.raw, 0)
        })
    }

    /// What an answer says of whether the device has got somewhere: yes, not yet, or an error, which breaks the context.
    fn is_there(&self, answer: Result<(), CallError>) -> Result<bool, CallError> {
        match answer {
            Ok(()) => Ok(true),
            Err(error) if error.code == DriverCode::NOT_READY => Ok(false),
            // Of an engine's graph that is being captured, and not of the work that was asked for.
            Err(error) if CAPTURE_CODES.contains(&error.code.0) => Ok(false),
            Err(error) => {
                self.break_with(error.call, error.code);
                Err(error)
            }
        }
    }

    /// Registers host memory for copies of every context, and pins it.
    ///
    /// # Safety
    /// The memory stays mapped until [`unregister`](Self::unregister) has returned, or the process ends.
    pub(crate) unsafe fn register(&self, start: NonNull<u8>, bytes: usize) -> Result<(), CallError> {
        // SAFETY: the caller keeps the memory mapped for as long as it is registered.
        self.call("cuMemHostRegister", |table| unsafe {
            (table.host_register)(start.as_ptr().cast(), bytes, REGISTER_FLAGS)
        })
    }

    /// Ends the registration that begins at `start`.
    ///
    /// # Safety
    /// No copy that uses the memory is on the device's queue.
    pub(crate) unsafe fn unregister(&self, start: NonNull<u8>) -> Result<(), CallError> {
        // SAFETY: the caller says that nothing uses the registration.
        self.call("cuMemHostUnregister", |table| unsafe { (table.host_unregister)(start.as_ptr().cast()) })
    }

    /// The address by which the device knows registered host memory. The context is current.
    pub(crate) fn device_pointer(&self, start: NonNull<u8>) -> Result<u64, CallError> {
        let mut address = 0;
        self.call("cuMemHostGetDevicePointer", |table| match table.host_device_pointer {
            // SAFETY: the driver writes one address, during the call, and only looks the other one up.
            Some(call) => unsafe { call(&raw mut address, start.as_ptr().cast(), 0) },
            None => MISSING,
        })?;
        Ok(address)
    }

    /// Memory of the device. The context is current.
    pub(crate) fn allocate(&self, bytes: usize) -> Result<u64, CallError> {
        let mut address = 0;
        self.call("cuMemAlloc", |table| match table.memory_allocate {
            // SAFETY: the driver writes one address, during the call.
            Some(call) => unsafe { call(&raw mut address, bytes) },
            None => MISSING,
        })?;
        Ok(address)
    }

    /// Frees memory of [`allocate`](Self::allocate).
    ///
    /// # Safety
    /// Called once for an address, when no copy uses the memory any more.
    pub(crate) unsafe fn free(&self, address: u64) -> Result<(), CallError> {
        self.call("cuMemFree", |table| match table.memory_free {
            // SAFETY: the caller says that nothing uses it.
            Some(call) => unsafe { call(address) },
            None => MISSING,
        })
    }

    /// Start and length of the allocation that a device address is in. The context is current.
    pub(crate) fn allocation_of(&self, address: u64) -> Result<(u64, u64), CallError> {
        let (mut start, mut bytes) = (0, 0_usize);
        self.call("cuMemGetAddressRange", |table| match table.address_range {
            // SAFETY: the driver writes an address and a size, during the call, and only looks `address` up.
            Some(call) => unsafe { call(&raw mut start, &raw mut bytes, address) },
            None => MISSING,
        })?;
        Ok((start, bytes as u64))
    }

    /// The ordinal of the device in whose memory an address is. The context is current.
    pub(crate) fn ordinal_of(&self, address: u64) -> Result<u32, CallError> {
        let mut ordinal: c_int = 0;
        let attribute = CUpointer_attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL;
        self.call("cuPointerGetAttribute", |table| match table.pointer_attribute {
            // SAFETY: the attribute is an int; the driver writes it during the call, and only looks `address` up.
            Some(call) => unsafe { call((&raw mut ordinal).cast(), attribute, address) },
            None => MISSING,
        })?;
        u32::try_from(ordinal).map_err(|_| CallError { call: "cuPointerGetAttribute", code: DriverCode(1) })
    }

    /// Puts a copy from the host to the device on `stream`.
    ///
    /// # Safety
    /// Until the stream has passed the copy: `host` is valid for reads of `bytes` bytes that nobody writes, `device`
    /// for writes of that many in the device's memory, which nobody else touches.
    pub(crate) unsafe fn load(
        &self,
        device: u64,
        host: *const u8,
        bytes: usize,
        stream: &Stream,
    ) -> Result<(), CallError> {
        // SAFETY: the caller keeps both memories as they must be until the stream has passed the copy.
        self.call("cuMemcpyHtoDAsync", |table| unsafe {
            (table.copy_to_device)(device, host.cast(), bytes, stream.raw)
        })
    }

    /// Puts a copy from the device to the host on `stream`.
    ///
    /// # Safety
    /// Until the stream has passed the copy: `host` is valid for writes of `bytes` bytes that nobody else touches,
    /// `device` for reads of that many in the device's memory, which nobody writes.
    pub(crate) unsafe fn store(
        &self,
        host: *mut u8,
        device: u64,
        bytes: usize,
        stream: &Stream,
    ) -> Result<(), CallError> {
        // SAFETY: the caller keeps both memories as they must be until the stream has passed the copy.
        self.call("cuMemcpyDtoHAsync", |table| unsafe {
            (table.copy_to_host)(host.cast(), device, bytes, stream.raw)
        })
    }

    /// Puts a copy of rows on `stream`: from the host to the device, or back.
    ///
    /// # Safety
    /// As for [`load`](Self::load) or [`store`](Self::store), for each row.
    pub(crate) unsafe fn rows(&self, rows: &Rows, stream: &Stream) -> Result<(), CallError> {
        let copy = rows.copy();
        self.call("cuMemcpy2DAsync", |table| match table.copy_2d {
            // SAFETY: the driver reads the description during the call, the memories are as the caller says.
            Some(call) => unsafe { call(&raw const copy, stream.raw) },
            None => MISSING,
        })
    }

    /// Whether the driver has copies of rows.
    pub(crate) fn has_rows(&self) -> bool {
        self.driver.table.copy_2d.is_some()
    }

    pub(super) fn calls(&self) -> &Table {
        &self.driver.table
    }

    /// As `call`, with the handle of one of its streams.
    pub(super) fn call_on(
        &self,
        call: &'static str,
        stream: &Stream,
        make: impl FnOnce(&Table, CUstream) -> u32,
    ) -> Result<(), CallError> {
        self.call(call, |table| make(table, stream.raw))
    }
}

/// In the driver's words: not while the stream is being captured.
const CAPTURE_UNSUPPORTED: u32 = 900;

/// What is said of calls that a capture forbids: unsupported, invalidated, implicit.
const CAPTURE_CODES: [u32; 3] = [CAPTURE_UNSUPPORTED, 901, 906];

/// The mode of a thread whose calls do not spoil captures of others.
const CAPTURE_MODE_RELAXED: c_int = 2;

/// What is said of a function that the driver lacks: not supported.
pub(super) const MISSING: u32 = 801;

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: the share is given back once. Streams and events own a share of `self`, so they are gone.
        let released =
            self.call("cuDevicePrimaryCtxRelease", |table| unsafe { (table.release)(self.device) });
        if let Err(error) = released {
            tracing::debug!(%error, "the primary context was not given back");
        }
    }
}

/// A context that is current on this thread; the one before comes back on drop.
#[derive(Debug)]
pub(crate) struct Current<'a> {
    context: &'a Context,
    before: CUcontext,
    /// The thread's way with captures, which comes back too.
    mode: c_int,
}

/// Sets how calls of this thread get on with captures of graphs, also on other threads; returns how they did. In the
/// relaxed mode, which is kvo's, they do not spoil them.
fn exchange_capture_mode(table: &Table, mut mode: c_int) -> c_int {
    if let Some(call) = table.exchange_capture_mode {
        // SAFETY: the driver reads and writes one int, during the call; the mode is this thread's alone.
        let code = unsafe { call(&raw mut mode) };
        if code != 0 {
            tracing::debug!(code, "the capture mode stays as it was");
        }
    }
    mode
}

impl Drop for Current<'_> {
    fn drop(&mut self) {
        exchange_capture_mode(&self.context.driver.table, self.mode);
        if self.before == self.context.raw {
            return;
        }
        // Also where the context is broken: this is of the thread, and the one before may be another device's.
        // SAFETY: it was current on this thread when the guard was made, and is its owner's business.
        let code = unsafe { (self.context.driver.table.set_current)(self.before) };
        if code != 0 {
            tracing::warn!(code, "an engine's thread did not get its context back");
        }
    }
}

/// A stream of kvo's own. Dropped, it is destroyed as soon as it has done what is on it.
#[derive(Debug)]
pub(crate) struct Stream {
    context: Arc<Context>,
    raw: CUstream,
}

/// An event of kvo's own.
#[derive(Debug)]
pub(crate) struct Event {
    context: Arc<Context>,
    raw: CUevent,
}

// SAFETY: the handle is the driver's, which documents that its calls may come from any thread; it is destroyed when this
// value drops, on whichever thread that is, and its context lives as long.
unsafe impl Send for Stream {}

// SAFETY: as for `Stream`, whose handle is destroyed in the same way.
unsafe impl Send for Event {}

// SAFETY: as for `Send`: calls that meet are put in an order by the driver.
unsafe impl Sync for Event {}

// SAFETY: as for `Send`: calls that meet are put in an order by the driver.
unsafe impl Sync for Stream {}

impl Stream {
    /// Whether the device has done all that is on it. Any other answer than yes and not yet breaks the context.
    pub(crate) fn has_ended(&self) -> Result<bool, CallError> {
        // SAFETY: `self` owns the stream, which is destroyed when it drops and not before.
        let asked = self.context.call("cuStreamQuery", |table| unsafe { (table.stream_query)(self.raw) });
        self.context.is_there(asked)
    }

    /// Whether it is part of a capture.
    pub(crate) fn is_capturing(&self) -> Result<bool, CallError> {
        self.context.is_capturing(self.raw)
    }

    /// Is never destroyed.
    pub(crate) fn leak(&mut self) {
        self.raw = ptr::null_mut();
    }

    /// Makes what is put on it from now on wait for what an event of kvo's was last recorded behind.
    pub(crate) fn wait_own(&self, event: &Event) -> Result<(), CallError> {
        // SAFETY: `self` and `event` own their handles, which are destroyed when they drop and not before; the driver
        // looks at the event during the call only.
        self.context.call("cuStreamWaitEvent", |table| unsafe { (table.stream_wait)(self.raw, event.raw, 0) })
    }

    /// Makes what is put on it from now on wait for what an engine's event was last recorded behind. The engine may
    /// record the event again afterwards: that changes nothing.
    pub(crate) fn wait_for(&self, event: EventHandle) -> Result<(), CallError> {
        // SAFETY: `self` owns the stream, which is destroyed when it drops and not before; the event is not destroyed
        // during the call, by the contract of `EventHandle::from_raw`.
        self.context.call("cuStreamWaitEvent", |table| unsafe {
            (table.stream_wait)(self.raw, ptr::with_exposed_provenance_mut(address(event.raw())), 0)
        })
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.raw.is_null() {
            return;
        }
        // SAFETY: `self` created it and destroys it here, once, and nobody else has the handle; the driver keeps what is on
        // the stream until the device has done it. A broken context is not called.
        let end = self.context.call("cuStreamDestroy", |table| unsafe { (table.stream_destroy)(self.raw) });
        if let Err(error) = end {
            tracing::debug!(%error, "a stream was left");
        }
    }
}

impl Event {
    /// Records it behind what is on `stream` now.
    pub(crate) fn record(&self, stream: &Stream) -> Result<(), CallError> {
        // SAFETY: `self` and `stream` own their handles, which are destroyed when they drop and not before; an event that
        // is destroyed before the stream has passed it is given back by the driver then.
        self.context.call("cuEventRecord", |table| unsafe { (table.event_record)(self.raw, stream.raw) })
    }

    /// Whether the device has passed it. Any other answer than yes and not yet breaks the context: an error here is
    /// one of the work before the event, and to ask again would be to ask for ever.
    pub(crate) fn has_passed(&self) -> Result<bool, CallError> {
        // SAFETY: `self` owns the event, which is destroyed when it drops and not before.
        let asked = self.context.call("cuEventQuery", |table| unsafe { (table.event_query)(self.raw) });
        self.context.is_there(asked)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: `self` created it and destroys it here, once, and nobody else has the handle; the driver gives it back
        // when the device has passed it. A broken context is not called.
        let end = self.context.call("cuEventDestroy", |table| unsafe { (table.event_destroy)(self.raw) });
        if let Err(error) = end {
            tracing::debug!(%error, "an event was left");
        }
    }
}

/// Rows of bytes at a constant distance on both sides.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rows {
    /// Whether they go to the device.
    pub(crate) is_load: bool,
    /// The first row on the host; the device's side is not written through it for a load.
    pub(crate) host: *mut u8,
    /// Bytes from one row on the host to the next.
    pub(crate) host_pitch: usize,
    /// The first row on the device.
    pub(crate) device: u64,
    /// Bytes from one row on the device to the next.
    pub(crate) device_pitch: usize,
    /// Bytes of a row.
    pub(crate) width: usize,
    /// Rows.
    pub(crate) count: usize,
}

impl Rows {
    fn copy(&self) -> CUDA_MEMCPY2D {
        let mut copy = CUDA_MEMCPY2D {
            srcXInBytes: 0,
            srcY: 0,
            srcMemoryType: CUmemorytype::CU_MEMORYTYPE_HOST,
            srcHost: ptr::null(),
            srcDevice: 0,
            srcArray: ptr::null_mut(),
            srcPitch: self.host_pitch,
            dstXInBytes: 0,
            dstY: 0,
            dstMemoryType: CUmemorytype::CU_MEMORYTYPE_DEVICE,
            dstHost: ptr::null_mut(),
            dstDevice: 0,
            dstArray: ptr::null_mut(),
            dstPitch: self.device_pitch,
            WidthInBytes: self.width,
            Height: self.count,
        };
        if self.is_load {
            copy.srcHost = self.host.cast::<c_void>();
            copy.dstDevice = self.device;
        } else {
            (copy.srcMemoryType, copy.dstMemoryType) = (copy.dstMemoryType, copy.srcMemoryType);
            (copy.srcPitch, copy.dstPitch) = (copy.dstPitch, copy.srcPitch);
            copy.srcDevice = self.device;
            copy.dstHost = self.host.cast();
        }
        copy
    }
}

fn stream_of(stream: StreamHandle) -> CUstream {
    ptr::with_exposed_provenance_mut(address(stream.raw()))
}

/// A handle of the driver's as the address that it is: both have 64 bits here.
#[expect(clippy::cast_possible_truncation, reason = "the assertion says that it does not")]
fn address(raw: u64) -> usize {
    const { assert!(size_of::<usize>() == size_of::<u64>()) };
    raw as usize
}
