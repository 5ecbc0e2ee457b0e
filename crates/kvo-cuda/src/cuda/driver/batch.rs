//! Many copies in one call: `cuMemcpyBatchAsync` as CUDA 12.8 has it. Later versions of it take other arguments, so it
//! is asked for by version.

use std::{
    ffi::{c_int, c_uint},
    ptr,
};

use super::context::{CallError, Context, Stream};

/// How a batch may touch its sources, and where memory is. In the driver's header: `CUmemcpyAttributes`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct Attributes {
    source_access_order: c_uint,
    source_location: [c_int; 2],
    destination_location: [c_int; 2],
    flags: c_uint,
}

/// Sources are read in stream order, and not before.
const ORDER_STREAM: c_uint = 1;

/// The copies of one call, in arrays as the driver takes them; to be used again.
#[derive(Debug, Default)]
pub(crate) struct BatchCopy {
    to: Vec<u64>,
    from: Vec<u64>,
    bytes: Vec<usize>,
}

impl BatchCopy {
    pub(crate) fn clear(&mut self) {
        self.to.clear();
        self.from.clear();
        self.bytes.clear();
    }

    pub(crate) fn push(&mut self, to: u64, from: u64, bytes: usize) {
        self.to.push(to);
        self.from.push(from);
        self.bytes.push(bytes);
    }
}

impl Context {
    /// Whether the driver has batches.
    pub(crate) fn has_batches(&self) -> bool {
        self.calls().copy_batch.is_some()
    }

    /// Puts all copies of a batch on `stream`. They run in any order. After an error some may have been put there.
    ///
    /// # Safety
    /// As for [`load`](Self::load) and [`store`](Self::store), for each copy; no two write the same bytes. Host
    /// addresses are those by which the device knows the memory.
    pub(crate) unsafe fn batch(&self, batch: &mut BatchCopy, stream: &Stream) -> Result<(), CallError> {
        let mut attributes = Attributes {
            source_access_order: ORDER_STREAM,
            source_location: [0; 2],
            destination_location: [0; 2],
            flags: 0,
        };
        // The first copy that the attributes are for.
        let mut first = 0_usize;
        let mut failed = usize::MAX;
        self.call_on("cuMemcpyBatchAsync", stream, |table, raw| match table.copy_batch {
            // SAFETY: the arrays have `len` elements each and are read during the call; the copies are as the caller
            // says.
            Some(call) => unsafe {
                call(
                    batch.to.as_mut_ptr(),
                    batch.from.as_mut_ptr(),
                    batch.bytes.as_mut_ptr(),
                    batch.to.len(),
                    &raw mut attributes,
                    &raw mut first,
                    1,
                    &raw mut failed,
                    raw,
                )
            },
            None => super::context::MISSING,
        })
    }
}

/// The entry for CUDA 12.8, if `proc_address` gives it out.
pub(super) fn by_version<F: Copy>(
    proc_address: unsafe extern "C" fn(
        *const std::ffi::c_char,
        *mut *mut std::ffi::c_void,
        c_int,
        u64,
        *mut c_int,
    ) -> u32,
) -> Option<F> {
    const { assert!(size_of::<F>() == size_of::<usize>()) };
    let (mut found, mut status) = (ptr::null_mut(), 0);
    let name = c"cuMemcpyBatchAsync";
    // SAFETY: the driver reads the name, and writes a pointer and an int, during the call.
    let code = unsafe { proc_address(name.as_ptr(), &raw mut found, 12_080, 0, &raw mut status) };
    if code != 0 || found.is_null() {
        return None;
    }
    // SAFETY: `F` is a pointer to a function, of the type that the driver's header of CUDA 12.8 gives that name.
    Some(unsafe { std::mem::transmute_copy::<*mut std::ffi::c_void, F>(&found) })
}
