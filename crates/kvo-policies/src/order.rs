//! Orders of slots: which goes first.
//!
//! An [`Orders`] keeps each slot in at most one of a few queues, oldest first. A queue is a linked list of *segments*
//! of 14 slots, one cache line each, so that the next victims stand side by side in memory, and committing a request
//! writes its slots in a row. A slot's place is its segment and index; removing it leaves a hole.
//!
//! ```text
//!   old end                                                                  recent end
//!   [3 . 9 7 . . 1]──▶[4 8 . . . 2 6]──▶[ run of request 5: 12 11 10 ]──▶[0 13 . . . . .]
//! ```
//!
//! Three things make it fast whatever is pinned and however requests interleave:
//!
//! - A scan for victims that meets a slot which is held (pending or pinned) takes it off the segment's `waiting`
//!   mask, and a segment without waiting slots off the list that scans walk; neither is visited again until the slot
//!   is [woken](Orders::wake). A woken slot whose segment is off that list comes back through a heap, at its old
//!   place. So each hold is visited at most once.
//! - A *run* is the part of a queue that a running request's chunks share, ordered by position, the tail first. It
//!   grows at its old end, where the request's next chunk belongs, without touching its neighbours.
//! - Holes are closed by merging neighbours, a few steps for each new segment, so there is never a pause.

mod runs;

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, TryReserveError},
};

use kvo_core::{SlotId, prefetch, reserve_table};

use self::runs::Run;
use crate::policy::{Eviction, Residents};

const WIDTH: u32 = 14;
const NONE: u32 = u32::MAX;
/// Neighbours looked at for merging, for each new segment.
const MERGES_PER_SEGMENT: u32 = 4;

/// Slots in `Q` queues, each slot in at most one.
#[derive(Debug)]
pub(crate) struct Orders<const Q: usize> {
    /// Of each slot.
    places: Vec<Place>,
    segments: Vec<Segment>,
    metas: Vec<Meta>,
    free_segments: Vec<u32>,
    queues: [Queue; Q],
    runs: Vec<Run>,
    free_runs: Vec<u32>,
    dirty_runs: Vec<u32>,
    next_sequence: u64,
    /// Slots to be sorted, and whether each is waiting.
    scratch: Vec<(SlotId, bool)>,
    /// Segments, and which of their slots an eviction has chosen.
    chosen: Vec<(u32, u16)>,
    visits: u64,
}

#[derive(Clone, Copy, Debug)]
struct Place {
    /// 16 times its segment plus its index there.
    at: u32,
    /// In a run: its position.
    end_token: u32,
}

#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Segment {
    slots: [SlotId; WIDTH as usize],
    /// Its neighbours in the list that scans walk, if it is [`Link::Listed`].
    prev: u32,
    next: u32,
}

/// Where a segment stands among those of its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Label {
    sequence: u64,
    /// Within a run.
    sub: u32,
}

#[derive(Clone, Copy, Debug)]
#[repr(align(32))]
struct Meta {
    sequence: u64,
    /// Within a run.
    sub: u32,
    /// Its neighbours among all segments of the queue.
    older: u32,
    newer: u32,
    /// The run that it belongs to; a run's segments are neighbours.
    run: u32,
    /// Which of the slots are there.
    live: u16,
    /// Which of them a scan has to look at.
    waiting: u16,
    queue: u8,
    link: Link,
}

impl Meta {
    fn label(&self) -> Label {
        Label { sequence: self.sequence, sub: self.sub }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Link {
    /// In its queue's list.
    Listed,
    /// Nothing of it is waiting, and it is in no list.
    Off,
    /// In its queue's heap, to be listed again.
    Returned,
    Free,
}

#[derive(Debug)]
struct Queue {
    /// The ends of the list that scans walk.
    head: u32,
    tail: u32,
    /// The ends of the list of all segments.
    oldest: u32,
    newest: u32,
    len: u32,
    returned: BinaryHeap<Reverse<(Label, u32)>>,
    /// Where the next look for neighbours to merge begins.
    merge_at: u32,
}

/// A scan over one queue, from its old end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scan {
    queue: usize,
    segment: u32,
    /// Where in the segment it goes on.
    index: u32,
    /// How many slots it may ask about at once.
    ahead: u32,
    /// Slots of the segment that may be evicted and are not handed out yet.
    allowed: u16,
}

impl Scan {
    /// Whether all that was asked about is handed out.
    pub(crate) fn is_at_end_of_look(&self) -> bool {
        self.allowed == 0
    }

