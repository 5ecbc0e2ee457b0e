//! Clocks, and cold caches.

use std::{
    hint::black_box,
    sync::atomic::{AtomicU8, Ordering},
    time::Duration,
};

use rustix::time::{ClockId, clock_gettime};

static MODE: AtomicU8 = AtomicU8::new(TIMED);
const TIMED: u8 = 0;
const UNTIMED: u8 = 1;
const COUNTED: u8 = 2;

/// The CPU time that this thread has used: does not count what other threads and processes did in the meantime.
#[derive(Clone, Copy, Debug)]
pub struct ThreadTime(Duration);

impl ThreadTime {
    /// From now on no time passes: for runs under valgrind, which does not show the clock's page of the kernel.
    pub fn switch_off() {
        MODE.store(UNTIMED, Ordering::Relaxed);
    }

    /// From now on no time passes, and all that would be timed is done by a function of the name `counted`, which a
    /// profiler can be told to count.
    pub fn count() {
        MODE.store(COUNTED, Ordering::Relaxed);
    }

    /// Does some work, and says how many nanoseconds it took.
    ///
    /// # Errors
    /// The work's own.
    pub fn of<E>(work: impl FnOnce() -> Result<(), E>) -> Result<u64, E> {
        if MODE.load(Ordering::Relaxed) == COUNTED {
            return counted(work).map(|()| 0);
        }
        let started = Self::now();
        work()?;
        Ok(started.elapsed_ns())
    }

    /// The time so far.
    pub fn now() -> Self {
        if MODE.load(Ordering::Relaxed) != TIMED {
            return Self(Duration::ZERO);
        }
        let time = clock_gettime(ClockId::ThreadCPUTime);
        // The kernel's are never negative.
        Self(Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0)))
    }

    /// Nanoseconds since then.
    pub fn elapsed_ns(self) -> u64 {
        u64::try_from(Self::now().0.saturating_sub(self.0).as_nanos()).unwrap_or(u64::MAX)
    }
}

/// Never inlined, so that it has its name in a profile.
#[inline(never)]
fn counted<E>(work: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
    work()
}

/// Memory that is walked to put everything else out of the caches and the TLB.
#[derive(Debug)]
pub struct Sweep(Vec<u64>);

impl Sweep {
    const BYTES: usize = 96 << 20;

    /// Of 96 MiB.
    pub fn new() -> Self {
        Self(vec![1; Self::BYTES / size_of::<u64>()])
    }

    /// Walks it once.
    pub fn run(&mut self) {
        for line in self.0.chunks_mut(8) {
            line[0] = line[0].wrapping_add(1);
        }
        black_box(&mut self.0);
    }
}

impl Default for Sweep {
    fn default() -> Self {
        Self::new()
    }
}
