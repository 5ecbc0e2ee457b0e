//! The driver's calls that an engine makes, by cudarc: one function each, with codes as numbers.
//!
//! cudarc panics where there is no driver. Nothing here is called before [`probe`](kvo_cuda::probe) has found a device.

use std::{
    any::Any,
    ffi::{CStr, c_int, c_void},
    panic::{AssertUnwindSafe, catch_unwind},
    slice,
};

use cudarc::driver::{DriverError, result, sys};
use kvo_core::Direction;
use kvo_cuda::DriverCode;

use crate::bed::POISON;

/// A call of the engine's failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// There is no such device; in the probe's words.
    #[error("no device {ordinal}: {reason}")]
    Unavailable {
        /// The device.
        ordinal: u32,
        /// Why.
        reason: String,
    },
    /// The driver refused a call.
    #[error("{call} failed with {code}")]
    Driver {
        /// The driver's function.
        call: &'static str,
        /// What it returned.
        code: DriverCode,
    },
    /// The bytes are not in one allocation of this engine.
    #[error("{bytes} bytes at {address:#x} are not in one allocation of the engine")]
    NotAllocated {
        /// The first.
        address: u64,
        /// How many.
        bytes: u64,
    },
    /// A slot could not be claimed, or is shorter than that.
    #[error("{bytes} bytes of slot {slot} cannot be lent to the engine")]
    NotLent {
        /// The slot.
        slot: u32,
        /// How many bytes of it.
        bytes: u64,
    },
}

pub(super) type Stream = sys::CUstream;
pub(super) type Event = sys::CUevent;
pub(super) type Function = sys::CUfunction;
pub(super) type Module = sys::CUmodule;

// SAFETY: handles of the driver are good on any thread, every call of an engine's makes its context that thread's first,
// and one thread at a time has the engine.
unsafe impl Send for super::CudaEngine {}

fn outcome<T>(call: &'static str, result: Result<T, DriverError>) -> Result<T, EngineError> {
    result.map_err(|DriverError(code)| EngineError::Driver { call, code: DriverCode(code as u32) })
}

/// A share of a device's primary context.
#[derive(Debug)]
pub(super) struct Context {
    device: sys::CUdevice,
    context: sys::CUcontext,
}

impl Context {
    pub(super) fn retain(ordinal: u32) -> Result<Self, EngineError> {
        outcome("cuInit", result::init())?;
        let number = c_int::try_from(ordinal).unwrap_or(c_int::MAX);
        let device = outcome("cuDeviceGet", result::device::get(number))?;
        // SAFETY: the driver gave this device; the share is given back once, when this value drops.
        let context = outcome("cuDevicePrimaryCtxRetain", unsafe { result::primary_ctx::retain(device) })?;
        Ok(Self { device, context })
    }

    /// Makes it the calling thread's.
    pub(super) fn enter(&self) -> Result<(), EngineError> {
        // SAFETY: the context is retained for as long as this value lives.
        outcome("cuCtxSetCurrent", unsafe { result::ctx::set_current(self.context) })
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: it was retained once by this value, whose owner has destroyed what it made in it.
        let _ = unsafe { result::primary_ctx::release(self.device) };
    }
}

/// Allocates poisoned memory in the current context.
pub(super) fn allocate(bytes: u64) -> Result<u64, EngineError> {
    let length = usize::try_from(bytes).unwrap_or(usize::MAX);
    // SAFETY: nobody reads the memory as anything but bytes; the engine has it until it frees it, once.
    let address = outcome("cuMemAlloc", unsafe { result::malloc_sync(length) })?;
    // SAFETY: the memory was just allocated with this length.
    outcome("cuMemsetD8", unsafe { result::memset_d8_sync(address, POISON, length) })?;
    Ok(address)
}

/// Frees what [`allocate`] gave, once.
pub(super) fn free(address: u64) -> Result<(), EngineError> {
    // SAFETY: the engine forgets an allocation when it frees it, so it is freed once.
    outcome("cuMemFree", unsafe { result::free_sync(address) })
}