    /// Where many are wanted, so many may be asked about at once.
    pub(crate) fn look_for(&mut self, count: usize) {
        self.ahead = u32::try_from(count).unwrap_or(u32::MAX).max(1);
    }
}

impl<const Q: usize> Orders<Q> {
    /// Empty queues for slots below `capacity`, if there is memory for them.
    pub(crate) fn new(capacity: u32) -> Result<Self, TryReserveError> {
        // Half-empty segments are merged before they are as many; what is reserved and never used takes no memory.
        let segments = capacity as usize / 4 + 64;
        Ok(Self {
            segments: reserve_table(segments)?,
            metas: reserve_table(segments)?,
            free_segments: reserve_table(segments)?,
            // The one that is written at once is the last to be reserved.
            places: filled(capacity, Place { at: NONE, end_token: 0 })?,
            queues: std::array::from_fn(|_| Queue::default()),
            runs: Vec::new(),
            free_runs: Vec::new(),
            dirty_runs: Vec::new(),
            next_sequence: 0,
            scratch: Vec::new(),
            chosen: Vec::new(),
            visits: 0,
        })
    }

    /// Slots that there can be.
    pub(crate) fn capacity(&self) -> u32 {
        u32::try_from(self.places.len()).expect("slots are counted in 32 bits")
    }

    /// Slots in a queue, held ones included.
    pub(crate) fn len(&self, queue: usize) -> usize {
        self.queues[queue].len as usize
    }

    /// The queue that a slot is in.
    #[inline]
    pub(crate) fn queue_of(&self, slot: SlotId) -> Option<usize> {
        let place = self.places[slot.0 as usize].at;
        (place != NONE).then(|| self.metas[(place >> 4) as usize].queue as usize)
    }

    /// The oldest slot of a queue, held or not.
    pub(crate) fn oldest(&self, queue: usize) -> Option<SlotId> {
        let mut segment = self.queues[queue].oldest;
        // Only runs keep segments that are empty.
        while segment != NONE && self.metas[segment as usize].live == 0 {
            segment = self.metas[segment as usize].newer;
        }
        let live = self.metas.get(segment as usize)?.live;
        Some(self.segments[segment as usize].slots[live.trailing_zeros() as usize])
    }

    /// Slots that scans have looked at so far.
    pub(crate) fn visits(&self) -> u64 {
        self.visits
    }

    /// Puts a slot, wherever it is, at the recent end of a queue.
    #[inline]
    pub(crate) fn push(&mut self, queue: usize, slot: SlotId) {
        self.remove(slot);
        let newest = self.queues[queue].newest;
        let fits = newest != NONE
            && self.metas[newest as usize].run == NONE
            && self.metas[newest as usize].live >> (WIDTH - 1) == 0;
        let segment = if fits {
            newest
        } else {
            self.merge_some(queue);
            self.append_segment(queue, 0)
        };
        let index = u16::BITS - self.metas[segment as usize].live.leading_zeros();
        self.put(segment, index, slot);
    }

    /// Takes a slot out of its queue, if it is in one.
    #[inline]
    pub(crate) fn remove(&mut self, slot: SlotId) {
        let place = std::mem::replace(&mut self.places[slot.0 as usize].at, NONE);
        if place != NONE {
            self.take_out(place >> 4, 1 << (place & 15));
        }
    }

    /// As [`remove`](Self::remove) of each of `slots`; those that stand side by side are taken out together.
    pub(crate) fn remove_all(&mut self, slots: impl Iterator<Item = SlotId>) {
        let (mut segment, mut bits) = (NONE, 0);
        for slot in slots {
            let at = std::mem::replace(&mut self.places[slot.0 as usize].at, NONE);
            if at == NONE {
                continue;
            }
            if at >> 4 != segment {
                if bits != 0 {
                    self.take_out(segment, bits);
                }
                (segment, bits) = (at >> 4, 0);
            }
            bits |= 1 << (at & 15);
        }
        if bits != 0 {
            self.take_out(segment, bits);
        }
    }

