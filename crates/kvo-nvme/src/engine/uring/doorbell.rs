//! How a thread that waits for its ring learns that there is work: without spinning, and without a time limit.
//!
//! ```text
//!   producer                            ring thread
//!
//!   put work into the queue             say that it parks
//!   ── fence ──                         ── fence ──
//!   does it park? then ring             is there work? then do not wait
//!                                       wait; say that it does not park
//! ```
//!
//! Of the two that come last, the producer's question or the thread's, at least one is answered with yes; so no work
//! is left behind while the thread waits. While the thread works, its queue costs producers no call to the system.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::atomic::{AtomicBool, Ordering, fence},
};

use rustix::event::{EventfdFlags, eventfd};

/// Whether the thread parks: the handshake alone, without the system.
#[derive(Debug, Default)]
pub(super) struct Parking {
    parks: AtomicBool,
}

impl Parking {
    /// The thread is about to wait. It must ask for work once more after this, and before it waits.
    pub(super) fn park(&self) {
        self.parks.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// The thread does not wait any more.
    pub(super) fn unpark(&self) {
        self.parks.store(false, Ordering::SeqCst);
    }

    /// Whether the thread has to be woken for work that was put into its queue before; says so to one producer only.
    #[must_use]
    pub(super) fn has_to_be_woken(&self) -> bool {
        fence(Ordering::SeqCst);
        self.parks.load(Ordering::SeqCst) && self.parks.swap(false, Ordering::SeqCst)
    }
}

/// The handshake, and the `eventfd` that the ring of the thread reads.
#[derive(Debug)]
pub(super) struct Doorbell {
    parking: Parking,
    fd: OwnedFd,
}

impl Doorbell {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self { parking: Parking::default(), fd: eventfd(0, EventfdFlags::CLOEXEC)? })
    }

    pub(super) fn parking(&self) -> &Parking {
        &self.parking
    }

    /// Wakes the thread, if it waits, for work that was put into its queue before.
    pub(super) fn ring(&self) {
        if self.parking.has_to_be_woken() {
            self.ring_anyway();
        }
    }

    /// Makes the thread's read of the descriptor end.
    pub(super) fn ring_anyway(&self) {
        // It cannot fail: the descriptor is ours, and its count never gets near its end.
        let _ = rustix::io::retry_on_intr(|| rustix::io::write(&self.fd, &1_u64.to_ne_bytes()));
    }
}

impl AsFd for Doorbell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
