//! The driver's functions by name.

use std::ffi::{c_char, c_int, c_uint, c_void};

use cudarc::driver::sys::{
    self, CUDA_MEMCPY2D, CUcontext, CUdevice, CUdeviceptr, CUevent, CUfunction, CUmodule,
    CUpointer_attribute, CUresult, CUstream,
};
use libloading::os::unix::Library;

/// Declares the table: a field a function, found by the name of the symbol. Those that are needed are there in a table
/// that was loaded; the others are where the driver has them.
///
/// The arguments are compared with those of cudarc by the compiler, which knows them for every version of CUDA that
/// is chosen. Where that is not possible, `unbound` says why.
macro_rules! symbols {
    (
        needed { $($field:ident = $symbol:ident($($argument:ty),*);)* }
        optional { $($option:ident = $name:ident($($parameter:ty),*);)* }
        unbound($reason:literal) { needed { $($own:ident = $of:ident($($with:ty),*);)* }
            optional { $($may:ident = $by:ident($($given:ty),*);)* } }
    ) => {
        /// Pointers to functions of the driver, which stays loaded.
        #[derive(Debug)]
        pub(super) struct Table {
            $(pub(super) $field: unsafe extern "C" fn($($argument),*) -> u32,)*
            $(pub(super) $option: Option<unsafe extern "C" fn($($parameter),*) -> u32>,)*
            $(#[doc = $reason] pub(super) $own: unsafe extern "C" fn($($with),*) -> u32,)*
            $(#[doc = $reason] pub(super) $may: Option<unsafe extern "C" fn($($given),*) -> u32>,)*
        }

        $(const _: unsafe fn($($argument),*) -> CUresult = sys::$symbol;)*
        $(const _: unsafe fn($($parameter),*) -> CUresult = sys::$name;)*

        impl Table {
            fn by_name(library: &Library) -> Result<Self, &'static str> {
                Ok(Self {
                    $($field: find(library, stringify!($symbol)).ok_or(stringify!($symbol))?,)*
                    $($option: find(library, stringify!($name)),)*
                    $($own: find(library, stringify!($of)).ok_or(stringify!($of))?,)*
                    $($may: find(library, stringify!($by)),)*
                })
            }
        }
    };
}

symbols! {
    needed {
        init = cuInit(c_uint);
        driver_version = cuDriverGetVersion(*mut c_int);
        device_count = cuDeviceGetCount(*mut c_int);
        device = cuDeviceGet(*mut CUdevice, c_int);
        device_name = cuDeviceGetName(*mut c_char, c_int, CUdevice);
        retain = cuDevicePrimaryCtxRetain(*mut CUcontext, CUdevice);
        release = cuDevicePrimaryCtxRelease_v2(CUdevice);
        current = cuCtxGetCurrent(*mut CUcontext);
        set_current = cuCtxSetCurrent(CUcontext);
        priority_range = cuCtxGetStreamPriorityRange(*mut c_int, *mut c_int);
        stream_create = cuStreamCreateWithPriority(*mut CUstream, c_uint, c_int);
        stream_destroy = cuStreamDestroy_v2(CUstream);
        stream_query = cuStreamQuery(CUstream);
        stream_wait = cuStreamWaitEvent(CUstream, CUevent, c_uint);
        event_create = cuEventCreate(*mut CUevent, c_uint);
        event_record = cuEventRecord(CUevent, CUstream);
        event_query = cuEventQuery(CUevent);
        event_destroy = cuEventDestroy_v2(CUevent);
        host_register = cuMemHostRegister_v2(*mut c_void, usize, c_uint);
        host_unregister = cuMemHostUnregister(*mut c_void);
        copy_to_device = cuMemcpyHtoDAsync_v2(CUdeviceptr, *const c_void, usize, CUstream);
        copy_to_host = cuMemcpyDtoHAsync_v2(*mut c_void, CUdeviceptr, usize, CUstream);
    }
    optional {
        total_memory = cuDeviceTotalMem_v2(*mut usize, CUdevice);
        pci_bus_id = cuDeviceGetPCIBusId(*mut c_char, c_int, CUdevice);
        host_device_pointer = cuMemHostGetDevicePointer_v2(*mut CUdeviceptr, *mut c_void, c_uint);
        address_range = cuMemGetAddressRange_v2(*mut CUdeviceptr, *mut usize, CUdeviceptr);
        pointer_attribute = cuPointerGetAttribute(*mut c_void, CUpointer_attribute, CUdeviceptr);
        copy_2d = cuMemcpy2DAsync_v2(*const CUDA_MEMCPY2D, CUstream);
        memory_allocate = cuMemAlloc_v2(*mut CUdeviceptr, usize);
        memory_free = cuMemFree_v2(CUdeviceptr);
        module_load = cuModuleLoadData(*mut CUmodule, *const c_void);
        module_function = cuModuleGetFunction(*mut CUfunction, CUmodule, *const c_char);
        module_unload = cuModuleUnload(CUmodule);
        launch = cuLaunchKernel(
            CUfunction,
            c_uint,
            c_uint,
            c_uint,
            c_uint,
            c_uint,
            c_uint,
            c_uint,
            CUstream,
            *mut *mut c_void,
            *mut *mut c_void
        );
    }
    unbound("Declared here: cudarc's enum or its set of functions depends on the version it was built for.") {
        needed {
            attribute = cuDeviceGetAttribute(*mut c_int, c_int, CUdevice);
        }
        optional {
            is_capturing = cuStreamIsCapturing(CUstream, *mut c_int);
            exchange_capture_mode = cuThreadExchangeStreamCaptureMode(*mut c_int);
            proc_address = cuGetProcAddress_v2(*const c_char, *mut *mut c_void, c_int, u64, *mut c_int);
            copy_batch = cuMemcpyBatchAsync(
                *mut CUdeviceptr,
                *mut CUdeviceptr,
                *mut usize,
                usize,
                *mut super::batch::Attributes,
                *mut usize,
                usize,
                *mut usize,
                CUstream
            );
        }
    }
}

impl Table {
    /// Looks every function up. Says which one is missing, if it is needed.
    pub(super) fn load(library: &Library) -> Result<Self, &'static str> {
        let mut table = Self::by_name(library)?;
        if let Some(proc_address) = table.proc_address {
            table.copy_batch = super::batch::by_version(proc_address);
        }
        Ok(table)
    }
}

/// The function of that name, as one of type `F`.
fn find<F: Copy>(library: &Library, symbol: &str) -> Option<F> {
    const { assert!(size_of::<F>() == size_of::<usize>()) };
    // SAFETY: `F` is the function's type as the driver's header declares it, a code being a 32-bit number: the
    // compiler compared it with cudarc's, or it stands in the list of those that it could not.
    let found = unsafe { library.get::<F>(symbol.as_bytes()) }.ok()?;
    Some(*found)
}
