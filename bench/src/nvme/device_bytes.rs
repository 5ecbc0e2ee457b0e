//! What really moved between this process and devices.

use std::fs;

/// Bytes that the kernel has read from devices, and written to them, for this process; none where it does not say.
///
/// What comes from the page cache is no read. A write is counted when its page becomes dirty.
pub(super) fn device_bytes() -> Option<(u64, u64)> {
    let text = fs::read_to_string("/proc/self/io").ok()?;
    let number = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
    Some((number("read_bytes:")?, number("write_bytes:")?))
}
