//! Memory on both sides to try copies with.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use kvo_core::RegionId;

use super::{HostCopy, pinned::Pinned};
use crate::cuda::{
    codes::DriverCode,
    driver::{CallError, Context, Event, Stream},
};

/// In the driver's words: it took too long.
const TIMEOUT: DriverCode = DriverCode(909);

/// As many bytes on the host, registered, as on the device. Copies are over before a call returns, so the bytes are
/// anybody's in between.
pub(crate) struct Scratch {
    context: Arc<Context>,
    host: Pinned,
    device: u64,
    event: Event,
    /// The driver may still copy: nothing of it is freed.
    is_lost: bool,
}

/// A copy within a scratch, in bytes from the start of each side.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ScratchCopy {
    pub(crate) device: usize,
    pub(crate) host: usize,
    pub(crate) bytes: usize,
}

impl Scratch {
    /// Bytes of 0 on the host. The context is current, and stays so while there is a scratch.
    pub(crate) fn new(context: &Arc<Context>, bytes: usize) -> Result<Self, CallError> {
        let host = Pinned::new(context, bytes)?;
        let event = context.event()?;
        let device = context.allocate(bytes)?;
        Ok(Self { context: Arc::clone(context), host, device, event, is_lost: false })
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    pub(crate) fn host(&mut self) -> &mut [u8] {
        self.host.all()
    }

    /// Whether copies may still be under way.
    pub(crate) fn is_lost(&self) -> bool {
        self.is_lost
    }

    /// The address by which the device knows the host's side of a copy.
    pub(crate) fn device_address(&mut self) -> impl Fn(&HostCopy) -> u64 + use<> {
        let (first, device) = (self.host.first().addr().get(), self.host.device());
        move |copy| device + (copy.host.addr() - first) as u64
    }

    /// Has `put` put the copies on `stream`, waits for up to `timeout` until they are over, and says how long it took.
    /// No two of them write the same bytes. If they do not end, the scratch is leaked.
    pub(crate) fn run(
        &mut self,
        copies: &[ScratchCopy],
        stream: &Stream,
        timeout: Duration,
        put: impl FnOnce(&[HostCopy]) -> Result<(), CallError>,
    ) -> Result<Duration, CallError> {
        let copies: Vec<HostCopy> = copies.iter().map(|copy| self.place(*copy)).collect();
        let start = Instant::now();
        self.is_lost = true;
        let put = put(&copies);
        self.event.record(stream)?;
        while !self.event.has_passed()? {
            if start.elapsed() > timeout {
                return Err(CallError { call: "waiting for copies", code: TIMEOUT });
            }
            std::hint::spin_loop();
        }
        self.is_lost = false;
        put.map(|()| start.elapsed())
    }

    fn place(&mut self, ScratchCopy { device, host, bytes }: ScratchCopy) -> HostCopy {
        assert!(device + bytes <= self.host.bytes(), "{bytes} bytes at {device} of {}", self.host.bytes());
        let host = self.host()[host..][..bytes].as_mut_ptr();
        HostCopy { allocation: (RegionId(0), 0), device: self.device + device as u64, host, bytes }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if self.is_lost || self.context.broken().is_some() {
            self.host.leak();
            return;
        }
        // SAFETY: every copy is over when `run` returns, unless the scratch is lost; it is freed once.
        if let Err(error) = unsafe { self.context.free(self.device) } {
            tracing::debug!(%error, "memory to try copies with was not given back");
        }
    }
}
