//! Modules and kernels.

use std::ffi::{c_char, c_int, c_void};

use kvo_ptx::Kernel;

use super::{Call, exports};
use crate::{
    abi::{Code, Done},
    kernel::Launch,
    pointers::{In, Out},
    work::Work,
};

/// `CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK`.
const MAX_THREADS_PER_BLOCK: c_int = 0;
const THREADS_MAX: u64 = 1024;
const GRID_YZ_MAX: u32 = 65_535;

exports! {
    Context cuModuleLoadData(call, module: Out<u64>, image: In<c_char>) {
        load(call, module, image)
    }

    Context cuModuleLoadDataEx(
        call,
        module: Out<u64>,
        image: In<c_char>,
        _num_options: u32,
        _options: u64,
        _values: u64
    ) {
        load(call, module, image)
    }

    Context cuModuleUnload(call, module: u64) {
        call.driver.lock().unload_module(module)
    }

    Context cuModuleGetFunction(call, function: Out<u64>, module: u64, name: In<c_char>) {
        let name = name.text()?;
        function.put(call.driver.lock().function_of(module, &name)?)
    }

    Context cuFuncGetAttribute(call, value: Out<c_int>, attribute: c_int, function: u64) {
        let threads = call.driver.lock().kernel(function)?.threads_max();
        value.put(if attribute == MAX_THREADS_PER_BLOCK { threads.cast_signed() } else { 0 })
    }

    Context cuFuncSetAttribute(call, function: u64, _attribute: c_int, _value: c_int) {
        call.driver.lock().kernel(function).map(|_| ())
    }

    Context cuFuncGetParamInfo(call, function: u64, index: usize, offset: Out<usize>, bytes: Out<usize>) {
        let kernel = call.driver.lock().kernel(function)?;
        let parameter = kernel.params().get(index).ok_or(Code::INVALID_VALUE)?;
        offset.put(parameter.offset)?;
        bytes.put_if_wanted(parameter.size);
        Ok(())
    }

    Context cuLaunchKernel(
        call,
        function: u64,
        grid_x: u32,
        grid_y: u32,
        grid_z: u32,
        block_x: u32,
        block_y: u32,
        block_z: u32,
        _shared_bytes: u32,
        stream: u64,
        parameters: In<In<u8>>,
        extra: In<*mut c_void>
    ) {
        let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
        let threads: u64 = block.into_iter().map(u64::from).product();
        let is_grid = grid.iter().all(|size| *size > 0) && grid_y <= GRID_YZ_MAX && grid_z <= GRID_YZ_MAX;
        if !is_grid || threads == 0 || threads > THREADS_MAX || block_z > 64 || !extra.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        let mut state = call.driver.lock();
        let kernel = state.kernel(function)?;
        if threads > u64::from(kernel.threads_max()) {
            return Err(Code::LAUNCH_OUT_OF_RESOURCES);
        }
        let parameters = read_parameters(&kernel, parameters)?;
        // A kernel runs on a stream of its own context.
        let handle = state.stream_of(call.context, stream)?;
        if state.streams[&handle].context != call.context {
            return Err(Code::INVALID_HANDLE);
        }
        let launch = Launch { context: call.context, function, kernel, grid, block, parameters };
        state.enqueue(call.context, stream, Work::Launch(launch)).map(|_| ())
    }
}

fn load(call: &Call, module: Out<u64>, image: In<c_char>) -> Done {
    let ptx = image.text().map_err(|_| Code::INVALID_IMAGE)?;
    module.put(call.driver.lock().load_module(call.context, &ptx)?)
}

/// Reads every parameter that the kernel declares, whether the caller has given one or not, as a driver does.
fn read_parameters(kernel: &Kernel, given: In<In<u8>>) -> Result<Vec<u8>, Code> {
    let mut block = vec![0; kernel.param_bytes()];
    for (index, parameter) in kernel.params().iter().enumerate() {
        let value = given.at(index)?.bytes(parameter.size)?;
        block[parameter.offset..][..parameter.size].copy_from_slice(&value);
    }
    Ok(block)
}
