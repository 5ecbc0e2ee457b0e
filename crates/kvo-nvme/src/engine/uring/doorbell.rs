//! How a thread that waits for its ring learns that there is work: without spinning, and without a time limit.
//!
//! ```text
//!   producer                            ring thread
//!
//!   put work into the queue             say what it wants to be woken for
//!   ── fence ──                         ── fence ──
//!   is it wanted? then ring             is there work? then do not wait
//!                                       wait; want nothing any more
//! ```
//!
//! Of the two that come last, the producer's question or the thread's, at least one is answered with yes; so no work
//! is left behind while the thread waits. While it works, or could not begin more of this kind, its queue costs producers
//! no call to the system.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use rustix::event::{EventfdFlags, eventfd};

use crate::sync::{AtomicU8, Ordering, fence};

/// What a waiting thread is to be woken for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WakeFor(u8);

impl WakeFor {
    /// A thread that has all the kernel may have at once learns of new work when something ends.
    pub(super) const NOTHING: Self = Self(0);
    pub(super) const READS: Self = Self(1);
    /// Writes that have no checksum yet.
    pub(super) const WRITES: Self = Self(2);
    /// Writes that have one, or will have none.
    pub(super) const SUMS: Self = Self(4);
    pub(super) const ANYTHING: Self = Self(7);

    /// What a thread wants to be woken for that could do something with these.
    pub(super) fn of(reads: bool, writes: bool, sums: bool) -> Self {
        let bit = |wanted: bool, bit: Self| if wanted { bit.0 } else { 0 };
        Self(bit(reads, Self::READS) | bit(writes, Self::WRITES) | bit(sums, Self::SUMS))
    }
}

/// What the thread is to be woken for: the handshake alone, without the system.
#[derive(Debug, Default)]
pub(super) struct Parking {
    /// Bits of [`WakeFor`]; none while the thread works.
    wanted: AtomicU8,
}

impl Parking {
    /// The thread is about to wait, unless there is work: it must look for some after this, and before it waits.
    pub(super) fn park(&self, wake_for: WakeFor) {
        self.wanted.store(wake_for.0, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// The thread does not wait any more.
    pub(super) fn unpark(&self) {
        // A store would do, and cost as much; but loom would have it that a producer's change, which came before it, may
        // also come after the next `park`.
        self.wanted.swap(0, Ordering::SeqCst);
    }

    /// Whether the thread has to be woken for `work` that was put into its queue before; says so to one producer
    /// only.
    #[must_use]
    pub(super) fn has_to_be_woken(&self, work: WakeFor) -> bool {
        fence(Ordering::SeqCst);
        // What is wanted is taken by whoever rings, and by nobody else: the thread may wait for other work by now, and
        // who puts that must find it wanted.
        let taken = |wanted| (wanted & work.0 != 0).then_some(0);
        self.wanted.fetch_update(Ordering::SeqCst, Ordering::SeqCst, taken).is_ok()
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

    /// Wakes the thread, if it waits for such work, which was put into its queue before.
    pub(super) fn ring(&self, work: WakeFor) {
        if self.parking.has_to_be_woken(work) {
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

#[cfg(all(test, not(kvo_loom)))]
mod tests {
    use super::*;

    /// Whether a thread that wants `wanted` is woken for `work`.
    #[track_caller]
    fn check(wanted: WakeFor, work: WakeFor, woken: bool) {
        let parking = Parking::default();
        parking.park(wanted);
        assert_eq!(parking.has_to_be_woken(work), woken);
        // Once is enough, and a thread that was not woken still wants it.
        assert!(!parking.has_to_be_woken(work));
        assert_eq!(parking.has_to_be_woken(wanted), !woken && wanted != WakeFor::NOTHING);
    }

    #[test]
    fn a_thread_is_woken_once_and_only_for_what_it_wants() {
        check(WakeFor::ANYTHING, WakeFor::READS, true);
        check(WakeFor::READS, WakeFor::READS, true);
        check(WakeFor::WRITES, WakeFor::ANYTHING, true);
        check(WakeFor::WRITES, WakeFor::READS, false);
        check(WakeFor::SUMS, WakeFor::WRITES, false);
        check(WakeFor::of(true, false, true), WakeFor::SUMS, true);
        check(WakeFor::NOTHING, WakeFor::ANYTHING, false);
        assert_eq!(WakeFor::of(true, false, false), WakeFor::READS);
        assert_eq!(WakeFor::of(false, true, false), WakeFor::WRITES);
        assert_eq!(WakeFor::of(false, false, true), WakeFor::SUMS);
        assert_eq!(WakeFor::of(true, true, true), WakeFor::ANYTHING);
    }
}

#[cfg(all(test, kvo_loom))]
mod interleavings {
    use loom::{
        sync::{
            Arc,
            atomic::{AtomicUsize, Ordering},
        },
        thread,
    };

    use super::*;

    /// The thread parks while producers put work: whatever it did not see before it waits wakes it, and once.
    fn check(works: &'static [WakeFor]) {
        let num_producers = works.len();
        loom::model(move || {
            let parking = Arc::new(Parking::default());
            let (queue, rung) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
            let producers: Vec<_> = works
                .iter()
                .map(|&work| {
                    let (parking, queue, rung) = (parking.clone(), queue.clone(), rung.clone());
                    thread::spawn(move || {
                        queue.fetch_add(1, Ordering::Relaxed);
                        if parking.has_to_be_woken(work) {
                            rung.fetch_add(1, Ordering::Relaxed);
                        }
                    })
                })
                .collect();
            parking.park(WakeFor::ANYTHING);
            let seen = queue.load(Ordering::Relaxed);
            producers.into_iter().for_each(|producer| producer.join().unwrap());
            let rung = rung.load(Ordering::Relaxed);
            assert!(rung <= 1, "one call is enough");
            assert!(seen == num_producers || rung == 1, "saw {seen} of {num_producers} and sleeps");
        });
    }

    /// The thread parks, is woken by something else, and parks for other work, while producers put both kinds.
    fn check_twice(first: WakeFor, second: WakeFor) {
        loom::model(move || {
            let parking = Arc::new(Parking::default());
            let queues = [first, second].map(|work| (work, Arc::new(AtomicUsize::new(0))));
            let rung = Arc::new(AtomicUsize::new(0));
            let producers = queues.clone().map(|(work, queue)| {
                let (parking, rung) = (parking.clone(), rung.clone());
                thread::spawn(move || {
                    queue.fetch_add(1, Ordering::Relaxed);
                    if parking.has_to_be_woken(work) {
                        rung.fetch_add(1, Ordering::Relaxed);
                    }
                })
            });
            parking.park(first);
            parking.unpark();
            // What was heard until here does not end the second wait.
            rung.swap(0, Ordering::Relaxed);
            parking.park(second);
            let seen = queues[1].1.load(Ordering::Relaxed);
            producers.into_iter().for_each(|producer| producer.join().unwrap());
            let rung = rung.load(Ordering::Relaxed);
            assert!(
                seen == 1 || rung > 0,
                "{second:?} was put, not seen while {first:?} was waited for before, and not told"
            );
        });
    }

    #[test]
    fn a_producer_that_comes_late_to_one_wait_does_not_silence_the_next() {
        check_twice(WakeFor::READS, WakeFor::WRITES);
        check_twice(WakeFor::WRITES, WakeFor::WRITES);
    }

    #[test]
    fn no_work_is_left_behind_by_a_thread_that_parks() {
        check(&[WakeFor::READS]);
        check(&[WakeFor::READS, WakeFor::READS]);
        check(&[WakeFor::WRITES, WakeFor::SUMS]);
    }
}
