//! The driver's functions as cudarc has them, with codes as numbers.
//!
//! Handles and addresses come from these functions and go back into them; buffers are borrowed for the call, or live as
//! long as the test. The driver checks all of them, and this one is ours.

use std::ffi::{CString, c_int, c_void};

use cudarc::driver::sys::{self, CUdeviceptr, CUevent, CUresult, CUstream};

pub type Outcome<T = ()> = Result<T, u32>;

fn outcome(code: CUresult) -> Outcome {
    match code as u32 {
        0 => Ok(()),
        code => Err(code),
    }
}

/// A stream's handle, as a number.
pub type Stream = u64;

fn stream_of(stream: Stream) -> CUstream {
    stream as CUstream
}

fn event_of(event: u64) -> CUevent {
    event as CUevent
}

/// Wraps functions that take numbers and give nothing.
macro_rules! plain {
    ($($name:ident($($argument:ident: $type:ty),*) = $function:ident($($given:expr),*);)*) => {$(
        pub fn $name($($argument: $type),*) -> Outcome {
            // SAFETY: see the head of this file.
            outcome(unsafe { sys::$function($($given),*) })
        }
    )*};
}

/// Wraps functions that give a value by their first argument.
macro_rules! giving {
    ($($name:ident($($argument:ident: $type:ty),*) -> $result:ty = $function:ident($($given:expr),*);)*) => {$(
        pub fn $name($($argument: $type),*) -> Outcome<$result> {
            let mut value = std::mem::MaybeUninit::<_>::zeroed();
            // SAFETY: see the head of this file.
            outcome(unsafe { sys::$function(value.as_mut_ptr() $(, $given)*) })?;
            // SAFETY: the function has succeeded, so it has written its result.
            Ok(unsafe { value.assume_init() } as $result)
        }
    )*};
}

plain! {
    init() = cuInit(0);
    stream_destroy(stream: Stream) = cuStreamDestroy_v2(stream_of(stream));
    stream_synchronize(stream: Stream) = cuStreamSynchronize(stream_of(stream));
    stream_query(stream: Stream) = cuStreamQuery(stream_of(stream));
    stream_wait(stream: Stream, event: u64) = cuStreamWaitEvent(stream_of(stream), event_of(event), 0);
    event_destroy(event: u64) = cuEventDestroy_v2(event_of(event));
    event_record(event: u64, stream: Stream) = cuEventRecord(event_of(event), stream_of(stream));
    event_query(event: u64) = cuEventQuery(event_of(event));
    event_synchronize(event: u64) = cuEventSynchronize(event_of(event));
    free(address: u64) = cuMemFree_v2(address);
    register(start: u64, bytes: usize, flags: u32) = cuMemHostRegister_v2(start as *mut c_void, bytes, flags);
    unregister(start: u64) = cuMemHostUnregister(start as *mut c_void);
    to_device(to: u64, from: u64, bytes: usize, stream: Stream) =
        cuMemcpyHtoDAsync_v2(to, from as *const c_void, bytes, stream_of(stream));
    to_host(to: u64, from: u64, bytes: usize, stream: Stream) =
        cuMemcpyDtoHAsync_v2(to as *mut c_void, from, bytes, stream_of(stream));
    on_device(to: u64, from: u64, bytes: usize, stream: Stream) =
        cuMemcpyDtoDAsync_v2(to, from, bytes, stream_of(stream));
    copy(to: u64, from: u64, bytes: usize, stream: Stream) = cuMemcpyAsync(to, from, bytes, stream_of(stream));
    copy_2d(copy: &sys::CUDA_MEMCPY2D, stream: Stream) = cuMemcpy2DAsync_v2(copy, stream_of(stream));
    fill(address: u64, value: u8, count: usize, stream: Stream) =
        cuMemsetD8Async(address, value, count, stream_of(stream));
    set_current(context: u64) = cuCtxSetCurrent(context as sys::CUcontext);
    release(device: c_int) = cuDevicePrimaryCtxRelease_v2(device);
    synchronize() = cuCtxSynchronize();
    unload(module: u64) = cuModuleUnload(module as sys::CUmodule);
}

giving! {
    driver_version() -> i32 = cuDriverGetVersion();
    device_count() -> i32 = cuDeviceGetCount();
    retain(device: c_int) -> u64 = cuDevicePrimaryCtxRetain(device);
    stream_create(flags: u32, priority: c_int) -> u64 = cuStreamCreateWithPriority(flags, priority);
    event_create(flags: u32) -> u64 = cuEventCreate(flags);
    alloc(bytes: usize) -> CUdeviceptr = cuMemAlloc_v2(bytes);
    device_pointer(host: u64) -> CUdeviceptr = cuMemHostGetDevicePointer_v2(host as *mut c_void, 0);
    elapsed_ms(from: u64, to: u64) -> f32 = cuEventElapsedTime_v2(event_of(from), event_of(to));
}

