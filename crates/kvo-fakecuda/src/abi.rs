//! The driver's words: result codes, flags, and structs as C lays them out.

/// A result code of the driver, other than 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Code(
    /// The number.
    pub u32,
);

impl Code {
    /// An argument is out of range.
    pub const INVALID_VALUE: Self = Self(1);
    /// No memory is left.
    pub const OUT_OF_MEMORY: Self = Self(2);
    /// `cuInit` has not been called, or has failed.
    pub const NOT_INITIALIZED: Self = Self(3);
    /// The driver has no device.
    pub const NO_DEVICE: Self = Self(100);
    /// There is no such device.
    pub const INVALID_DEVICE: Self = Self(101);
    /// The image is no module.
    pub const INVALID_IMAGE: Self = Self(200);
    /// No context is bound to the thread, or it is none.
    pub const INVALID_CONTEXT: Self = Self(201);
    /// The PTX could not be read.
    pub const INVALID_PTX: Self = Self(218);
    /// The PTX is newer than the driver.
    pub const UNSUPPORTED_PTX_VERSION: Self = Self(222);
    /// The handle is no stream, event, module or function.
    pub const INVALID_HANDLE: Self = Self(400);
    /// Something is not in the state for the call.
    pub const ILLEGAL_STATE: Self = Self(401);
    /// The module has no such function.
    pub const NOT_FOUND: Self = Self(500);
    /// The work is not over yet.
    pub const NOT_READY: Self = Self(600);
    /// Sticky: a kernel or a copy touched what it may not.
    pub const ILLEGAL_ADDRESS: Self = Self(700);
    /// The launch needs more than there is; not sticky.
    pub const LAUNCH_OUT_OF_RESOURCES: Self = Self(701);
    /// Sticky: a kernel ran too long.
    pub const LAUNCH_TIMEOUT: Self = Self(702);
    /// Memory is registered already.
    pub const HOST_MEMORY_ALREADY_REGISTERED: Self = Self(712);
    /// Memory is not registered.
    pub const HOST_MEMORY_NOT_REGISTERED: Self = Self(713);
    /// Sticky: an access at an address that is no multiple of its size.
    pub const MISALIGNED_ADDRESS: Self = Self(716);
    /// Sticky: the launch failed.
    pub const LAUNCH_FAILED: Self = Self(719);
    /// The call is not allowed here, as from a host function.
    pub const NOT_PERMITTED: Self = Self(800);
    /// The driver or the device cannot do it.
    pub const NOT_SUPPORTED: Self = Self(801);
    /// Not while a stream is being captured.
    pub const STREAM_CAPTURE_UNSUPPORTED: Self = Self(900);
    /// The capture was spoilt by what went before.
    pub const STREAM_CAPTURE_INVALIDATED: Self = Self(901);
    /// The call would make one of two captures.
    pub const STREAM_CAPTURE_MERGE: Self = Self(902);
    /// The capture began on another stream.
    pub const STREAM_CAPTURE_UNMATCHED: Self = Self(903);
    /// A stream that joined the capture was not waited for.
    pub const STREAM_CAPTURE_UNJOINED: Self = Self(904);
    /// The call would tie the capture to what is outside of it.
    pub const STREAM_CAPTURE_ISOLATION: Self = Self(905);
    /// The event is part of a capture.
    pub const CAPTURED_EVENT: Self = Self(907);
    /// Sticky: nobody knows.
    pub const UNKNOWN: Self = Self(999);
}

/// What a call that has nothing to give comes back with.
pub(crate) type Done = Result<(), Code>;

/// The number of the newest interface it speaks, as `cuDriverGetVersion` says it: 13.0.
pub(crate) const NEWEST_VERSION: i32 = 13_000;

/// Flags of `cuMemHostRegister` and `cuMemHostAlloc`.
pub(crate) const HOST_PORTABLE: u32 = 1;
pub(crate) const HOST_READ_ONLY: u32 = 8;
pub(crate) const HOST_REGISTER_FLAGS: u32 = 0b1111;
pub(crate) const HOST_ALLOC_FLAGS: u32 = 0b111;

