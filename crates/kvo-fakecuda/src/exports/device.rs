//! The driver itself, and its devices.

use std::ffi::{c_char, c_int, c_void};

use super::exports;
use crate::{
    abi::{self, Code},
    context::{pci_bus_id, uuid},
    pointers::{In, Out},
    symbols::variant_of,
};

/// `CU_GET_PROC_ADDRESS_*`: found, not found, found for a newer program only.
const FOUND: c_int = 0;
const NOT_FOUND: c_int = 1;
const TOO_NEW: c_int = 2;

exports! {
    Nothing cuInit(call, flags: u32) {
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        call.driver.lock().init()
    }

    Nothing cuDriverGetVersion(call, version: Out<c_int>) {
        version.put(call.driver.lock().config.driver_version)
    }

    Nothing cuGetErrorName(_call, code: u32, name: Out<*const c_char>) {
        name.put(abi::error_name(code).as_ptr())
    }

    Nothing cuGetErrorString(_call, code: u32, text: Out<*const c_char>) {
        text.put(abi::error_name(code).as_ptr())
    }

    Nothing cuGetProcAddress(call, name: In<c_char>, function: Out<*const c_void>, version: c_int, _flags: u64) {
        let (address, _) = find(call, name, version)?;
        function.put(address.ok_or(Code::NOT_FOUND)?)
    }

    Nothing cuGetProcAddress_v2(
        call,
        name: In<c_char>,
        function: Out<*const c_void>,
        version: c_int,
        _flags: u64,
        status: Out<c_int>
    ) {
        let (address, found) = find(call, name, version)?;
        status.put_if_wanted(found);
        function.put(address.unwrap_or(std::ptr::null()))?;
        if address.is_some() { Ok(()) } else { Err(Code::NOT_FOUND) }
    }

    Init cuDeviceGet(call, device: Out<c_int>, ordinal: c_int) {
        call.driver.lock().device(ordinal)?;
        device.put(ordinal)
    }

    Init cuDeviceGetCount(call, count: Out<c_int>) {
        count.put(c_int::try_from(call.driver.lock().devices.len()).unwrap_or(c_int::MAX))
    }

    Init cuDeviceGetName(call, name: Out<c_char>, room: c_int, device: c_int) {
        let device = call.driver.lock().device(device)?;
        name.put_text(&format!("kvo fake device {device} (model)"), room)
    }

    Init cuDeviceGetUuid(call, id: Out<[u8; 16]>, device: c_int) {
        id.put(uuid(call.driver.lock().device(device)?))
    }

    Init cuDeviceGetUuid_v2(call, id: Out<[u8; 16]>, device: c_int) {
        id.put(uuid(call.driver.lock().device(device)?))
    }

    Init cuDeviceGetAttribute(call, value: Out<c_int>, attribute: c_int, device: c_int) {
        let state = call.driver.lock();
        value.put(state.known_attribute(state.device(device)?, attribute)?)
    }

    Init cuDeviceGetPCIBusId(call, id: Out<c_char>, room: c_int, device: c_int) {
        let device = call.driver.lock().device(device)?;
        id.put_text(&pci_bus_id(device), room)
    }

    Init cuDeviceTotalMem_v2(call, bytes: Out<usize>, device: c_int) {
        let state = call.driver.lock();
        state.device(device)?;
        bytes.put(state.config.memory_bytes)
    }
}

/// The function that a program of version `version` means, as far as the driver has it.
fn find(
    call: &super::Call,
    name: In<c_char>,
    version: c_int,
) -> Result<(Option<*const c_void>, c_int), Code> {
    let name = name.text()?;
    let state = call.driver.lock();
    let at = |version: c_int| {
        let newest = version.min(state.config.driver_version);
        variant_of(&name, newest).filter(|(index, _)| !state.config.hidden.contains(index))
    };
    let address = at(version).and_then(|(_, symbol)| super::address_of(symbol)).map(<*const ()>::cast);
    let status = match address {
        Some(_) => FOUND,
        None if at(c_int::MAX).is_some() => TOO_NEW,
        None => NOT_FOUND,
    };
    Ok((address, status))
}
