//! Which chunk goes next, and how much of it: reads first, and few bytes of writes while reads wait.
//!
//! A device that is given many writes serves reads several times slower. So while any read is queued or in flight,
//! only so many bytes of writes are; chunks longer than that are written in pieces. One piece may always be in
//! flight, however many reads there are: so writes are never starved either.

use std::collections::VecDeque;

/// What may be with the kernel at once.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) chunk_bytes: usize,
    pub(super) reads_max: usize,
    pub(super) writes_max: usize,
    pub(super) write_bytes_max: usize,
    pub(super) write_bytes_while_reading_max: usize,
}

/// Pieces of writes are not made smaller than this: it would cost more calls, and spare reads nothing.
const PIECE_BYTES_MIN: usize = 256 << 10;
/// The most reads, and the most writes, that one ring is made for.
const INFLIGHT_MAX: usize = 1024;
/// The most that is asked for at once; the kernel would cut anything much longer.
const ASKED_BYTES_MAX: usize = 1 << 30;

impl Limits {
    pub(super) fn new(
        chunk_bytes: usize,
        reads_max: usize,
        write_bytes_max: u64,
        write_bytes_while_reading_max: u64,
    ) -> Self {
        let usize_of = |bytes| usize::try_from(bytes).unwrap_or(usize::MAX);
        let write_bytes_max = usize_of(write_bytes_max).max(chunk_bytes);
        Self {
            chunk_bytes,
            reads_max: reads_max.clamp(1, INFLIGHT_MAX),
            writes_max: (write_bytes_max / chunk_bytes.max(1)).clamp(1, INFLIGHT_MAX),
            write_bytes_max,
            write_bytes_while_reading_max: usize_of(write_bytes_while_reading_max)
                .clamp(PIECE_BYTES_MIN.min(chunk_bytes), write_bytes_max),
        }
    }

    /// Chunks that are with the kernel at most.
    pub(super) fn inflight_max(&self) -> usize {
        self.reads_max + self.writes_max
    }
}

/// What waits for the kernel, and what is with it.
#[derive(Debug)]
pub(super) struct Schedule<R, W> {
    limits: Limits,
    reads: VecDeque<R>,
    writes: VecDeque<W>,
    reads_inflight: usize,
    writes_inflight: usize,
    write_bytes_inflight: usize,
}

/// A chunk whose turn it is.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Turn<R, W> {
    Read(R),
    Write(W),
}

