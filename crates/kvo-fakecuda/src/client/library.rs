//! The library as a file, and its way into the process.

use std::{
    ffi::{CStr, CString, c_char, c_int, c_void},
    fs::File,
    io::Write,
    os::{fd::AsRawFd, unix::ffi::OsStrExt},
    path::{Path, PathBuf},
    ptr,
};

use super::LoadError;
use crate::wire::{Controls, native};

const FILE_NAME: &str = "libkvo_fakecuda.so";

/// Names under which somebody may have loaded a driver.
const DRIVER_NAMES: [&CStr; 2] = [c"libcuda.so", c"libcuda.so.1"];

/// Where Cargo puts the library: beside a test, below a program, beside the folder of an example.
pub(super) fn path() -> Result<PathBuf, LoadError> {
    let program = std::env::current_exe().map_err(LoadError::Program)?;
    let dir = program.parent().unwrap_or(Path::new("."));
    let places = [dir.to_owned(), dir.join("deps"), dir.join("../deps")];
    let found = places.iter().map(|place| place.join(FILE_NAME)).find(|path| path.is_file());
    found.ok_or_else(|| LoadError::NoFile { beside: dir.to_owned() })
}

/// Loads the library at `path`, without the named symbols. It stays for the life of the process.
pub(super) fn load(path: &Path, without: &[&str]) -> Result<&'static Controls, LoadError> {
    if DRIVER_NAMES.iter().any(|name| !open(name, libc::RTLD_NOLOAD).is_null()) {
        return Err(LoadError::AnotherDriver);
    }
    let handle = if without.is_empty() {
        open(&c_path(path)?, 0)
    } else {
        let file = trimmed(path, without)?;
        // The loader has mapped the file before it is closed.
        open(&c_path(Path::new(&format!("/proc/self/fd/{}", file.as_raw_fd())))?, 0)
    };
    if handle.is_null() {
        return Err(LoadError::Loader(loader_says()));
    }
    controls(handle).ok_or(LoadError::NotArmed)
}

/// Bytes of a device, by where they really are.
pub(super) fn read_shadow(shadow: u64, bytes: &mut [u8]) {
    let from = ptr::with_exposed_provenance::<u8>(native(shadow));
    // SAFETY: the library has said that as many bytes of one allocation are there, and it unmaps none.
    unsafe { ptr::copy(from, bytes.as_mut_ptr(), bytes.len()) };
}

/// As [`read_shadow`], the other way.
pub(super) fn write_shadow(shadow: u64, bytes: &[u8]) {
    let to = ptr::with_exposed_provenance_mut::<u8>(native(shadow));
    // SAFETY: as in `read_shadow`; nobody has a reference into a device's memory.
    unsafe { ptr::copy(bytes.as_ptr(), to, bytes.len()) };
}

fn open(name: &CStr, flags: c_int) -> *mut c_void {
    // SAFETY: the name is a C string; initialisers that run are those of the driver that it names.
    unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL | flags) }
}

fn c_path(path: &Path) -> Result<CString, LoadError> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| LoadError::NoFile { beside: path.to_owned() })
}

fn loader_says() -> String {
    // SAFETY: it gives null or a text that stays until this thread's next call of the loader.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "no reason given".to_owned();
    }
    // SAFETY: not null, so it is a C string, and it is copied before anything else is called.
    unsafe { CStr::from_ptr(text.cast::<c_char>()) }.to_string_lossy().into_owned()
}

fn controls(handle: *mut c_void) -> Option<&'static Controls> {
    // SAFETY: the handle is open, the name a C string.
    let symbol = unsafe { libc::dlsym(handle, c"kvofake_controls".as_ptr()) };
    if symbol.is_null() {
        return None;
    }
    // SAFETY: the symbol is this crate's own function, of this type; its size is compared below.
    let controls =
        unsafe { std::mem::transmute::<*mut c_void, extern "C" fn() -> &'static Controls>(symbol) }();
    let is_ours =
        controls.bytes == size_of::<Controls>() && controls.num_symbols == crate::symbols::SYMBOLS.len();
    is_ours.then_some(controls)
}

/// A copy of the library, in memory, in which the loader does not find the named symbols: their names begin with
/// another letter there. What the library itself calls was bound when it was linked.
fn trimmed(path: &Path, without: &[&str]) -> Result<File, LoadError> {
    let mut image = std::fs::read(path).map_err(LoadError::Program)?;
    for symbol in without {
        let name = [b"\0", symbol.as_bytes(), b"\0"].concat();
        let mut is_found = false;
        let places: Vec<usize> =
            image.windows(name.len()).enumerate().filter(|(_, at)| **at == name).map(|(at, _)| at).collect();
        for at in places {
            image[at + 1] = b'x';
            is_found = true;
        }
        if !is_found {
            return Err(LoadError::NoSymbol((*symbol).to_owned()));
        }
    }
    let file = rustix::fs::memfd_create("kvo-fakecuda", rustix::fs::MemfdFlags::CLOEXEC);
    let mut file = File::from(file.map_err(|error| LoadError::Program(error.into()))?);
    file.write_all(&image).map_err(LoadError::Program)?;
    Ok(file)
}