    /// A slot may be evicted again: scans are to look at it, at the place that it has.
    #[inline]
    pub(crate) fn wake(&mut self, slot: SlotId) {
        let place = self.places[slot.0 as usize].at;
        if place != NONE {
            self.metas[(place >> 4) as usize].waiting |= 1 << (place & 15);
            self.bring_back(place >> 4);
        }
    }

    /// Forgets all slots and runs.
    pub(crate) fn clear(&mut self) {
        self.places.fill(Place { at: NONE, end_token: 0 });
        self.segments.clear();
        self.metas.clear();
        self.free_segments.clear();
        self.queues = std::array::from_fn(|_| Queue::default());
        self.runs.clear();
        self.free_runs.clear();
        self.dirty_runs.clear();
    }

    /// Begins a scan for victims, which asks about one slot at a time.
    pub(crate) fn scan(&self, queue: usize) -> Scan {
        self.scan_for(queue, 1)
    }

    /// Begins a scan for `count` victims: as many are asked about together as stand side by side.
    pub(crate) fn scan_for(&self, queue: usize, count: usize) -> Scan {
        let ahead = u32::try_from(count).unwrap_or(u32::MAX).max(1);
        Scan { queue, segment: self.queues[queue].head, index: 0, ahead, allowed: 0 }
    }

    /// The `len` most recent slots of a queue, which has as many, the most recent first.
    pub(crate) fn newest(&self, queue: usize, len: usize) -> impl Iterator<Item = SlotId> {
        let newest = self.queues[queue].newest;
        let older = |at: &u32| Some(self.metas[*at as usize].older).filter(|older| *older != NONE);
        let segments = std::iter::successors(Some(newest).filter(|newest| *newest != NONE), older);
        let slots = segments.flat_map(move |at| {
            let live = self.metas[at as usize].live;
            let indexes = (0..WIDTH as usize).rev().filter(move |index| live >> index & 1 == 1);
            indexes.map(move |index| self.segments[at as usize].slots[index])
        });
        slots.take(len)
    }

    /// The next slot, oldest first, that may be evicted. It stays where it is: the caller removes what it chose when
    /// it has chosen all.
    #[inline]
    pub(crate) fn next(&mut self, scan: &mut Scan, tier: &dyn Residents) -> Option<SlotId> {
        if scan.allowed == 0 && !self.look_ahead(scan, tier) {
            return None;
        }
        let index = scan.allowed.trailing_zeros();
        scan.allowed &= scan.allowed - 1;
        Some(self.segments[scan.segment as usize].slots[index as usize])
    }

    /// The slots that [`next`](Self::next) will hand out without asking again.
    pub(crate) fn upcoming(&self, scan: &Scan) -> impl Iterator<Item = SlotId> {
        let allowed = scan.allowed;
        let indexes = (0..WIDTH as usize).filter(move |index| allowed >> index & 1 == 1);
        indexes.map(move |index| self.segments[scan.segment as usize].slots[index])
    }

    /// Finds the next slots of one segment that may be evicted; says whether there are any.
    fn look_ahead(&mut self, scan: &mut Scan, tier: &dyn Residents) -> bool {
        loop {
            if scan.index == 0 {
                self.list_returned(scan);
            }
            if scan.segment == NONE {
                return false;
            }
            let segment = scan.segment as usize;
            let left = u32::from(self.metas[segment].waiting) >> scan.index << scan.index;
            if left == 0 {
                let next = self.segments[segment].next;
                if self.metas[segment].waiting == 0 {
                    self.unlist(scan.segment);
                    self.metas[segment].link = Link::Off;
                }
                (scan.segment, scan.index) = (next, 0);
                continue;
            }
            scan.allowed = self.ask(scan, left, tier);
            scan.ahead = scan.ahead.saturating_sub(scan.allowed.count_ones()).max(1);
            if scan.allowed != 0 {
                return true;
            }
        }
    }