impl<R, W> Schedule<R, W> {
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            limits,
            reads: VecDeque::new(),
            writes: VecDeque::new(),
            reads_inflight: 0,
            writes_inflight: 0,
            write_bytes_inflight: 0,
        }
    }

    pub(super) fn put_read(&mut self, read: R) {
        self.reads.push_back(read);
    }

    pub(super) fn put_write(&mut self, write: W) {
        self.writes.push_back(write);
    }

    /// The chunk to be given to the kernel now, if any may be. It counts as in flight from here on, until
    /// [`end_read`](Self::end_read) or [`end_write`](Self::end_write); a write goes in pieces.
    pub(super) fn next(&mut self) -> Option<Turn<R, W>> {
        if self.may_read()
            && let Some(read) = self.reads.pop_front()
        {
            self.reads_inflight += 1;
            return Some(Turn::Read(read));
        }
        if self.may_write() {
            let write = self.writes.pop_front()?;
            self.writes_inflight += 1;
            return Some(Turn::Write(write));
        }
        None
    }

    /// How many bytes of a chunk are asked for at once, at most, now.
    pub(super) fn piece_bytes(&self, is_write: bool) -> usize {
        if is_write && self.is_reading() {
            self.limits.write_bytes_while_reading_max.min(ASKED_BYTES_MAX)
        } else {
            ASKED_BYTES_MAX
        }
    }

    /// A piece of a write goes to the kernel.
    pub(super) fn begin_piece(&mut self, bytes: usize) {
        self.write_bytes_inflight += bytes;
    }

    /// The kernel is done with a piece.
    pub(super) fn end_piece(&mut self, bytes: usize) {
        self.write_bytes_inflight -= bytes;
    }

    pub(super) fn end_read(&mut self) {
        self.reads_inflight -= 1;
    }

    pub(super) fn end_write(&mut self) {
        self.writes_inflight -= 1;
    }

    pub(super) fn write_bytes_inflight(&self) -> usize {
        self.write_bytes_inflight
    }

    /// Whether nothing waits and nothing is with the kernel.
    pub(super) fn is_idle(&self) -> bool {
        self.reads.is_empty() && self.writes.is_empty() && self.reads_inflight + self.writes_inflight == 0
    }

    /// Drops what waits.
    pub(super) fn clear(&mut self) {
        self.reads.clear();
        self.writes.clear();
    }

    fn is_reading(&self) -> bool {
        self.reads_inflight > 0 || !self.reads.is_empty()
    }

    /// Whether a read that came now could begin.
    pub(super) fn may_read(&self) -> bool {
        self.reads_inflight < self.limits.reads_max
    }

    /// Whether a write that came now could begin.
    pub(super) fn may_write(&self) -> bool {
        let limits = &self.limits;
        let max =
            if self.is_reading() { limits.write_bytes_while_reading_max } else { limits.write_bytes_max };
        let piece_bytes = limits.chunk_bytes.min(self.piece_bytes(true));
        self.writes_inflight < limits.writes_max
            && (self.writes_inflight == 0 || self.write_bytes_inflight + piece_bytes <= max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    /// 1 MiB chunks, 4 reads, 8 MiB of writes, 2 MiB of them while reading.
    fn schedule(chunk_bytes: usize) -> Schedule<u32, u32> {
        Schedule::new(Limits::new(chunk_bytes, 4, 8 << 20, 2 << 20))
    }

    /// Starts whatever may be started; writes with their first piece.
    fn start(schedule: &mut Schedule<u32, u32>) -> Vec<Turn<u32, u32>> {
        let mut turns = Vec::new();
        while let Some(turn) = schedule.next() {
            if let Turn::Write(_) = turn {
                let bytes = schedule.limits.chunk_bytes.min(schedule.piece_bytes(true));
                schedule.begin_piece(bytes);
            }
            turns.push(turn);
        }
        turns
    }

    #[test]
    fn reads_go_first_and_writes_get_little_while_reads_are_there() {
        let mut schedule = schedule(MIB);
        (0..9).for_each(|n| schedule.put_write(n));
        (10..16).for_each(|n| schedule.put_read(n));
        let turns = start(&mut schedule);
        let reads = (10..14).map(Turn::Read);
        assert_eq!(turns, reads.chain([Turn::Write(0), Turn::Write(1)]).collect::<Vec<_>>());
        assert_eq!(schedule.write_bytes_inflight(), 2 * MIB);
        assert!(!schedule.may_read() && !schedule.may_write());
        schedule.end_read();
        assert_eq!(start(&mut schedule), [Turn::Read(14)]);
        schedule.end_piece(MIB);
        schedule.end_write();
        assert_eq!(start(&mut schedule), [Turn::Write(2)]);
    }

    #[test]
    fn without_reads_writes_get_all_they_may() {
        let mut schedule = schedule(MIB);
        (0..9).for_each(|n| schedule.put_write(n));
        assert_eq!(start(&mut schedule), (0..8).map(Turn::Write).collect::<Vec<_>>());
        assert!(schedule.may_read() && !schedule.may_write());
        assert!(!schedule.is_idle());
    }

    #[test]
    fn the_end_of_the_last_read_lets_the_writes_go() {
        let mut schedule = schedule(MIB);
        (0..9).for_each(|n| schedule.put_write(n));
        schedule.put_read(10);
        assert_eq!(start(&mut schedule).len(), 3);
        schedule.end_read();
        assert_eq!(start(&mut schedule).len(), 6);
        assert_eq!(schedule.write_bytes_inflight(), 8 * MIB);
    }

    #[test]
    fn one_write_goes_however_many_reads_there_are_and_in_pieces() {
        let mut schedule = schedule(5 * MIB);
        (0..100).for_each(|n| schedule.put_read(n));
        schedule.put_write(200);
        schedule.put_write(201);
        assert_eq!(start(&mut schedule).last(), Some(&Turn::Write(200)));
        assert_eq!(schedule.write_bytes_inflight(), 2 * MIB);
        // The next piece of the same chunk.
        schedule.end_piece(2 * MIB);
        assert_eq!(schedule.next(), None, "the chunk is not through yet");
        schedule.begin_piece(2 * MIB);
        schedule.end_piece(2 * MIB);
        schedule.end_write();
        assert_eq!(start(&mut schedule), [Turn::Write(201)]);
    }

    #[test]
    fn a_chunk_longer_than_every_limit_is_written_nonetheless() {
        let mut schedule = Schedule::<u32, u32>::new(Limits::new(64 * MIB, 1, 0, 0));
        schedule.put_write(1);
        schedule.put_write(2);
        assert_eq!(schedule.next(), Some(Turn::Write(1)));
        schedule.begin_piece(64 * MIB);
        assert_eq!(schedule.next(), None);
        schedule.put_read(3);
        assert_eq!(schedule.next(), Some(Turn::Read(3)));
        assert_eq!(schedule.piece_bytes(true), PIECE_BYTES_MIN);
        assert_eq!(schedule.piece_bytes(false), ASKED_BYTES_MAX);
    }

    #[test]
    fn a_ring_is_never_made_for_more_than_it_can_hold() {
        let limits = Limits::new(1, usize::MAX, u64::MAX, u64::MAX);
        assert_eq!(limits.inflight_max(), 2 * INFLIGHT_MAX);
    }
}
