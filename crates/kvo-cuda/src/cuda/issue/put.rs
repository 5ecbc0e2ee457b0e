//! The ways on which copies are put on a stream.

use kvo_core::Direction;

use super::HostCopy;
use crate::cuda::driver::{BatchCopy, CallError, Context, Rows, Stream};

/// Puts copies on `stream`, a call a copy. After an error some of them are there.
pub(crate) fn one_by_one(
    context: &Context,
    direction: Direction,
    copies: &[HostCopy],
    stream: &Stream,
) -> Result<(), CallError> {
    copies.iter().try_for_each(|copy| {
        let HostCopy { device, host, bytes, .. } = *copy;
        match direction {
            // SAFETY: a `HostCopy` has memory on both sides that is good for it until the device has done it. On the
            // host it is claimed or owned until the event behind the copy was passed. On the device it lies in a
            // region that stays attached as long, and its owner leaves it alone: that is the contract of
            // `DeviceSpan::from_raw` and the meaning of the fence.
            Direction::Load => unsafe { context.load(device, host, bytes, stream) },
            // SAFETY: as for a load.
            Direction::Store => unsafe { context.store(host, device, bytes, stream) },
        }
    })
}

/// Puts copies of the same length on `stream` in one call. Their addresses ascend by constant steps on both sides, and
/// on each all lie in one allocation or registration. There are at least two.
pub(crate) fn rows(
    context: &Context,
    direction: Direction,
    copies: &[HostCopy],
    stream: &Stream,
) -> Result<(), CallError> {
    let rows = Rows {
        is_load: direction == Direction::Load,
        host: copies[0].host,
        host_pitch: copies[1].host.addr() - copies[0].host.addr(),
        device: copies[0].device,
        device_pitch: usize::try_from(copies[1].device - copies[0].device).expect("both sides have 64 bits"),
        width: copies[0].bytes,
        count: copies.len(),
    };
    // SAFETY: as in `one_by_one`, for each row; bytes between rows are not touched.
    unsafe { context.rows(&rows, stream) }
}

/// Puts copies on `stream` in one call; `batch` is room for it. `address` says by which address the device knows the
/// host's side of a copy. After an error some of them are there.
pub(crate) fn batch(
    context: &Context,
    direction: Direction,
    copies: &[HostCopy],
    address: impl Fn(&HostCopy) -> u64,
    batch: &mut BatchCopy,
    stream: &Stream,
) -> Result<(), CallError> {
    batch.clear();
    for copy in copies {
        match direction {
            Direction::Load => batch.push(copy.device, address(copy), copy.bytes),
            Direction::Store => batch.push(address(copy), copy.device, copy.bytes),
        }
    }
    // SAFETY: as in `one_by_one`; copies of one piece write different bytes, which the queue checked.
    unsafe { context.batch(batch, stream) }
}
