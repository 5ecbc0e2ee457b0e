//! Whether a ring does what it says: one page of the file is read, written as it was, and read again.

use std::io;

use super::{
    device::Purpose,
    ring::{Buffer, On, PAGE_BYTES, Page, Ring, Transfer},
};
use crate::progress::{Progress, Step, Way};

/// A page of the file that nothing uses: between its header and its first slot.
const PROBE_OFFSET: u64 = 1 << 20;

/// Tries the ring, which is idle and is idle again afterwards.
///
/// # Errors
/// What did not work, and the error.
pub(super) fn run(ring: &mut Ring<Purpose>) -> Result<(), (&'static str, io::Error)> {
    let page = Box::new(Page([0; PAGE_BYTES]));
    let page = transfer(ring, Way::Read, page).map_err(|error| ("read a page", error))?;
    let before = page.0;
    let page = transfer(ring, Way::Write, page).map_err(|error| ("write a page", error))?;
    let page = transfer(ring, Way::Read, page).map_err(|error| ("read a page again", error))?;
    if page.0 == before { Ok(()) } else { Err(("read what was written", io::ErrorKind::InvalidData.into())) }
}

fn transfer(ring: &mut Ring<Purpose>, way: Way, mut page: Box<Page>) -> io::Result<Box<Page>> {
    let mut progress = Progress::new(way, PAGE_BYTES);
    loop {
        let range = progress.rest(PAGE_BYTES);
        let (offset, buffer) = (PROBE_OFFSET + range.start as u64, Buffer::Page(page));
        ring.push(Transfer { way, on: On::Data, offset, range, buffer, state: Purpose::Probe });
        let completion = loop {
            ring.enter(true)?;
            if let Some(completion) = ring.reap() {
                break completion;
            }
        };
        let Buffer::Page(back) = completion.buffer else { unreachable!("it was a page that was pushed") };
        page = back;
        match progress.take(completion.asked, completion.result) {
            Step::Done => return Ok(page),
            Step::Failed(error) => return Err(error),
            Step::Next | Step::Short | Step::Retry => {}
        }
    }
}