    /// Asks about slots of the scan's segment, of which `left` are left; returns which of them may be evicted.
    fn ask(&mut self, scan: &mut Scan, left: u32, tier: &dyn Residents) -> u16 {
        let segment = &self.segments[scan.segment as usize];
        let first = left.trailing_zeros();
        if scan.ahead == 1 {
            let eviction = tier.may_evict(segment.slots[first as usize]);
            self.visits += 1;
            scan.index = first + 1;
            if eviction == Eviction::Held {
                self.metas[scan.segment as usize].waiting &= !(1 << first);
            }
            return u16::from(eviction == Eviction::Allowed) << first;
        }
        // The next of them that stand side by side.
        let side_by_side = (!(left >> first)).trailing_zeros();
        let len = side_by_side.min(scan.ahead);
        let slots = &segment.slots[first as usize..][..len as usize];
        let mut answers = [Eviction::Held; WIDTH as usize];
        let answers = &mut answers[..len as usize];
        tier.may_evict_each(slots, answers);
        self.visits += u64::from(len);
        scan.index = first + len;
        let of = |wanted: Eviction, answers: &[Eviction]| {
            let bits = answers.iter().rev().map(|answer| u16::from(*answer == wanted));
            bits.fold(0, |mask, bit| mask << 1 | bit) << first
        };
        let allowed = of(Eviction::Allowed, answers);
        if allowed.count_ones() != len {
            self.metas[scan.segment as usize].waiting &= !of(Eviction::Held, answers);
        }
        allowed
    }

    /// Moves the `count` oldest slots of a queue that may be evicted to the end of `victims`, or none of them.
    pub(crate) fn evict(
        &mut self,
        queue: usize,
        count: usize,
        tier: &dyn Residents,
        victims: &mut Vec<SlotId>,
    ) -> bool {
        let before = victims.len();
        self.sort_runs(tier);
        if count == 1 {
            let mut scan = self.scan(queue);
            let victim = self.next(&mut scan, tier);
            victims.extend(victim);
            self.remove_all(victim.into_iter());
            return victim.is_some();
        }
        self.chosen.clear();
        let mut scan = self.scan_for(queue, count);
        while victims.len() < before + count {
            if !self.look_ahead(&mut scan, tier) {
                victims.truncate(before);
                return false;
            }
            self.chosen.push((scan.segment, scan.allowed));
            let slots = &self.segments[scan.segment as usize].slots;
            while scan.allowed != 0 {
                let index = scan.allowed.trailing_zeros();
                scan.allowed &= scan.allowed - 1;
                let slot = slots[index as usize];
                prefetch(&self.places[slot.0 as usize]);
                victims.push(slot);
            }
        }
        for victim in &victims[before..] {
            self.places[victim.0 as usize].at = NONE;
        }
        let chosen = std::mem::take(&mut self.chosen);
        for (segment, slots) in &chosen {
            self.take_out(*segment, *slots);
        }
        self.chosen = chosen;
        true
    }

    /// Moves a segment of no run to the recent end of its queue, with a sequence number of its own.
    fn move_to_recent_end(&mut self, segment: u32) {
        let Meta { link, queue, .. } = self.metas[segment as usize];
        if link == Link::Listed {
            self.unlist(segment);
        }
        self.unlink(segment);
        self.next_sequence += 1;
        self.metas[segment as usize].sequence = self.next_sequence;
        self.metas[segment as usize].sub = 0;
        let newest = std::mem::replace(&mut self.queues[queue as usize].newest, segment);
        self.metas[segment as usize].older = newest;
        self.metas[segment as usize].newer = NONE;
        match newest {
            NONE => self.queues[queue as usize].oldest = segment,
            newest => self.metas[newest as usize].newer = segment,
        }
        // An entry of the heap, if it has one, is void with its old label.
        if link != Link::Off {
            self.list_before(NONE, segment);
        }
    }

    /// A segment at the recent end of a queue, with a sequence number of its own.
    fn append_segment(&mut self, queue: usize, sub: u32) -> u32 {
        self.next_sequence += 1;
        let label = Label { sequence: self.next_sequence, sub };
        let segment = self.allocate(queue, label, NONE);
        self.list_before(NONE, segment);
        segment
    }

    #[inline]
    fn put(&mut self, segment: u32, index: u32, slot: SlotId) {
        self.segments[segment as usize].slots[index as usize] = slot;
        self.places[slot.0 as usize].at = segment << 4 | index;
        self.put_in(segment, 1 << index);
    }

