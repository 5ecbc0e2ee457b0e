//! The host memory as devices see it: one registration in pieces for all devices of the process.
//!
//! It is registered in pieces, since the driver refuses, or takes very long for, one that is huge. They end on borders
//! of slots, as no copy may cross one. If one is refused, those before it are taken back and the memory is pageable:
//! the driver then copies through buffers of its own, slower and with a thread that waits, but right.

use std::{
    ops::Range,
    sync::{Arc, Condvar, Mutex, PoisonError, Weak},
    thread::Builder,
};

use kvo_core::StableMemory;

use super::{
    codes::DriverCode,
    driver::{CallError, Context, Registration, populate},
    numa::Near,
};

/// What the start of a piece is aligned to, if the slots allow it: the pages that are pinned.
const PAGE_BYTES: usize = 4096;
/// Bytes that a thread has backed with pages at once.
const POPULATE_BYTES: usize = 64 << 20;
const POPULATE_THREADS_MAX: usize = 8;

/// How copies reach the host memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostMode {
    /// It is registered: the device copies on its own.
    Registered,
    /// It is not: the driver copies through buffers of its own, and the device's thread waits meanwhile.
    Pageable {
        /// Why it could not be registered.
        code: DriverCode,
    },
}

/// Registrations of a host memory. Shared by the devices that copy from and to it, each of which keeps them until its own
/// copies are over.
struct HostPool {
    registrations: Vec<Registration>,
    mode: HostMode,
    memory: Arc<dyn StableMemory>,
}

/// The pools of this process: those that devices have, and those whose memory is being unregistered.
static POOLS: Pools = Pools { pools: Mutex::new(Vec::new()), gone: Condvar::new() };

struct Pools {
    pools: Mutex<Vec<(Span, Weak<HostPool>)>>,
    /// One was taken from the list.
    gone: Condvar,
}

/// Where a memory is, and the number of its slots. Two may have the same: then one is made around the other, or both around
/// a third, and what is registered of one is of both.
type Span = (usize, usize, u32);

fn span_of(memory: &Arc<dyn StableMemory>) -> Span {
    let (start, bytes) = memory.span();
    (start.addr().get(), bytes, memory.num_slots())
}

impl HostPool {
    /// The pool of `memory`, made by the first device that asks. Waits for a registration or its end that is under way.
    /// The context is current.
    fn share(
        context: &Arc<Context>,
        memory: &Arc<dyn StableMemory>,
        piece_bytes: usize,
        near: Option<&Near>,
    ) -> Arc<Self> {
        // Held while memory is registered: a second device waits, and finds it done.
        let mut pools = POOLS.pools.lock().unwrap_or_else(PoisonError::into_inner);
        let span = span_of(memory);
        while let Some((_, pool)) = pools.iter().find(|(other, _)| *other == span) {
            if let Some(pool) = pool.upgrade() {
                return pool;
            }
            // Its last device is gone, and parts of it are still registered.
            pools = POOLS.gone.wait(pools).unwrap_or_else(PoisonError::into_inner);
        }
        let pool = Arc::new(Self::new(context, memory, piece_bytes, near));
        pools.push((span, Arc::downgrade(&pool)));
        pool
    }

    fn new(
        context: &Arc<Context>,
        memory: &Arc<dyn StableMemory>,
        piece_bytes: usize,
        near: Option<&Near>,
    ) -> Self {
        let (_, bytes) = memory.span();
        if let Some(near) = near {
            populate_near(memory, bytes, near);
        }
        let pieces = pieces(bytes, memory.num_slots() as usize, piece_bytes);
        let registered: Result<Vec<_>, CallError> =
            pieces.into_iter().map(|range| Registration::new(context, memory, range)).collect();
        let memory = Arc::clone(memory);
        match registered {
            Ok(registrations) => Self { registrations, mode: HostMode::Registered, memory },
            Err(CallError { code, .. }) => {
                tracing::warn!(%code, bytes, "the host memory is not registered: copies are slower, and block");
                Self { registrations: Vec::new(), mode: HostMode::Pageable { code }, memory }
            }
        }
    }
}

