//! The driver: its library, opened when a program first asks for it, and its calls.
//!
//! Types and signatures are cudarc's, and the compiler compares them. cudarc's own functions are not called: they
//! panic where the library or a symbol is missing, return codes as an enum that a newer driver may not keep to, and
//! are reached in another way for each way of linking. Here a symbol is looked up once by name, a code is a number,
//! and the same source works whatever an engine chose for cudarc.

mod batch;
mod context;
mod kernel;
mod registration;
mod table;

use std::{error::Error, ffi::c_int, sync::OnceLock};

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use self::table::Table;
pub(crate) use self::{
    batch::BatchCopy,
    context::{CallError, Context, Event, Rows, Stream},
    kernel::CopyKernel,
    registration::{Registration, populate},
};
use super::codes::DriverCode;

/// From glibc: take a library that is loaded already, and load none.
const RTLD_NOLOAD: c_int = 0x4;

/// The library that a process has in use already, if it has: an engine's, however that got it. `libcuda.so` is also
/// the name in a toolkit's stub, so a driver is loaded by its other name first.
const NAMES: [(&str, c_int); 4] =
    [("libcuda.so", RTLD_NOLOAD), ("libcuda.so.1", RTLD_NOLOAD), ("libcuda.so.1", 0), ("libcuda.so", 0)];

/// The driver of this process. It stays loaded until the process ends.
#[derive(Debug)]
pub(crate) struct Driver {
    table: Table,
}

/// Why there is no driver to call.
#[derive(Clone, Debug)]
pub(crate) enum Missing {
    /// There is no library; in words of the loader.
    Library(String),
    /// The library lacks a symbol.
    Symbol(&'static str),
}

impl Driver {
    /// The driver, opened by the first call. What that found stays.
    pub(crate) fn get() -> Result<&'static Self, &'static Missing> {
        static DRIVER: OnceLock<Result<Driver, Missing>> = OnceLock::new();
        DRIVER.get_or_init(Self::open).as_ref()
    }

    fn open() -> Result<Self, Missing> {
        let mut error = String::new();
        for (name, flag) in NAMES {
            // SAFETY: the library is the driver, whose initialisers are made to run in any process, at any time.
            match unsafe { Library::open(Some(name), RTLD_NOW | RTLD_LOCAL | flag) } {
                Ok(library) => {
                    let table = Table::load(&library).map_err(Missing::Symbol);
                    // Never closed: its threads, and whoever else uses it, outlive any value of ours.
                    std::mem::forget(library);
                    return table.map(|table| Self { table });
                }
                // The first name that is to be loaded is the driver's usual one.
                Err(refusal) if flag == 0 && error.is_empty() => error = loader_words(&refusal),
                Err(_) => {}
            }
        }
        Err(Missing::Library(error))
    }

    pub(crate) fn init(&self) -> Result<(), DriverCode> {
        // SAFETY: the call takes no pointer.
        outcome(unsafe { (self.table.init)(0) })
    }

    /// The newest version of CUDA that it knows: 1000 x major + 10 x minor.
    pub(crate) fn version(&self) -> Result<u32, DriverCode> {
        let mut version = 0;
        // SAFETY: the driver writes one int, during the call.
        outcome(unsafe { (self.table.driver_version)(&raw mut version) })?;
        Ok(version.unsigned_abs())
    }

    pub(crate) fn device_count(&self) -> Result<u32, DriverCode> {
        let mut count = 0;
        // SAFETY: the driver writes one int, during the call.
        outcome(unsafe { (self.table.device_count)(&raw mut count) })?;
        Ok(count.unsigned_abs())
    }

    /// The driver's name for the device with that ordinal.
    pub(crate) fn device(&self, ordinal: u32) -> Result<c_int, DriverCode> {
        let ordinal = c_int::try_from(ordinal).map_err(|_| DriverCode(101))?;
        let mut device = 0;
        // SAFETY: the driver writes one int, during the call.
        outcome(unsafe { (self.table.device)(&raw mut device, ordinal) })?;
        Ok(device)
    }

    pub(crate) fn device_name(&self, device: c_int) -> Result<String, DriverCode> {
        let mut name = [0_u8; 128];
        // SAFETY: the driver writes at most as many bytes as it is told, during the call.
        outcome(unsafe { (self.table.device_name)(name.as_mut_ptr().cast(), 127, device) })?;
        Ok(text(&name))
    }

    /// The device's address on the PCI bus, as `domain:bus:device.function` in lower case.
    pub(crate) fn pci_bus_id(&self, device: c_int) -> Result<String, DriverCode> {
        let call = self.table.pci_bus_id.ok_or(DriverCode(801))?;
        let mut id = [0_u8; 64];
        // SAFETY: the driver writes at most as many bytes as it is told, during the call.
        outcome(unsafe { call(id.as_mut_ptr().cast(), 63, device) })?;
        Ok(text(&id).to_ascii_lowercase())
    }

    pub(crate) fn total_memory(&self, device: c_int) -> Result<u64, DriverCode> {
        let call = self.table.total_memory.ok_or(DriverCode(801))?;
        let mut bytes = 0_usize;
        // SAFETY: the driver writes one size, during the call.
        outcome(unsafe { call(&raw mut bytes, device) })?;
        Ok(bytes as u64)
    }

    /// One of the device's attributes, by its number in the driver's header.
    pub(crate) fn attribute(&self, device: c_int, attribute: c_int) -> Result<u32, DriverCode> {
        let mut value = 0;
        // SAFETY: the driver writes one int, during the call; it refuses a number that it does not know.
        outcome(unsafe { (self.table.attribute)(&raw mut value, attribute, device) })?;
        u32::try_from(value).map_err(|_| DriverCode(801))
    }

    /// The file that the driver was loaded from, as this process's memory map says.
    pub(crate) fn path(&self) -> Option<String> {
        let inside = self.table.init as usize;
        let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
        maps.lines().find_map(|line| {
            let (start, end) = line.split_whitespace().next()?.split_once('-')?;
            let range = usize::from_str_radix(start, 16).ok()?..usize::from_str_radix(end, 16).ok()?;
            range.contains(&inside).then(|| line.split_whitespace().nth(5).map(str::to_owned))?
        })
    }
}

/// What the loader says of a library that it does not load.
fn loader_words(refusal: &libloading::Error) -> String {
    refusal.source().map_or_else(|| refusal.to_string(), ToString::to_string)
}

/// What a code says of a call.
fn outcome(code: u32) -> Result<(), DriverCode> {
    if code == 0 { Ok(()) } else { Err(DriverCode(code)) }
}

/// The bytes up to the first 0.
fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}
