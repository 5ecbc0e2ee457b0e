//! The copy kernel, as the driver compiles its PTX for the device.

use std::{
    ffi::{CStr, CString, c_void},
    ptr,
    sync::Arc,
};

use cudarc::driver::sys::{CUfunction, CUmodule};

use super::context::{CallError, Context, MISSING, Stream};
use crate::copy_kernel::{Arguments, COPY_PTX, Entry, Launch, Slice};

/// The kernel, loaded into a context until this drops, when no launch of it is under way.
#[derive(Debug)]
pub(crate) struct CopyKernel {
    context: Arc<Context>,
    module: Option<CUmodule>,
    any: CUfunction,
    aligned: CUfunction,
}

// SAFETY: module and functions are the driver's, which documents that calls of one context may come from any thread; they
// are unloaded when this value drops, on whichever thread that is.
unsafe impl Send for CopyKernel {}

impl CopyKernel {
    /// Has the driver compile it, in about 0.1 s. The context is current.
    pub(crate) fn load(context: &Arc<Context>) -> Result<Self, CallError> {
        let text = CString::new(COPY_PTX).expect("PTX is text without a 0");
        let mut module: CUmodule = ptr::null_mut();
        context.call("cuModuleLoadData", |table| match table.module_load {
            // SAFETY: the driver reads the text, and writes one handle, during the call.
            Some(call) => unsafe { call(&raw mut module, text.as_ptr().cast()) },
            None => MISSING,
        })?;
        // From here on an error unloads it.
        let mut kernel = Self {
            context: Arc::clone(context),
            module: Some(module),
            any: ptr::null_mut(),
            aligned: ptr::null_mut(),
        };
        let function = |name: &CStr| {
            let mut function: CUfunction = ptr::null_mut();
            context.call("cuModuleGetFunction", |table| match table.module_function {
                // SAFETY: the module was loaded above; the driver reads the name, and writes one handle.
                Some(call) => unsafe { call(&raw mut function, module, name.as_ptr()) },
                None => MISSING,
            })?;
            Ok(function)
        };
        kernel.any = function(Entry::Any.name())?;
        kernel.aligned = function(Entry::Aligned.name())?;
        Ok(kernel)
    }

    /// Has it outlive this: a launch may be under way.
    pub(crate) fn leak(&mut self) {
        self.module = None;
    }

    /// Puts a launch on `stream`. The device has the list that its slices are of at `list`.
    ///
    /// # Safety
    /// Until the stream has passed the launch: the list stays as it is; every source is readable by the device and
    /// nobody writes it; every destination is writable, nobody else touches it, and it shares no byte with another.
    pub(crate) unsafe fn launch(&self, launch: &Launch, list: u64, stream: &Stream) -> Result<(), CallError> {
        let function = match launch.entry {
            Entry::Any => self.any,
            Entry::Aligned => self.aligned,
        };
        let mut arguments = Arguments {
            slices: list + (launch.slices.start * Slice::BYTES) as u64,
            num_slices: u32::try_from(launch.slices.len()).expect("a launch has few slices"),
        };
        let slices: *mut c_void = (&raw mut arguments.slices).cast();
        let mut addresses = [slices, (&raw mut arguments.num_slices).cast()];
        let (ctas, threads) = (launch.ctas, launch.threads);
        self.context.call_on("cuLaunchKernel", stream, |table, raw| match table.launch {
            // SAFETY: both entries take these arguments, which the driver reads during the call; the memories are as
            // the caller says.
            Some(call) => unsafe {
                let addresses = addresses.as_mut_ptr();
                call(function, ctas, 1, 1, threads, 1, 1, 0, raw, addresses, ptr::null_mut())
            },
            None => MISSING,
        })
    }
}

impl Drop for CopyKernel {
    fn drop(&mut self) {
        let Some(module) = self.module.take() else { return };
        let unloaded = self.context.call("cuModuleUnload", |table| match table.module_unload {
            // SAFETY: it was loaded once and is unloaded once, when no launch is under way, as the type says.
            Some(call) => unsafe { call(module) },
            None => MISSING,
        });
        if let Err(error) = unloaded {
            tracing::debug!(%error, "the copy kernel stays loaded");
        }
    }
}