    /// Slots that have just been written into a segment are there.
    #[inline]
    fn put_in(&mut self, segment: u32, slots: u16) {
        let meta = &mut self.metas[segment as usize];
        meta.live |= slots;
        meta.waiting |= slots;
        self.queues[meta.queue as usize].len += slots.count_ones();
        if meta.run != NONE {
            self.runs[meta.run as usize].len += slots.count_ones();
        }
        self.bring_back(segment);
    }

    /// Takes slots, whose places are void, out of a segment.
    #[inline]
    fn take_out(&mut self, segment: u32, slots: u16) {
        let meta = &mut self.metas[segment as usize];
        meta.live &= !slots;
        meta.waiting &= !slots;
        let Meta { live, run, queue, .. } = *meta;
        self.queues[queue as usize].len -= slots.count_ones();
        if run != NONE {
            self.runs[run as usize].len -= slots.count_ones();
        }
        if live == 0 {
            self.free(segment);
        }
    }

    /// A segment that is off the list has something waiting again.
    #[inline]
    fn bring_back(&mut self, segment: u32) {
        if self.metas[segment as usize].link == Link::Off {
            self.return_segment(segment);
        }
    }

    #[cold]
    fn return_segment(&mut self, segment: u32) {
        let meta = &mut self.metas[segment as usize];
        meta.link = Link::Returned;
        let queue = &mut self.queues[meta.queue as usize];
        queue.returned.push(Reverse((meta.label(), segment)));
        if queue.returned.len() > 2 * self.metas.len() + 64 {
            let metas = &self.metas;
            queue.returned.retain(|Reverse(entry)| is_returned(metas, entry));
        }
    }

    /// Lists the returned segments that belong before the scan's next one.
    fn list_returned(&mut self, scan: &mut Scan) {
        while let Some(Reverse(entry)) = self.queues[scan.queue].returned.peek().copied() {
            if !is_returned(&self.metas, &entry) {
                self.queues[scan.queue].returned.pop();
                continue;
            }
            let (label, segment) = entry;
            if scan.segment != NONE && self.metas[scan.segment as usize].label() < label {
                return;
            }
            self.queues[scan.queue].returned.pop();
            self.list_before(scan.segment, segment);
            scan.segment = segment;
        }
    }

    /// Links a segment of no list before `next`, or at the recent end.
    fn list_before(&mut self, next: u32, segment: u32) {
        let queue = self.metas[segment as usize].queue as usize;
        let prev = if next == NONE { self.queues[queue].tail } else { self.segments[next as usize].prev };
        self.segments[segment as usize].prev = prev;
        self.segments[segment as usize].next = next;
        match prev {
            NONE => self.queues[queue].head = segment,
            prev => self.segments[prev as usize].next = segment,
        }
        match next {
            NONE => self.queues[queue].tail = segment,
            next => self.segments[next as usize].prev = segment,
        }
        self.metas[segment as usize].link = Link::Listed;
    }

    fn unlist(&mut self, segment: u32) {
        let queue = self.metas[segment as usize].queue as usize;
        let Segment { prev, next, .. } = self.segments[segment as usize];
        match prev {
            NONE => self.queues[queue].head = next,
            prev => self.segments[prev as usize].next = next,
        }
        match next {
            NONE => self.queues[queue].tail = prev,
            next => self.segments[next as usize].prev = prev,
        }
    }

    /// An empty segment before `newer`, or at the recent end; in no list that scans walk.
    fn allocate(&mut self, queue: usize, label: Label, newer: u32) -> u32 {
        let older = if newer == NONE { self.queues[queue].newest } else { self.metas[newer as usize].older };
        let Label { sequence, sub } = label;
        let meta = Meta {
            sequence,
            sub,
            live: 0,
            waiting: 0,
            queue: u8::try_from(queue).expect("there are few queues"),
            link: Link::Off,
            older,
            newer,
            run: NONE,
        };
        let segment = self.free_segments.pop().unwrap_or_else(|| {
            self.segments.push(Segment { slots: [SlotId(NONE); WIDTH as usize], prev: NONE, next: NONE });
            self.metas.push(meta);
            u32::try_from(self.segments.len() - 1).expect("a segment takes 64 bytes")
        });
        self.metas[segment as usize] = meta;
        match older {
            NONE => self.queues[queue].oldest = segment,
            older => self.metas[older as usize].newer = segment,
        }
        match newer {
            NONE => self.queues[queue].newest = segment,
            newer => self.metas[newer as usize].older = segment,
        }
        segment
    }

