//! Copies and fills.

use super::{Call, exports};
use crate::{
    abi::{Code, Copy2d, CopyAttributes},
    copy::{Batch, Ends, Side, Way},
    pointers::{In, Out},
    streams::Point,
    work::{Fill, Work},
};

exports! {
    Context cuMemcpyHtoD_v2(call, to: u64, from: u64, bytes: usize) {
        call.driver.copy_and_wait(call.context, Way::ToDevice, Ends { to, from, bytes })
    }

    Context cuMemcpyDtoH_v2(call, to: u64, from: u64, bytes: usize) {
        call.driver.copy_and_wait(call.context, Way::ToHost, Ends { to, from, bytes })
    }

    Context cuMemcpyDtoD_v2(call, to: u64, from: u64, bytes: usize) {
        call.driver.copy_and_wait(call.context, Way::OnDevice, Ends { to, from, bytes })
    }

    Context cuMemcpyHtoDAsync_v2(call, to: u64, from: u64, bytes: usize, stream: u64) {
        call.driver.copy(call.context, Way::ToDevice, Ends { to, from, bytes }, stream)
    }

    Context cuMemcpyDtoHAsync_v2(call, to: u64, from: u64, bytes: usize, stream: u64) {
        call.driver.copy(call.context, Way::ToHost, Ends { to, from, bytes }, stream)
    }

    Context cuMemcpyDtoDAsync_v2(call, to: u64, from: u64, bytes: usize, stream: u64) {
        call.driver.copy(call.context, Way::OnDevice, Ends { to, from, bytes }, stream)
    }

    Context cuMemcpyAsync(call, to: u64, from: u64, bytes: usize, stream: u64) {
        call.driver.copy(call.context, Way::Any, Ends { to, from, bytes }, stream)
    }

    Context cuMemcpy2DAsync_v2(call, copy: In<Copy2d>, stream: u64) {
        call.driver.copy_2d(call.context, &copy.get()?, stream)
    }

    Context cuMemcpyBatchAsync(
        call,
        to: In<u64>,
        from: In<u64>,
        bytes: In<usize>,
        count: usize,
        attributes: In<CopyAttributes>,
        first_of: In<usize>,
        num_attributes: usize,
        fail_index: Out<usize>,
        stream: u64
    ) {
        let batch = Batch { to, from, bytes, count, attributes, first_of, num_attributes };
        call.driver.copy_batch(call.context, &batch, fail_index, stream)
    }

    Context cuMemcpyBatchAsync_v2(
        call,
        to: In<u64>,
        from: In<u64>,
        bytes: In<usize>,
        count: usize,
        attributes: In<CopyAttributes>,
        first_of: In<usize>,
        num_attributes: usize,
        stream: u64
    ) {
        let batch = Batch { to, from, bytes, count, attributes, first_of, num_attributes };
        call.driver.copy_batch(call.context, &batch, Out::nowhere(), stream)
    }

    Context cuMemsetD8_v2(call, address: u64, value: u8, count: usize) {
        match fill(call, address, &[value], count, 0)? {
            Some(point) => call.driver.wait_until(call.context, |_| point.is_passed()),
            None => Ok(()),
        }
    }

    Context cuMemsetD8Async(call, address: u64, value: u8, count: usize, stream: u64) {
        fill(call, address, &[value], count, stream).map(|_| ())
    }

    Context cuMemsetD32Async(call, address: u64, value: u32, count: usize, stream: u64) {
        fill(call, address, &value.to_ne_bytes(), count, stream).map(|_| ())
    }
}

fn fill(call: &Call, address: u64, unit: &[u8], count: usize, stream: u64) -> Result<Option<Point>, Code> {
    let mut state = call.driver.lock();
    if count == 0 {
        return Ok(None);
    }
    let bytes = count.checked_mul(unit.len()).ok_or(Code::INVALID_VALUE)?;
    let is_aligned = address.is_multiple_of(unit.len() as u64);
    let place = state.place(call.context, address, bytes)?;
    if !is_aligned || !matches!(place.side, Side::Device(_)) {
        return Err(Code::INVALID_VALUE);
    }
    let work = Work::Fill(Fill { to: place.span, address, unit: unit.to_vec() });
    state.enqueue(call.context, stream, work).map(Some)
}
