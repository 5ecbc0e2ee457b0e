//! The memory that a kernel reads and writes.

/// Memory by device addresses, of whoever launches.
///
/// A launch calls it from the launching thread, in the order of the kernel's loads and stores, with 1, 2, 4, 8 or 16
/// bytes at an address that is a multiple of that number. Methods take `&self`, as a memory may be shared by launches.
pub trait Memory {
    /// Fills `out` with the bytes at `address`.
    ///
    /// # Errors
    /// [`BadAddress`] if the device cannot read all of them; the launch ends with a fault.
    fn read(&self, address: u64, out: &mut [u8]) -> Result<(), BadAddress>;

    /// Writes `bytes` at `address`.
    ///
    /// # Errors
    /// [`BadAddress`] if the device cannot write all of them; then it has written none, and the launch ends with a fault.
    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), BadAddress>;
}

/// The device cannot reach the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the device cannot reach the bytes")]
pub struct BadAddress;
