//! Which chunk goes next, and how much of it: reads first, and few bytes of writes while reads wait.
//!
//! Writes are prepared before they go: their slots are claimed and their checksums made. That is done for few chunks
//! ahead of the kernel, so that their bytes are still in the processor's caches when the device fetches them, and so that
//! a device that hangs holds few claims, however many writes wait.
//!
//! ```text
//!   put_write ──▶ waiting ──next_to_prepare──▶ being prepared ──put_prepared──▶ prepared ──next──▶ with the kernel
//!                                             └────────── at most ahead_max ──────────┘
//! ```
//!
//! A device that is given many writes serves reads several times slower. So while any read is queued or in flight, and
//! shortly after, only so many bytes of writes are; chunks longer than that are written in pieces. One piece may always
//! be in flight, however many reads there are: so writes are never starved either.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

/// What may be with the kernel at once.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) chunk_bytes: usize,
    pub(super) reads_max: usize,
    pub(super) writes_max: usize,
    /// Chunks that are being prepared, or are prepared and wait.
    pub(super) ahead_max: usize,
    pub(super) write_bytes_max: usize,
    pub(super) write_bytes_while_reading_max: usize,
}

/// Pieces of writes are not made smaller than this: it would cost more calls, and spare reads nothing.
const PIECE_BYTES_MIN: usize = 256 << 10;
/// How long after a read its like are expected. Whoever reads uses what came before it asks for more; a window full of
/// writes that began meanwhile would be in the way.
const READS_LINGER: Duration = Duration::from_millis(10);
/// The most reads, and the most writes, that one ring is made for.
const INFLIGHT_MAX: usize = 1024;
/// The most that is asked for at once; the kernel would cut anything much longer.
const ASKED_BYTES_MAX: usize = 1 << 30;
/// Chunks that are prepared ahead, besides as many as the kernel may take at once.
const AHEAD_MORE: usize = 2;

impl Limits {
    pub(super) fn new(
        chunk_bytes: usize,
        reads_max: usize,
        write_bytes_max: u64,
        write_bytes_while_reading_max: u64,
    ) -> Self {
        let usize_of = |bytes| usize::try_from(bytes).unwrap_or(usize::MAX);
        let write_bytes_max = usize_of(write_bytes_max).max(chunk_bytes);
        let writes_max = (write_bytes_max / chunk_bytes.max(1)).clamp(1, INFLIGHT_MAX);
        Self {
            chunk_bytes,
            reads_max: reads_max.clamp(1, INFLIGHT_MAX),
            writes_max,
            ahead_max: writes_max + AHEAD_MORE,
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
pub(super) struct Schedule<R, W, P> {
    limits: Limits,
    reads: VecDeque<R>,
    writes: VecDeque<W>,
    preparing: usize,
    prepared: VecDeque<P>,
    /// Whether there is to be as much prepared ahead as may be; from half of it downwards.
    is_filling: bool,
    reads_inflight: usize,
    writes_inflight: usize,
    write_bytes_inflight: usize,
    read_ended: Option<Instant>,
}

/// A chunk whose turn it is.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Turn<R, P> {
    Read(R),
    Write(P),
}

impl<R, W, P> Schedule<R, W, P> {
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            limits,
            reads: VecDeque::new(),
            writes: VecDeque::new(),
            preparing: 0,
            prepared: VecDeque::new(),
            is_filling: true,
            reads_inflight: 0,
            writes_inflight: 0,
            write_bytes_inflight: 0,
            read_ended: None,
        }
    }

    pub(super) fn put_read(&mut self, read: R) {
        self.reads.push_back(read);
    }

    pub(super) fn put_write(&mut self, write: W) {
        self.writes.push_back(write);
    }

    /// The write to be prepared now, if any may be. It counts as such until [`put_prepared`](Self::put_prepared) or
    /// [`end_preparing`](Self::end_preparing).
    pub(super) fn next_to_prepare(&mut self) -> Option<W> {
        if !self.may_prepare() {
            return None;
        }
        let write = self.writes.pop_front()?;
        self.preparing += 1;
        self.is_filling = self.ahead() < self.limits.ahead_max;
        Some(write)
    }

    pub(super) fn put_prepared(&mut self, write: P) {
        self.end_preparing();
        self.prepared.push_back(write);
    }

    /// A write that was being prepared will not be written.
    pub(super) fn end_preparing(&mut self) {
        self.preparing -= 1;
    }

    /// The chunk to be given to the kernel now, if any may be. It counts as in flight from here on, until
    /// [`end_read`](Self::end_read) or [`end_write`](Self::end_write); a write goes in pieces.
    pub(super) fn next(&mut self, now: Instant) -> Option<Turn<R, P>> {
        if self.may_read()
            && let Some(read) = self.reads.pop_front()
        {
            self.reads_inflight += 1;
            return Some(Turn::Read(read));
        }
        if self.may_write(now) {
            let write = self.prepared.pop_front()?;
            self.writes_inflight += 1;
            return Some(Turn::Write(write));
        }
        None
    }