impl Drop for HostPool {
    fn drop(&mut self) {
        // Takes 0.1 s a GB, and no lock.
        self.registrations.clear();
        let span = span_of(&self.memory);
        POOLS.pools.lock().unwrap_or_else(PoisonError::into_inner).retain(|(other, _)| *other != span);
        POOLS.gone.notify_all();
    }
}

/// The host memory as one device sees it, which keeps it registered.
pub(crate) struct DeviceHost {
    pool: Arc<HostPool>,
    /// The device's own, by which it claims slots. The pool's may be another that lies in the same place.
    memory: Arc<dyn StableMemory>,
    /// By registration: the address by which this device knows its first byte, if the driver says so. Another device may
    /// know it by another.
    starts: Vec<Option<u64>>,
}

impl DeviceHost {
    /// `memory` as the device of this context sees it, which is current. The first device that asks registers it.
    pub(crate) fn share(
        context: &Arc<Context>,
        memory: &Arc<dyn StableMemory>,
        piece_bytes: usize,
        near: Option<&Near>,
    ) -> Self {
        let pool = HostPool::share(context, memory, piece_bytes, near);
        let starts = pool.registrations.iter().map(|piece| piece.device_address(context)).collect();
        Self { pool, memory: Arc::clone(memory), starts }
    }

    pub(crate) fn memory(&self) -> &Arc<dyn StableMemory> {
        &self.memory
    }

    pub(crate) fn mode(&self) -> HostMode {
        self.pool.mode
    }

    pub(crate) fn num_pieces(&self) -> usize {
        self.pool.registrations.len()
    }

    /// Whether `bytes` bytes are registered as one.
    pub(crate) fn is_in_one_piece(&self, host: *const u8, bytes: usize) -> bool {
        self.piece_of(host, bytes).is_some()
    }

    /// The address by which the device knows `bytes` bytes that are registered as one.
    pub(crate) fn device_address(&self, host: *const u8, bytes: usize) -> Option<u64> {
        let (piece, offset) = self.piece_of(host, bytes)?;
        self.starts[piece].map(|start| start + offset as u64)
    }

    /// The registration that has `bytes` bytes, and where they start in it.
    fn piece_of(&self, host: *const u8, bytes: usize) -> Option<(usize, usize)> {
        let pieces = &self.pool.registrations;
        let offset = host.addr().checked_sub(self.memory.span().0.as_ptr().addr())?;
        let piece = pieces.partition_point(|piece| piece.range().start <= offset).checked_sub(1)?;
        let range = pieces[piece].range();
        (offset.checked_add(bytes)? <= range.end).then(|| (piece, offset - range.start))
    }
}