/// Of `bytes`, which are in one allocation.
pub(super) fn upload(address: u64, bytes: &[u8]) -> Result<(), EngineError> {
    // SAFETY: the engine has checked that the bytes are its own, and the call is over when it returns.
    outcome("cuMemcpyHtoD", unsafe { result::memcpy_htod_sync(address, bytes) })
}

/// As [`upload`], the other way.
pub(super) fn download(address: u64, bytes: &mut [u8]) -> Result<(), EngineError> {
    // SAFETY: as for `upload`: the bytes are the engine's own, and the call is over when it returns.
    outcome("cuMemcpyDtoH", unsafe { result::memcpy_dtoh_sync(bytes, address) })
}

/// Host memory that the driver has pinned.
#[derive(Debug)]
pub(super) struct Pinned {
    start: *mut u8,
    bytes: usize,
}

impl Pinned {
    fn part(&mut self, at: usize, length: usize) -> &mut [u8] {
        assert!(at <= self.bytes && length <= self.bytes - at, "{length} bytes at {at} of {}", self.bytes);
        // SAFETY: the part is within the memory, which is zeroed, and this value's alone until it is freed.
        unsafe { slice::from_raw_parts_mut(self.start.wrapping_add(at), length) }
    }
}

/// Allocates zeroed host memory in the current context.
pub(super) fn pin(bytes: usize) -> Result<Pinned, EngineError> {
    // SAFETY: the memory is freed by `unpin` alone.
    let start = outcome("cuMemHostAlloc", unsafe { result::malloc_host(bytes, 0) })?.cast::<u8>();
    // SAFETY: the memory was just allocated with this length.
    unsafe { start.write_bytes(0, bytes) };
    Ok(Pinned { start, bytes })
}

/// Frees what [`pin`] gave, when no copy from it is under way any more.
pub(super) fn unpin(Pinned { start, .. }: Pinned) {
    // SAFETY: `pin` gave it, and the value is used up.
    let _ = unsafe { result::free_host(start.cast()) };
}

/// Puts a copy to one allocation on a stream. It is read from `pinned`, where it takes as many bytes as there are `at`
/// that place: nobody writes there until the copy is over.
pub(super) fn upload_on(
    stream: Stream,
    address: u64,
    pinned: &mut Pinned,
    at: usize,
    bytes: &[u8],
) -> Result<(), EngineError> {
    let part = pinned.part(at, bytes.len());
    part.copy_from_slice(bytes);
    // SAFETY: the engine has checked that the bytes on the device are its own; it keeps the pinned ones as they are, and
    // frees them, when the stream was waited for.
    outcome("cuMemcpyHtoDAsync", unsafe { result::memcpy_htod_async(address, part, stream) })
}

/// Puts a copy between `bytes` bytes of a claimed slot, from `host` on, and as many of one allocation on a stream.
pub(super) fn copy(
    direction: Direction,
    address: u64,
    host: *mut u8,
    bytes: usize,
    stream: Stream,
) -> Result<(), EngineError> {
    let host = host.cast::<c_void>();
    match direction {
        Direction::Load => {
            // SAFETY: both sides are as long as the engine has checked, and it keeps its claim of the slot until all
            // on its streams is over.
            let put = unsafe { sys::cuMemcpyHtoDAsync_v2(address, host, bytes, stream) };
            outcome("cuMemcpyHtoDAsync", put.result())
        }
        Direction::Store => {
            // SAFETY: as above; the claim is for writing.
            let put = unsafe { sys::cuMemcpyDtoHAsync_v2(host, address, bytes, stream) };
            outcome("cuMemcpyDtoHAsync", put.result())
        }
    }
}

/// A stream that is not ordered against the default one.
pub(super) fn create_stream() -> Result<Stream, EngineError> {
    outcome("cuStreamCreate", result::stream::create(result::stream::StreamKind::NonBlocking))
}

pub(super) fn destroy_stream(stream: Stream) {
    // SAFETY: the engine destroys each stream that it made once, at its end.
    let _ = unsafe { result::stream::destroy(stream) };
}