    /// How many bytes of a chunk are asked for at once, at most, now.
    pub(super) fn piece_bytes(&self, is_write: bool, now: Instant) -> usize {
        if is_write && self.is_reading(now) {
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

    pub(super) fn end_read(&mut self, now: Instant) {
        self.reads_inflight -= 1;
        self.read_ended = Some(now);
    }

    pub(super) fn end_write(&mut self) {
        self.writes_inflight -= 1;
    }

    pub(super) fn write_bytes_inflight(&self) -> usize {
        self.write_bytes_inflight
    }

    /// Writes that are being prepared, or are prepared and wait.
    pub(super) fn ahead(&self) -> usize {
        self.preparing + self.prepared.len()
    }

    /// Whether nothing waits, nothing is being prepared, and nothing is with the kernel.
    pub(super) fn is_idle(&self) -> bool {
        self.reads.is_empty() && self.writes.is_empty() && self.ahead() == 0 && !self.is_any_inflight()
    }

    /// Whether the kernel will have something to say.
    pub(super) fn is_any_inflight(&self) -> bool {
        self.reads_inflight + self.writes_inflight > 0
    }

    /// Drops what waits.
    pub(super) fn clear(&mut self) {
        self.reads.clear();
        self.writes.clear();
        self.prepared.clear();
    }

    /// Whether reads are there, or were so lately that more are to be expected.
    fn is_reading(&self, now: Instant) -> bool {
        let is_lately = |ended| now.saturating_duration_since(ended) < READS_LINGER;
        self.reads_inflight > 0 || !self.reads.is_empty() || self.read_ended.is_some_and(is_lately)
    }

    /// Whether a read that came now could begin.
    pub(super) fn may_read(&self) -> bool {
        self.reads_inflight < self.limits.reads_max
    }

    /// Whether a write that came now could be prepared. After the window was full, it is so only when half of it is
    /// used up: several writes at once cost whoever prepares them one waking. If not, one is ahead.
    pub(super) fn may_prepare(&self) -> bool {
        self.is_filling || self.ahead() <= self.limits.ahead_max / 2
    }

    /// Whether a write that was prepared now could begin. If not, one is with the kernel.
    pub(super) fn may_write(&self, now: Instant) -> bool {
        let limits = &self.limits;
        let max =
            if self.is_reading(now) { limits.write_bytes_while_reading_max } else { limits.write_bytes_max };
        let piece_bytes = limits.chunk_bytes.min(self.piece_bytes(true, now));
        self.writes_inflight < limits.writes_max
            && (self.writes_inflight == 0 || self.write_bytes_inflight + piece_bytes <= max)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use super::*;

    const MIB: usize = 1 << 20;

    /// The time of every call, where a test is not about time.
    fn now() -> Instant {
        static NOW: LazyLock<Instant> = LazyLock::new(Instant::now);
        *NOW
    }

    /// 1 MiB chunks, 4 reads, 8 MiB of writes, 2 MiB of them while reading.
    fn schedule(chunk_bytes: usize) -> Schedule<u32, u32, u32> {
        Schedule::new(Limits::new(chunk_bytes, 4, 8 << 20, 2 << 20))
    }

    /// Puts a write, and has it prepared at once.
    fn put_prepared(schedule: &mut Schedule<u32, u32, u32>, write: u32) {
        schedule.put_write(write);
        let write = schedule.next_to_prepare().unwrap();
        schedule.put_prepared(write);
    }

    /// Starts whatever may be started; writes with their first piece.
    fn start(schedule: &mut Schedule<u32, u32, u32>) -> Vec<Turn<u32, u32>> {
        let mut turns = Vec::new();
        while let Some(turn) = schedule.next(now()) {
            if let Turn::Write(_) = turn {
                let bytes = schedule.limits.chunk_bytes.min(schedule.piece_bytes(true, now()));
                schedule.begin_piece(bytes);
            }
            turns.push(turn);
        }
        turns
    }

    #[test]
    fn reads_go_first_and_writes_get_little_while_reads_are_there() {
        let mut schedule = schedule(MIB);
        (0..9).for_each(|n| put_prepared(&mut schedule, n));
        (10..16).for_each(|n| schedule.put_read(n));
        let turns = start(&mut schedule);
        let reads = (10..14).map(Turn::Read);
        assert_eq!(turns, reads.chain([Turn::Write(0), Turn::Write(1)]).collect::<Vec<_>>());
        assert_eq!(schedule.write_bytes_inflight(), 2 * MIB);
        assert!(!schedule.may_read() && !schedule.may_write(now()));
        schedule.end_read(now());
        assert_eq!(start(&mut schedule), [Turn::Read(14)]);
        schedule.end_piece(MIB);
        schedule.end_write();
        assert_eq!(start(&mut schedule), [Turn::Write(2)]);
    }

    #[test]
    fn without_reads_writes_get_all_they_may() {
        let mut schedule = schedule(MIB);
        (0..9).for_each(|n| put_prepared(&mut schedule, n));
        assert_eq!(start(&mut schedule), (0..8).map(Turn::Write).collect::<Vec<_>>());
        assert!(schedule.may_read() && !schedule.may_write(now()));
        assert!(!schedule.is_idle());
    }

    #[test]
    fn some_time_after_the_last_read_the_writes_may_go() {
        let mut schedule = schedule(MIB);
        (0..9).for_each(|n| put_prepared(&mut schedule, n));
        schedule.put_read(10);
        assert_eq!(start(&mut schedule).len(), 3);
        schedule.end_read(now());
        let soon = now() + READS_LINGER.mul_f64(0.9);
        assert_eq!((schedule.may_write(soon), schedule.piece_bytes(true, soon)), (false, 2 * MIB));
        schedule.end_piece(MIB);
        schedule.end_write();
        assert!(schedule.may_write(soon), "as many as while reading");

        let then = now() + READS_LINGER;
        while let Some(turn) = schedule.next(then) {
            assert!(matches!(turn, Turn::Write(_)), "{turn:?}");
            schedule.begin_piece(MIB);
        }
        assert_eq!(schedule.write_bytes_inflight(), 8 * MIB);
    }

    #[test]
    fn one_write_goes_however_many_reads_there_are_and_in_pieces() {
        let mut schedule = schedule(5 * MIB);
        (0..100).for_each(|n| schedule.put_read(n));
        put_prepared(&mut schedule, 200);
        put_prepared(&mut schedule, 201);
        assert_eq!(start(&mut schedule).last(), Some(&Turn::Write(200)));
        assert_eq!(schedule.write_bytes_inflight(), 2 * MIB);
        // The next piece of the same chunk.
        schedule.end_piece(2 * MIB);
        assert_eq!(schedule.next(now()), None, "the chunk is not through yet");
        schedule.begin_piece(2 * MIB);
        schedule.end_piece(2 * MIB);
        schedule.end_write();
        assert_eq!(start(&mut schedule), [Turn::Write(201)]);
    }

    #[test]
    fn a_chunk_longer_than_every_limit_is_written_nonetheless() {
        let mut schedule = Schedule::new(Limits::new(64 * MIB, 1, 0, 0));
        put_prepared(&mut schedule, 1);
        put_prepared(&mut schedule, 2);
        assert_eq!(schedule.next(now()), Some(Turn::Write(1)));
        schedule.begin_piece(64 * MIB);
        assert_eq!(schedule.next(now()), None);
        schedule.put_read(3);
        assert_eq!(schedule.next(now()), Some(Turn::Read(3)));
        assert_eq!(schedule.piece_bytes(true, now()), PIECE_BYTES_MIN);
        assert_eq!(schedule.piece_bytes(false, now()), ASKED_BYTES_MAX);
    }

    #[test]
    fn writes_are_prepared_in_turn_and_no_further_ahead_than_the_window() {
        let mut schedule = schedule(MIB);
        (0..20).for_each(|n| schedule.put_write(n));
        let given: Vec<u32> = std::iter::from_fn(|| schedule.next_to_prepare()).collect();
        assert_eq!(given, (0..10).collect::<Vec<_>>(), "8 that the kernel may take, and 2");
        assert_eq!(schedule.next(now()), None, "none is prepared yet");
        assert!(schedule.may_write(now()) && !schedule.may_prepare());
        // They come back in any order, and those that wait still count.
        for n in [3, 1, 2, 0] {
            schedule.put_prepared(n);
        }
        assert_eq!((schedule.ahead(), schedule.next_to_prepare()), (10, None));
        assert_eq!(start(&mut schedule), [3, 1, 2, 0].map(Turn::Write));
        assert_eq!((schedule.ahead(), schedule.next_to_prepare()), (6, None), "more than half");
        schedule.end_preparing();
        assert_eq!(schedule.ahead(), 5, "one that failed makes room too");
        let given: Vec<u32> = std::iter::from_fn(|| schedule.next_to_prepare()).collect();
        assert_eq!((given, schedule.ahead()), ((10..15).collect(), 10));
    }

    #[test]
    fn what_is_being_prepared_is_waited_for() {
        let mut schedule = schedule(MIB);
        schedule.put_write(1);
        assert_eq!(schedule.next_to_prepare(), Some(1));
        assert!(schedule.may_prepare() && !schedule.is_any_inflight() && !schedule.is_idle());
        schedule.end_preparing();
        assert!(schedule.is_idle());
    }

    #[test]
    fn a_ring_is_never_made_for_more_than_it_can_hold() {
        let limits = Limits::new(1, usize::MAX, u64::MAX, u64::MAX);
        assert_eq!(limits.inflight_max(), 2 * INFLIGHT_MAX);
    }
}