/// `CU_STREAM_NON_BLOCKING`: the stream pays no regard to the NULL stream.
pub(crate) const STREAM_NON_BLOCKING: u32 = 1;
/// Flags of `cuEventCreate`: blocking sync, no timing, interprocess.
pub(crate) const EVENT_DISABLE_TIMING: u32 = 2;
pub(crate) const EVENT_FLAGS: u32 = 0b111;

/// Handles that stand for streams of every context.
pub(crate) const LEGACY_STREAM: u64 = 1;
pub(crate) const PER_THREAD_STREAM: u64 = 2;

pub(crate) const MEMORY_HOST: u32 = 1;
pub(crate) const MEMORY_DEVICE: u32 = 2;
pub(crate) const MEMORY_UNIFIED: u32 = 4;

/// `CU_MEMCPY_SRC_ACCESS_ORDER_*`.
pub(crate) const SOURCE_IN_STREAM_ORDER: u32 = 1;
pub(crate) const SOURCE_ORDER_MAX: u32 = 3;

/// `CUDA_MEMCPY2D`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Copy2d {
    pub(crate) src_x_bytes: usize,
    pub(crate) src_y: usize,
    pub(crate) src_memory: u32,
    pub(crate) src_host: u64,
    pub(crate) src_device: u64,
    pub(crate) src_array: u64,
    pub(crate) src_pitch: usize,
    pub(crate) dst_x_bytes: usize,
    pub(crate) dst_y: usize,
    pub(crate) dst_memory: u32,
    pub(crate) dst_host: u64,
    pub(crate) dst_device: u64,
    pub(crate) dst_array: u64,
    pub(crate) dst_pitch: usize,
    pub(crate) width_bytes: usize,
    pub(crate) height: usize,
}

/// `CUmemLocation`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct MemoryLocation {
    pub(crate) kind: u32,
    pub(crate) id: i32,
}

/// `CUmemcpyAttributes`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct CopyAttributes {
    pub(crate) source_order: u32,
    pub(crate) source_hint: MemoryLocation,
    pub(crate) destination_hint: MemoryLocation,
    pub(crate) flags: u32,
}

#[cfg(kvo_fakecuda_armed)]
pub(crate) fn error_name(code: u32) -> &'static core::ffi::CStr {
    match code {
        0 => c"CUDA_SUCCESS",
        1 => c"CUDA_ERROR_INVALID_VALUE",
        2 => c"CUDA_ERROR_OUT_OF_MEMORY",
        3 => c"CUDA_ERROR_NOT_INITIALIZED",
        100 => c"CUDA_ERROR_NO_DEVICE",
        101 => c"CUDA_ERROR_INVALID_DEVICE",
        200 => c"CUDA_ERROR_INVALID_IMAGE",
        201 => c"CUDA_ERROR_INVALID_CONTEXT",
        218 => c"CUDA_ERROR_INVALID_PTX",
        222 => c"CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
        400 => c"CUDA_ERROR_INVALID_HANDLE",
        401 => c"CUDA_ERROR_ILLEGAL_STATE",
        500 => c"CUDA_ERROR_NOT_FOUND",
        600 => c"CUDA_ERROR_NOT_READY",
        700 => c"CUDA_ERROR_ILLEGAL_ADDRESS",
        701 => c"CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES",
        702 => c"CUDA_ERROR_LAUNCH_TIMEOUT",
        712 => c"CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
        713 => c"CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED",
        716 => c"CUDA_ERROR_MISALIGNED_ADDRESS",
        719 => c"CUDA_ERROR_LAUNCH_FAILED",
        800 => c"CUDA_ERROR_NOT_PERMITTED",
        801 => c"CUDA_ERROR_NOT_SUPPORTED",
        900 => c"CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
        901 => c"CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
        902 => c"CUDA_ERROR_STREAM_CAPTURE_MERGE",
        903 => c"CUDA_ERROR_STREAM_CAPTURE_UNMATCHED",
        904 => c"CUDA_ERROR_STREAM_CAPTURE_UNJOINED",
        905 => c"CUDA_ERROR_STREAM_CAPTURE_ISOLATION",
        907 => c"CUDA_ERROR_CAPTURED_EVENT",
        999 => c"CUDA_ERROR_UNKNOWN",
        _ => c"a code that the fake driver has no name for",
    }
}