pub fn pci_bus_id(device: c_int) -> Outcome<String> {
    let mut id = [0_u8; 32];
    // SAFETY: see the head of this file; the room is said.
    outcome(unsafe { sys::cuDeviceGetPCIBusId(id.as_mut_ptr().cast(), 31, device) })?;
    let end = id.iter().position(|byte| *byte == 0).unwrap_or(id.len());
    Ok(String::from_utf8_lossy(&id[..end]).into_owned())
}

/// The attributes of an address: memory type, device, start and length of its range.
pub fn attributes(address: u64) -> Outcome<(u32, i32, u64, usize)> {
    let (mut kind, mut device, mut start, mut bytes) = (0_u32, 0_i32, 0_u64, 0_usize);
    pointer_attribute((&raw mut kind).cast(), 2, address)?;
    pointer_attribute((&raw mut device).cast(), 9, address)?;
    pointer_attribute((&raw mut start).cast(), 11, address)?;
    pointer_attribute((&raw mut bytes).cast(), 12, address)?;
    Ok((kind, device, start, bytes))
}

fn pointer_attribute(data: *mut c_void, attribute: u32, address: u64) -> Outcome {
    let function: unsafe extern "C" fn(*mut c_void, u32, u64) -> u32 =
        symbol("cuPointerGetAttribute").expect("it is there");
    // SAFETY: `data` is a variable of the attribute's size.
    match unsafe { function(data, attribute, address) } {
        0 => Ok(()),
        code => Err(code),
    }
}

/// Begins a capture of a stream in a mode: global, of this thread, relaxed.
pub fn begin_capture(stream: Stream, mode: u32) -> Outcome {
    let function: unsafe extern "C" fn(CUstream, u32) -> u32 =
        symbol("cuStreamBeginCapture_v2").expect("it is there");
    // SAFETY: see the head of this file.
    numbered(unsafe { function(stream_of(stream), mode) })
}

/// Ends it. There is no graph.
pub fn end_capture(stream: Stream) -> Outcome {
    let mut graph = 0_u64;
    let function: unsafe extern "C" fn(CUstream, *mut u64) -> u32 =
        symbol("cuStreamEndCapture").expect("it is there");
    // SAFETY: see the head of this file; `graph` is as large as a handle.
    numbered(unsafe { function(stream_of(stream), &raw mut graph) })
}

/// 0, 1 if a stream is part of a capture, 2 if that is spoilt.
pub fn is_capturing(stream: Stream) -> Outcome<c_int> {
    let mut status = 0;
    let function: unsafe extern "C" fn(CUstream, *mut c_int) -> u32 =
        symbol("cuStreamIsCapturing").expect("it is there");
    // SAFETY: see the head of this file.
    numbered(unsafe { function(stream_of(stream), &raw mut status) }).map(|()| status)
}

/// Sets this thread's way with captures; gives the one before.
pub fn exchange_mode(mut mode: u32) -> Outcome<u32> {
    let function: unsafe extern "C" fn(*mut u32) -> u32 =
        symbol("cuThreadExchangeStreamCaptureMode").expect("it is there");
    // SAFETY: the argument is a variable.
    numbered(unsafe { function(&raw mut mode) }).map(|()| mode)
}

fn numbered(code: u32) -> Outcome {
    if code == 0 { Ok(()) } else { Err(code) }
}

/// Whether cudarc finds a driver.
pub fn is_present() -> bool {
    // SAFETY: it looks whether a library can be opened, whose initialisers are a driver's.
    unsafe { sys::is_culib_present() }
}

/// A function by its name, past cudarc's table, which differs from version to version.
pub fn symbol<F: Copy>(name: &str) -> Option<F> {
    // SAFETY: the library is loaded, as the caller has seen to.
    let library = unsafe { sys::culib() };
    // SAFETY: `F` is the function's type, as the driver's header has it.
    unsafe { library.get::<F>(name.as_bytes()) }.ok().map(|symbol| *symbol)
}

/// Found and where, or the code and the status.
pub fn proc_address(name: &str, version: c_int) -> Result<usize, (u32, c_int)> {
    type Get = unsafe extern "C" fn(*const i8, *mut usize, c_int, u64, *mut c_int) -> u32;
    let get: Get = symbol("cuGetProcAddress_v2").expect("it is there");
    let name = CString::new(name).expect("it has no 0");
    let (mut address, mut status) = (0, 0);
    // SAFETY: see the head of this file.
    match unsafe { get(name.as_ptr(), &raw mut address, version, 0, &raw mut status) } {
        0 => Ok(address),
        code => Err((code, status)),
    }
}

#[repr(C)]
struct BatchAttributes {
    order: u32,
    hints: [u32; 4],
    flags: u32,
}