pub(super) fn synchronize(stream: Stream) -> Result<(), EngineError> {
    // SAFETY: the engine's streams live as long as it.
    outcome("cuStreamSynchronize", unsafe { result::stream::synchronize(stream) })
}

pub(super) fn create_event() -> Result<Event, EngineError> {
    outcome("cuEventCreate", result::event::create(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING))
}

pub(super) fn destroy_event(event: Event) {
    // SAFETY: the engine destroys each event that it made once, at its end.
    let _ = unsafe { result::event::destroy(event) };
}

pub(super) fn record(event: Event, stream: Stream) -> Result<(), EngineError> {
    // SAFETY: both are the engine's, and live as long as it.
    outcome("cuEventRecord", unsafe { result::event::record(event, stream) })
}

pub(super) fn wait_for(stream: Stream, event: Event) -> Result<(), EngineError> {
    let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
    // SAFETY: as for `record`.
    outcome("cuStreamWaitEvent", unsafe { result::stream::wait_event(stream, event, flags) })
}

/// A module in the current context, and its kernels in the order of their names.
pub(super) fn load<const N: usize>(
    ptx: &CStr,
    names: [&CStr; N],
) -> Result<(Module, [Function; N]), EngineError> {
    // SAFETY: PTX is a text that ends with a zero, which the driver reads during the call.
    let module = outcome("cuModuleLoadData", unsafe { result::module::load_data(ptx.as_ptr().cast()) })?;
    let mut functions = [std::ptr::null_mut(); N];
    for (function, name) in functions.iter_mut().zip(names) {
        // SAFETY: the module was just loaded, and is not unloaded before its kernels are over.
        let found = unsafe { result::module::get_function(module, name.to_owned()) };
        *function = outcome("cuModuleGetFunction", found).inspect_err(|_| unload(module))?;
    }
    Ok((module, functions))
}

/// Of a module whose kernels are over.
pub(super) fn unload(module: Module) {
    // SAFETY: the engine unloads its module once, at its end, when nothing is on its streams.
    let _ = unsafe { result::module::unload(module) };
}

/// Puts a kernel whose parameters are all of 64 bits on a stream.
pub(super) fn launch<const N: usize>(
    function: Function,
    [ctas, threads]: [u32; 2],
    stream: Stream,
    mut parameters: [u64; N],
) -> Result<(), EngineError> {
    let mut pointers = parameters.each_mut().map(|parameter| (&raw mut *parameter).cast::<c_void>());
    // SAFETY: the kernel takes N words, which the driver copies during the call. What they make it touch is the engine's.
    let launched =
        unsafe { result::launch_kernel(function, (ctas, 1, 1), (threads, 1, 1), 0, stream, &mut pointers) };
    outcome("cuLaunchKernel", launched)
}

/// Puts a function on a stream, to run on a thread of the driver's. It must not call the driver. On a device that is
/// broken it never runs.
pub(super) fn call(stream: Stream, function: impl FnOnce() + Send + 'static) -> Result<(), EngineError> {
    let function: Box<Box<dyn FnOnce() + Send>> = Box::new(Box::new(function));
    let data = Box::into_raw(function).cast::<c_void>();
    // SAFETY: the stream is the engine's, and the driver hands `data` to `run` at most once.
    let put = outcome("cuLaunchHostFunc", unsafe { result::stream::launch_host_function(stream, run, data) });
    if put.is_err() {
        // SAFETY: the driver did not take it, so it is ours again.
        drop(unsafe { Box::from_raw(data.cast::<Box<dyn FnOnce() + Send>>()) });
    }
    put
}

unsafe extern "C" fn run(data: *mut c_void) {
    // SAFETY: `call` made it of a box of this type, and the driver runs a function once.
    let function = unsafe { Box::from_raw(data.cast::<Box<dyn FnOnce() + Send>>()) };
    let panicked: Result<(), Box<dyn Any + Send>> = catch_unwind(AssertUnwindSafe(function));
    drop(panicked);
}