/// Cuts a span of slots into pieces of at most `piece_bytes`, or of one slot if that is longer; they end on borders of
/// slots, and begin on pages if any border does.
fn pieces(bytes: usize, num_slots: usize, piece_bytes: usize) -> Vec<Range<usize>> {
    if bytes == 0 || num_slots == 0 {
        return Vec::new();
    }
    // The distance of two slots, by the contract of `StableMemory`.
    let stride = bytes / num_slots;
    // So many slots fill whole pages.
    let unit = PAGE_BYTES / gcd(stride, PAGE_BYTES);
    let slots = (piece_bytes / stride.max(1) / unit * unit).max(unit);
    let step = slots.saturating_mul(stride).max(1);
    (0..bytes).step_by(step).map(|start| start..start.saturating_add(step).min(bytes)).collect()
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Has the kernel take the pages of the memory, as far as it has none, from the node of a GPU. Pinned pages never move,
/// so this comes before they are registered.
fn populate_near(memory: &Arc<dyn StableMemory>, bytes: usize, near: &Near) {
    let threads = near.num_cpus().clamp(1, POPULATE_THREADS_MAX);
    let share = bytes.div_ceil(threads).next_multiple_of(POPULATE_BYTES).max(POPULATE_BYTES);
    let parts = (0..bytes).step_by(share).map(|start| start..start.saturating_add(share).min(bytes));
    let bind = || near.bind_thread();
    spread(parts, Builder::new, bind, |part| {
        for start in part.clone().step_by(POPULATE_BYTES) {
            let range = start..(start + POPULATE_BYTES).min(part.end);
            if let Err(error) = populate(memory, &range) {
                tracing::debug!(%error, "pages of the host memory are taken from wherever they come");
                return;
            }
        }
    });
}

/// Has a thread for each part, which calls `begin` before, do the work; this one does it where none can be started.
fn spread(
    parts: impl Iterator<Item = Range<usize>>,
    builder: impl Fn() -> Builder,
    begin: impl Fn() + Sync,
    work: impl Fn(Range<usize>) + Sync,
) {
    let (begin, work) = (&begin, &work);
    std::thread::scope(|scope| {
        for part in parts {
            let own = part.clone();
            let started = builder().spawn_scoped(scope, move || {
                begin();
                work(own);
            });
            if let Err(error) = started {
                tracing::debug!(%error, "a thread could not be started: its pages are taken here");
                work(part);
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_no_thread_can_be_started_for_is_done_here() {
        // More than there are addresses.
        let too_long = || Builder::new().stack_size(1 << 47);
        for (builder, is_here) in [(&too_long as &dyn Fn() -> Builder, true), (&Builder::new, false)] {
            let done = Mutex::new(Vec::new());
            let begun = Mutex::new(0);
            spread(
                [0..3, 3..5].into_iter(),
                builder,
                || *begun.lock().unwrap() += 1,
                |part| done.lock().unwrap().push((part.start, std::thread::current().id())),
            );
            let mut done = done.into_inner().unwrap();
            done.sort_unstable_by_key(|(start, _)| *start);
            assert_eq!(done.iter().map(|(start, _)| *start).collect::<Vec<_>>(), [0, 3]);
            let here = std::thread::current().id();
            assert!(done.iter().all(|(_, thread)| (*thread == here) == is_here));
            assert_eq!(begun.into_inner().unwrap(), if is_here { 0 } else { 2 }, "this thread is not bound");
        }
    }

    #[test]
    fn pieces_end_on_borders_of_slots_and_of_pages() {
        assert_eq!(pieces(4 << 20, 4, 2 << 20), [0..2 << 20, 2 << 20..4 << 20]);
        // A slot that is longer than a piece is a piece.
        assert_eq!(pieces(4 << 20, 4, 1), (0..4).map(|i| i << 20..(i + 1) << 20).collect::<Vec<_>>());
        // Slots at a distance of a page.
        assert_eq!(pieces(3 * 4096, 3, 4096), [0..4096, 4096..8192, 8192..12288]);
        // Slots of 1,024 bytes: a page has four.
        assert_eq!(pieces(8192, 8, 1024), [0..4096, 4096..8192]);
        assert_eq!(pieces(1 << 30, 1, 1 << 20).first(), Some(&(0..1 << 30)));
        assert!(pieces(0, 0, 1).is_empty());
    }

    proptest! {
        /// B46: they end on borders of slots, and do not overlap.
        #[test]
        fn pieces_cover_the_span_once_and_no_slot_is_cut(
            num_slots in 1_usize..200, stride in 1_usize..25_000, piece_bytes in 1_usize..200_000,
        ) {
            let bytes = num_slots * stride;
            let pieces = pieces(bytes, num_slots, piece_bytes);
            prop_assert_eq!(pieces.first().map(|piece| piece.start), Some(0));
            prop_assert_eq!(pieces.last().map(|piece| piece.end), Some(bytes));
            for pair in pieces.windows(2) {
                prop_assert_eq!(pair[0].end, pair[1].start);
                prop_assert_eq!(pair[1].start % stride, 0);
                prop_assert_eq!(pair[1].start % PAGE_BYTES, 0);
            }
            // As short as that allows.
            let unit = stride * (PAGE_BYTES / gcd(stride, PAGE_BYTES));
            prop_assert!(pieces.iter().all(|piece| piece.len() <= piece_bytes.max(unit)));
        }
    }
}
