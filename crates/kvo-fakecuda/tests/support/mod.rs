//! What the tests of the fake driver share.

#![allow(dead_code, reason = "each test binary uses some of it")]
#![allow(missing_docs, unreachable_pub, reason = "for tests")]

pub mod raw;

use kvo_fakecuda::{Exclusive, FakeDriver};

/// A device that is initialised, with its context bound to this thread, for one test alone.
pub struct Bound {
    pub fake: Exclusive,
    pub context: u64,
}

/// The driver, not initialised yet.
pub fn fake() -> Exclusive {
    FakeDriver::load().expect("cargo builds the library for this test").exclusive()
}

pub fn bound() -> Bound {
    let fake = fake();
    raw::init().expect("cuInit");
    let context = raw::retain(0).expect("retain");
    raw::set_current(context).expect("bind");
    Bound { fake, context }
}

#[allow(clippy::unused_self, reason = "as long as it is there, a context is bound")]
impl Bound {
    /// A stream that pays no regard to the NULL stream.
    pub fn stream(&self) -> u64 {
        raw::stream_create(1, 0).expect("stream")
    }

    pub fn event(&self) -> u64 {
        raw::event_create(2).expect("event")
    }

    pub fn alloc(&self, bytes: usize) -> u64 {
        raw::alloc(bytes).expect("alloc")
    }

    /// Registered memory of the host: its address.
    pub fn host(&self, bytes: usize) -> u64 {
        let start = raw::host(bytes).as_mut_ptr() as u64;
        raw::register(start, bytes, 3).expect("register");
        start
    }

    pub fn on_device(&self, address: u64, bytes: usize) -> Vec<u8> {
        let mut seen = vec![0; bytes];
        assert!(self.fake.read_device(address, &mut seen), "{address:#x} is not allocated");
        seen
    }

    /// Fills device memory with a pattern, past the driver.
    pub fn put_pattern(&self, address: u64, bytes: usize, seed: u64) {
        assert!(self.fake.write_device(address, &pattern(seed, bytes)));
    }
}

pub fn pattern(seed: u64, bytes: usize) -> Vec<u8> {
    (0..bytes as u64).map(|index| FakeDriver::pattern(seed, index)).collect()
}