    /// Frees an empty segment, unless it is the last of a run.
    fn free(&mut self, segment: u32) {
        let Meta { link, run, newer, .. } = self.metas[segment as usize];
        if run != NONE && self.runs[run as usize].first == segment {
            if newer == NONE || self.metas[newer as usize].run != run {
                return;
            }
            self.runs[run as usize].first = newer;
        }
        if link == Link::Listed {
            self.unlist(segment);
        }
        self.unlink(segment);
        self.metas[segment as usize].link = Link::Free;
        self.free_segments.push(segment);
    }

    /// Takes a segment out of the list of all segments.
    fn unlink(&mut self, segment: u32) {
        let Meta { older, newer, queue, .. } = self.metas[segment as usize];
        let queue = &mut self.queues[queue as usize];
        if queue.merge_at == segment {
            queue.merge_at = newer;
        }
        match older {
            NONE => queue.oldest = newer,
            older => self.metas[older as usize].newer = newer,
        }
        match newer {
            NONE => queue.newest = older,
            newer => self.metas[newer as usize].older = older,
        }
    }

    /// Closes holes: moves the slots of two neighbours into one segment where they fit, a few tries.
    fn merge_some(&mut self, queue: usize) {
        for _ in 0..MERGES_PER_SEGMENT {
            let first = match self.queues[queue].merge_at {
                NONE => self.queues[queue].oldest,
                at => at,
            };
            if first == NONE {
                return;
            }
            let second = self.metas[first as usize].newer;
            self.queues[queue].merge_at = second;
            if second == NONE {
                continue;
            }
            let (a, b) = (&self.metas[first as usize], &self.metas[second as usize]);
            let both = |link: Link| a.link == link && b.link == link;
            if a.run == NONE
                && b.run == NONE
                && (both(Link::Listed) || both(Link::Off))
                && a.live.count_ones() + b.live.count_ones() <= WIDTH
            {
                self.merge(first, second);
                self.queues[queue].merge_at = first;
            }
        }
    }

    /// Moves the slots of `second`, the next in the list, behind those of `first`.
    fn merge(&mut self, first: u32, second: u32) {
        let mut slots = [SlotId(NONE); WIDTH as usize];
        let (mut live, mut waiting) = (0u16, 0u16);
        let mut index = 0;
        for segment in [first, second] {
            let meta = self.metas[segment as usize];
            let mut left = meta.live;
            while left != 0 {
                let from = left.trailing_zeros();
                left &= left - 1;
                let slot = self.segments[segment as usize].slots[from as usize];
                slots[index as usize] = slot;
                live |= 1 << index;
                waiting |= (meta.waiting >> from & 1) << index;
                self.places[slot.0 as usize].at = first << 4 | index;
                index += 1;
            }
        }
        self.segments[first as usize].slots = slots;
        self.metas[first as usize].live = live;
        self.metas[first as usize].waiting = waiting;
        self.metas[second as usize].live = 0;
        self.metas[second as usize].waiting = 0;
        self.free(second);
    }
}

impl Default for Queue {
    fn default() -> Self {
        Self {
            head: NONE,
            tail: NONE,
            oldest: NONE,
            newest: NONE,
            len: 0,
            returned: BinaryHeap::new(),
            merge_at: NONE,
        }
    }
}

/// A table of so many values, all the same, if there is memory for it.
pub(crate) fn filled<T: Clone>(len: u32, value: T) -> Result<Vec<T>, TryReserveError> {
    let mut table = reserve_table(len as usize)?;
    table.resize(len as usize, value);
    Ok(table)
}

/// Whether an entry of a heap is still meant: its segment may have been freed and used again since.
fn is_returned(metas: &[Meta], (label, segment): &(Label, u32)) -> bool {
    let meta = &metas[*segment as usize];
    meta.link == Link::Returned && meta.label() == *label
}

#[cfg(test)]
mod tests;
