//! Memory of devices and of the host, and what an address is.

use std::ffi::{c_int, c_void};

use super::{Call, exports};
use crate::{
    abi::{Code, Done, MEMORY_DEVICE, MEMORY_HOST},
    host::Overlap,
    pointers::{In, Out},
};

exports! {
    Context cuMemAlloc_v2(call, address: Out<u64>, bytes: usize) {
        let mut state = call.driver.lock();
        let device = state.usable(call.context)?;
        address.put(state.allocate(device, bytes)?)
    }

    // As with the real one, all work of the context is over before memory goes.
    Context cuMemFree_v2(call, address: u64) {
        if address == 0 {
            return Ok(());
        }
        let context = call.context;
        let device = call.driver.lock().device_at(address).ok_or(Code::INVALID_VALUE)?;
        call.driver.wait_until(context, |state| state.is_context_idle(context))?;
        let mut state = call.driver.lock();
        if state.is_alone(device, address) { state.free(device, address) } else { Err(Code::INVALID_VALUE) }
    }

    Context cuMemGetInfo_v2(call, free: Out<usize>, total: Out<usize>) {
        let state = call.driver.lock();
        free.put(state.free_bytes(state.usable(call.context)?))?;
        total.put(state.config.memory_bytes)
    }

    Context cuMemGetAddressRange_v2(call, start: Out<u64>, bytes: Out<usize>, address: u64) {
        let found = call.driver.lock().allocation_at(address);
        let (_, found, length) = found.ok_or(Code::NOT_FOUND)?;
        start.put_if_wanted(found);
        bytes.put_if_wanted(length);
        Ok(())
    }

    Context cuMemHostAlloc(call, start: Out<u64>, bytes: usize, flags: u32) {
        start.put(call.driver.lock().allocate_host(call.context, bytes, flags)?)
    }

    Context cuMemAllocHost_v2(call, start: Out<u64>, bytes: usize) {
        start.put(call.driver.lock().allocate_host(call.context, bytes, 0)?)
    }

    Context cuMemFreeHost(call, start: u64) {
        let context = call.context;
        call.driver.wait_until(context, |state| state.is_context_idle(context))?;
        call.driver.lock().free_host(start)
    }

    Context cuMemHostRegister_v2(call, start: u64, bytes: usize, flags: u32) {
        call.driver.lock().register(call.context, start, bytes, flags)
    }

    Context cuMemHostUnregister(call, start: u64) {
        call.driver.lock().unregister(start)
    }

    Context cuMemHostGetDevicePointer_v2(call, address: Out<u64>, host: u64, flags: u32) {
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        let state = call.driver.lock();
        let device = state.usable(call.context)?;
        match state.host.overlap(call.context, host, 1) {
            Overlap::Inside(range) => address.put(range.address_on(device) + (host - range.start)),
            _ => Err(Code::INVALID_VALUE),
        }
    }

    Context cuMemHostGetFlags(call, flags: Out<u32>, host: u64) {
        match call.driver.lock().host.overlap(call.context, host, 1) {
            Overlap::Inside(range) => flags.put(range.flags),
            _ => Err(Code::INVALID_VALUE),
        }
    }

    Context cuPointerGetAttribute(call, data: Out<c_void>, attribute: u32, address: u64) {
        put_attribute(call, data, attribute, address)
    }

    // Attributes that a pointer has not are 0, and no error.
    Context cuPointerGetAttributes(call, count: u32, attributes: In<u32>, data: In<Out<c_void>>, address: u64) {
        for index in 0..count as usize {
            let (attribute, data) = (attributes.at(index)?, data.at(index)?);
            if put_attribute(call, data, attribute, address) != Ok(()) {
                put_sized(data, attribute, 0)?;
            }
        }
        Ok(())
    }
}

/// `CU_POINTER_ATTRIBUTE_*`.
const CONTEXT: u32 = 1;
const MEMORY_TYPE: u32 = 2;
const DEVICE_POINTER: u32 = 3;
const HOST_POINTER: u32 = 4;
const IS_MANAGED: u32 = 8;
const DEVICE_ORDINAL: u32 = 9;
const RANGE_START: u32 = 11;
const RANGE_BYTES: u32 = 12;
const MAPPED: u32 = 13;

fn put_attribute(call: &Call, data: Out<c_void>, attribute: u32, address: u64) -> Done {
    let state = call.driver.lock();
    if let Some((device, start, bytes)) = state.allocation_at(address) {
        let context = state.devices[device].context.unwrap_or(0);
        let value = match attribute {
            CONTEXT => context,
            MEMORY_TYPE => u64::from(MEMORY_DEVICE),
            DEVICE_POINTER => address,
            IS_MANAGED => 0,
            DEVICE_ORDINAL => device as u64,
            RANGE_START => start,
            RANGE_BYTES => bytes as u64,
            MAPPED => 1,
            _ => return Err(Code::INVALID_VALUE),
        };
        return put_sized(data, attribute, value);
    }
    let device = state.usable(call.context)?;
    let host = state.host.host_address_of(device, address)?;
    let Overlap::Inside(range) = state.host.overlap(call.context, host, 1) else {
        return Err(Code::INVALID_VALUE);
    };
    let offset = host - range.start;
    let value = match attribute {
        CONTEXT => range.context,
        MEMORY_TYPE => u64::from(MEMORY_HOST),
        DEVICE_POINTER => range.address_on(device) + offset,
        HOST_POINTER => host,
        IS_MANAGED => 0,
        DEVICE_ORDINAL => state.usable(range.context)? as u64,
        RANGE_START => range.start,
        RANGE_BYTES => range.bytes as u64,
        MAPPED => 1,
        _ => return Err(Code::INVALID_VALUE),
    };
    put_sized(data, attribute, value)
}

/// Writes a value in the size that its attribute has.
fn put_sized(data: Out<c_void>, attribute: u32, value: u64) -> Done {
    match attribute {
        MEMORY_TYPE | DEVICE_ORDINAL => data.cast::<c_int>().put(c_int::try_from(value).unwrap_or(0)),
        IS_MANAGED | MAPPED => data.cast::<u8>().put(u8::from(value != 0)),
        _ => data.cast::<u64>().put(value),
    }
}