type BatchFunction = unsafe extern "C" fn(
    *mut u64,
    *mut u64,
    *mut usize,
    usize,
    *mut BatchAttributes,
    *mut usize,
    usize,
    *mut usize,
    CUstream,
) -> u32;

/// A batch of `(to, from, bytes)`, all with one source order. An error comes with the member that is to blame.
pub fn batch(members: &[(u64, u64, usize)], order: u32, stream: Stream) -> Result<(), (u32, usize)> {
    let function: BatchFunction = symbol("cuMemcpyBatchAsync").expect("it is there");
    let mut to: Vec<u64> = members.iter().map(|member| member.0).collect();
    let mut from: Vec<u64> = members.iter().map(|member| member.1).collect();
    let mut bytes: Vec<usize> = members.iter().map(|member| member.2).collect();
    let mut attributes = BatchAttributes { order, hints: [0; 4], flags: 0 };
    let (mut first, mut failed) = (0, 0);
    // SAFETY: see the head of this file; all lists have one entry a member.
    let code = unsafe {
        function(
            to.as_mut_ptr(),
            from.as_mut_ptr(),
            bytes.as_mut_ptr(),
            members.len(),
            &raw mut attributes,
            &raw mut first,
            1,
            &raw mut failed,
            stream_of(stream),
        )
    };
    if code == 0 { Ok(()) } else { Err((code, failed)) }
}

pub fn load_module(ptx: &str) -> Outcome<u64> {
    let ptx = CString::new(ptx).expect("it has no 0");
    let mut module = std::ptr::null_mut();
    // SAFETY: see the head of this file; the text ends in 0.
    outcome(unsafe { sys::cuModuleLoadData(&raw mut module, ptx.as_ptr().cast()) })?;
    Ok(module as u64)
}

pub fn function(module: u64, name: &str) -> Outcome<u64> {
    let name = CString::new(name).expect("it has no 0");
    let mut function = std::ptr::null_mut();
    // SAFETY: see the head of this file.
    outcome(unsafe { sys::cuModuleGetFunction(&raw mut function, module as sys::CUmodule, name.as_ptr()) })?;
    Ok(function as u64)
}

/// Launches with parameters of eight bytes each.
pub fn launch(function: u64, threads: u32, parameters: &mut [u64], stream: Stream) -> Outcome {
    let mut pointers: Vec<*mut c_void> =
        parameters.iter_mut().map(|parameter| (&raw mut *parameter).cast()).collect();
    let function = function as sys::CUfunction;
    let (null, stream) = (std::ptr::null_mut(), stream_of(stream));
    // SAFETY: see the head of this file; the parameters are as many as the kernel has.
    outcome(unsafe {
        sys::cuLaunchKernel(function, 1, 1, 1, threads, 1, 1, 0, stream, pointers.as_mut_ptr(), null)
    })
}

/// Launches with some parameters of eight bytes, and null for the rest.
pub fn launch_with_nulls(function: u64, parameters: &mut [u64], num_nulls: usize, stream: Stream) -> Outcome {
    let given = parameters.iter_mut().map(|parameter| (&raw mut *parameter).cast());
    let mut pointers: Vec<*mut c_void> = given.chain(vec![std::ptr::null_mut(); num_nulls]).collect();
    let function = function as sys::CUfunction;
    let (null, stream) = (std::ptr::null_mut(), stream_of(stream));
    // SAFETY: see the head of this file; the pointers are as many as the kernel has parameters.
    outcome(unsafe {
        sys::cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, pointers.as_mut_ptr(), null)
    })
}

/// Puts a function on a stream; it gets the number.
pub fn host_function(stream: Stream, function: extern "C" fn(*mut c_void), argument: u64) -> Outcome {
    // SAFETY: see the head of this file; the function takes any argument.
    outcome(unsafe { sys::cuLaunchHostFunc(stream_of(stream), Some(function), argument as *mut c_void) })
}

/// Reads a byte at any address, as a program with a bug does.
pub fn touch(address: u64) -> u8 {
    // SAFETY: none; whoever calls this wants to see the process die.
    unsafe { std::ptr::read_volatile(address as *const u8) }
}

/// A mapping of the host that lives as long as the process.
pub fn host(bytes: usize) -> &'static mut [u8] {
    let layout = std::alloc::Layout::from_size_align(bytes, 4096).expect("a size");
    // SAFETY: the layout has a size.
    let start = unsafe { std::alloc::alloc_zeroed(layout) };
    assert!(!start.is_null(), "no memory");
    // SAFETY: it was just allocated, zeroed, and is never freed.
    unsafe { std::slice::from_raw_parts_mut(start, bytes) }
}

/// Reads host memory that a device may have written.
pub fn see(address: u64, bytes: usize) -> Vec<u8> {
    // SAFETY: the tests ask for memory that they have made, when no work on it is open or to see that it is.
    (0..bytes).map(|index| touch(address + index as u64)).collect()
}
