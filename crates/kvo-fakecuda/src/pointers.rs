//! The pointers that an exported function is given.
//!
//! They are made by its caller alone: an exported function is unsafe, and its contract is that each pointer is null or
//! good for what the driver documents. So what they point to is read and written here, and nowhere else.

use std::ffi::{CStr, c_char, c_void};

use crate::{
    abi::{Code, Done},
    wire::native,
};

/// Where one value of `T` goes.
#[repr(transparent)]
#[derive(Debug)]
pub(crate) struct Out<T>(*mut T);

impl<T> Clone for Out<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Out<T> {}

impl<T> Out<T> {
    /// What no one wants.
    pub(crate) fn nowhere() -> Self {
        Self(std::ptr::null_mut())
    }

    /// The same place, for a value of another type.
    pub(crate) fn cast<U>(self) -> Out<U> {
        Out(self.0.cast())
    }

    /// What is there, for an argument that goes both ways.
    pub(crate) fn get(self) -> Result<T, Code>
    where
        T: Copy,
    {
        In(self.0.cast_const()).get()
    }

    /// Writes `value`.
    pub(crate) fn put(self, value: T) -> Done {
        if self.0.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: not null, so the caller of the exported function has room for a `T` there.
        unsafe { self.0.write_unaligned(value) };
        Ok(())
    }

    /// Writes `value` if the caller wants it.
    pub(crate) fn put_if_wanted(self, value: T) {
        if !self.0.is_null() {
            let _is_put = self.put(value);
        }
    }
}

impl Out<c_char> {
    /// Writes as much of `text` as `room` holds with a final 0.
    pub(crate) fn put_text(self, text: &str, room: i32) -> Done {
        let room = usize::try_from(room).ok().filter(|room| *room > 0).ok_or(Code::INVALID_VALUE)?;
        let bytes = text.bytes().take(room - 1).chain([0]);
        for (index, byte) in bytes.enumerate() {
            // `index` is below `room`.
            Self(self.0.wrapping_add(index)).put(byte.cast_signed())?;
        }
        Ok(())
    }
}

/// What one or several values of `T` are read from.
#[repr(transparent)]
#[derive(Debug)]
pub(crate) struct In<T>(*const T);

impl<T> Clone for In<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for In<T> {}

impl<T: Copy> In<T> {
    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }

    pub(crate) fn get(self) -> Result<T, Code> {
        self.at(0)
    }

    /// The value `index` of as many as the caller has said there are.
    pub(crate) fn at(self, index: usize) -> Result<T, Code> {
        if self.0.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: not null, so the caller has that many values there, and `index` is one of them.
        Ok(unsafe { self.0.wrapping_add(index).read_unaligned() })
    }
}

impl In<u8> {
    /// `count` bytes.
    pub(crate) fn bytes(self, count: usize) -> Result<Vec<u8>, Code> {
        (0..count).map(|index| self.at(index)).collect()
    }
}

impl In<c_char> {
    /// The text up to its final 0.
    pub(crate) fn text(self) -> Result<String, Code> {
        if self.0.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: not null, so the caller has a text that ends in 0 there.
        let text = unsafe { CStr::from_ptr(self.0) };
        Ok(text.to_str().map_err(|_| Code::INVALID_VALUE)?.to_owned())
    }
}

/// A function of a caller's.
pub(crate) type CFunction = unsafe extern "C" fn(*mut c_void);

/// A caller's function and what it is to be given.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HostFunction {
    pub(crate) function: CFunction,
    pub(crate) argument: u64,
}

impl HostFunction {
    pub(crate) fn call(self) {
        let argument = std::ptr::with_exposed_provenance_mut(native(self.argument));
        // SAFETY: whoever gave both to `cuLaunchHostFunc` says that the one may be called with the other.
        unsafe { (self.function)(argument) };
    }
}
