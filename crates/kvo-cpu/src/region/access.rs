//! The access word of a slot: many readers or one writer, among threads that have no lock in common.

use crate::sync::{AtomicU32, Ordering};

/// The word of a slot that is being written.
const WRITING: u32 = u32::MAX;

/// 0 when nobody touches the slot, n while n copies read it, [`WRITING`] while one writes it.
///
/// Whoever claims it sees all that was written under the claims that were given back before, and nobody writes under a
/// claim of somebody else.
#[derive(Debug, Default)]
pub(super) struct AccessWord(AtomicU32);

impl AccessWord {
    /// Claims it for one reader more, unless somebody writes. Says whether it is claimed.
    #[must_use]
    pub(super) fn begin_read(&self) -> bool {
        let mut readers = self.0.load(Ordering::Relaxed);
        // `WRITING` and the largest count of readers both refuse one more.
        while readers < WRITING - 1 {
            match self.0.compare_exchange_weak(readers, readers + 1, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(now) => readers = now,
            }
        }
        false
    }

    /// Claims it for the only writer, if nobody reads or writes. Says whether it is claimed.
    #[must_use]
    pub(super) fn begin_write(&self) -> bool {
        self.0.compare_exchange(0, WRITING, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Gives a reader's claim back.
    pub(super) fn end_read(&self) {
        self.0.fetch_sub(1, Ordering::Release);
    }

    /// Gives the writer's claim back.
    pub(super) fn end_write(&self) {
        self.0.store(0, Ordering::Release);
    }

    /// Whether anybody has a claim, as far as the caller can know: his own, say.
    pub(super) fn is_claimed(&self) -> bool {
        self.0.load(Ordering::Relaxed) != 0
    }
}

#[cfg(all(test, not(kvo_loom)))]
mod tests {
    use super::*;

    #[test]
    fn there_are_many_readers_or_one_writer() {
        let word = AccessWord::default();
        assert!(word.begin_read() && word.begin_read() && !word.begin_write());
        word.end_read();
        assert!(!word.begin_write() && word.is_claimed());
        word.end_read();
        assert!(word.begin_write() && !word.begin_write() && !word.begin_read());
        word.end_write();
        assert!(word.begin_read());
    }

    #[test]
    fn as_many_readers_as_can_be_counted_refuse_one_more() {
        let word = AccessWord(AtomicU32::new(WRITING - 2));
        assert!(word.begin_read());
        assert!(!word.begin_read() && !word.begin_write());
        word.end_read();
        assert!(word.begin_read());
    }
}

#[cfg(all(test, kvo_loom))]
mod interleavings {
    use loom::{cell::UnsafeCell, sync::Arc, thread};

    use super::*;

    /// A slot of two bytes that are the same under every claim.
    #[derive(Default)]
    struct Slot {
        word: AccessWord,
        bytes: UnsafeCell<[u8; 2]>,
    }

    impl Slot {
        /// Reads under a claim, if there is one to be had. The cell reports a read beside a write.
        fn read(&self) -> Option<u8> {
            if !self.word.begin_read() {
                return None;
            }
            // SAFETY: the claim keeps writers out until it is given back below; should it not, the cell says so.
            let [one, other] = self.bytes.with(|bytes| unsafe { *bytes });
            self.word.end_read();
            assert_eq!(one, other, "half of a write was read");
            Some(one)
        }

        /// Adds one to both under a claim, if there is one to be had.
        fn write(&self) -> bool {
            if !self.word.begin_write() {
                return false;
            }
            self.bytes.with_mut(|bytes| {
                // SAFETY: the claim keeps everybody out until it is given back below; should it not, the cell says so.
                let bytes = unsafe { &mut *bytes };
                bytes.iter_mut().for_each(|byte| *byte += 1);
            });
            self.word.end_write();
            true
        }
    }

    /// Some threads write once and some read so often; then the writes that were claimed are all there.
    fn check(writers: usize, readers: usize, reads: usize) {
        loom::model(move || {
            let slot = Arc::new(Slot::default());
            let reading: Vec<_> = (0..readers)
                .map(|_| {
                    let slot = slot.clone();
                    thread::spawn(move || {
                        let found: Vec<u8> = (0..reads).filter_map(|_| slot.read()).collect();
                        assert!(found.is_sorted(), "{found:?}");
                    })
                })
                .collect();
            let writing: Vec<_> = (1..writers)
                .map(|_| {
                    let slot = slot.clone();
                    thread::spawn(move || u8::from(slot.write()))
                })
                .collect();
            let mut written = u8::from(slot.write());
            written += writing.into_iter().map(|thread| thread.join().unwrap()).sum::<u8>();
            reading.into_iter().for_each(|thread| thread.join().unwrap());
            assert_eq!(slot.read(), Some(written), "all claims have been given back");
            assert!(!slot.word.is_claimed());
        });
    }

    #[test]
    fn nobody_touches_a_slot_beside_its_writer() {
        check(1, 1, 2);
        check(2, 0, 0);
        check(2, 1, 1);
        check(1, 2, 1);
    }
}
