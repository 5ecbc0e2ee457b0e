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

use std::{
    cmp::{Ordering, Reverse},
    collections::BinaryHeap,
};

use kvo_core::SlotId;

use crate::policy::{Eviction, Residents};

const WIDTH: u32 = 14;
const NONE: u32 = u32::MAX;
/// Segments of a run count down from here, so that a run has room on its old side.
const RUN_START: u32 = u32::MAX;
/// Neighbours looked at for merging, for each new segment.
const MERGES_PER_SEGMENT: u32 = 4;

/// Slots in `Q` queues, each slot in at most one.
#[derive(Debug)]
pub(crate) struct Orders<const Q: usize> {
    /// Of each slot: 16 times its segment plus its index there.
    places: Vec<u32>,
    /// Of each slot in a run: its position.
    end_tokens: Vec<u32>,
    segments: Vec<Segment>,
    metas: Vec<Meta>,
    free_segments: Vec<u32>,
    queues: [Queue; Q],
    runs: Vec<Run>,
    free_runs: Vec<u32>,
    dirty_runs: Vec<u32>,
    next_sequence: u64,
    /// Slots to be sorted, and whether each is waiting.
    scratch: Vec<(u32, bool)>,
    visits: u64,
}

#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Segment {
    slots: [u32; WIDTH as usize],
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
struct Meta {
    label: Label,
    /// Which of the slots are there.
    live: u16,
    /// Which of them a scan has to look at.
    waiting: u16,
    queue: u8,
    link: Link,
    /// Its neighbours among all segments of the queue.
    older: u32,
    newer: u32,
    /// The run that it belongs to; a run's segments are neighbours.
    run: u32,
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

#[derive(Clone, Copy, Debug)]
struct Run {
    sequence: u64,
    queue: u8,
    /// Its oldest segment; a run that is empty keeps one, for its place.
    first: u32,
    next_sub: u32,
    /// How many of its slots, those at its old end, may not be in order.
    unsorted: u32,
}

/// A scan over one queue, from its old end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scan {
    queue: usize,
    segment: u32,
    index: u32,
}

impl<const Q: usize> Orders<Q> {
    /// Empty queues for slots below `capacity`.
    pub(crate) fn new(capacity: u32) -> Self {
        let segments = (capacity / WIDTH + 1) as usize;
        Self {
            places: vec![NONE; capacity as usize],
            end_tokens: vec![0; capacity as usize],
            segments: Vec::with_capacity(segments),
            metas: Vec::with_capacity(segments),
            free_segments: Vec::new(),
            queues: std::array::from_fn(|_| Queue::default()),
            runs: Vec::new(),
            free_runs: Vec::new(),
            dirty_runs: Vec::new(),
            next_sequence: 0,
            scratch: Vec::new(),
            visits: 0,
        }
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
    pub(crate) fn queue_of(&self, slot: SlotId) -> Option<usize> {
        let place = self.places[slot.0 as usize];
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
        Some(SlotId(self.segments[segment as usize].slots[live.trailing_zeros() as usize]))
    }

    /// Slots that scans have looked at so far.
    pub(crate) fn visits(&self) -> u64 {
        self.visits
    }

    /// Puts a slot, wherever it is, at the recent end of a queue.
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
    pub(crate) fn remove(&mut self, slot: SlotId) {
        let place = std::mem::replace(&mut self.places[slot.0 as usize], NONE);
        if place == NONE {
            return;
        }
        let (segment, bit) = (place >> 4, 1u16 << (place & 15));
        let meta = &mut self.metas[segment as usize];
        meta.live &= !bit;
        meta.waiting &= !bit;
        self.queues[meta.queue as usize].len -= 1;
        if meta.live == 0 {
            self.free(segment);
        }
    }

    /// A slot may be evicted again: scans are to look at it, at the place that it has.
    pub(crate) fn wake(&mut self, slot: SlotId) {
        let place = self.places[slot.0 as usize];
        if place != NONE {
            self.metas[(place >> 4) as usize].waiting |= 1 << (place & 15);
            self.bring_back(place >> 4);
        }
    }

    /// Forgets all slots and runs.
    pub(crate) fn clear(&mut self) {
        self.places.fill(NONE);
        self.segments.clear();
        self.metas.clear();
        self.free_segments.clear();
        self.queues = std::array::from_fn(|_| Queue::default());
        self.runs.clear();
        self.free_runs.clear();
        self.dirty_runs.clear();
    }

    /// Begins a scan for victims.
    pub(crate) fn scan(&self, queue: usize) -> Scan {
        Scan { queue, segment: self.queues[queue].head, index: 0 }
    }

    /// The next slot, oldest first, that may be evicted. It stays where it is: the caller removes what it chose when
    /// it has chosen all.
    pub(crate) fn next(&mut self, scan: &mut Scan, tier: &dyn Residents) -> Option<SlotId> {
        loop {
            if scan.index == 0 {
                self.list_returned(scan);
            }
            if scan.segment == NONE {
                return None;
            }
            let segment = scan.segment as usize;
            let left = u32::from(self.metas[segment].waiting) >> scan.index;
            if left == 0 {
                let next = self.segments[segment].next;
                if self.metas[segment].waiting == 0 {
                    self.unlist(scan.segment);
                    self.metas[segment].link = Link::Off;
                }
                (scan.segment, scan.index) = (next, 0);
                continue;
            }
            let index = scan.index + left.trailing_zeros();
            scan.index = index + 1;
            self.visits += 1;
            let slot = SlotId(self.segments[segment].slots[index as usize]);
            match tier.may_evict(slot) {
                Eviction::Allowed => return Some(slot),
                Eviction::Spared => {}
                Eviction::Held => self.metas[segment].waiting &= !(1 << index),
            }
        }
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
        let mut scan = self.scan(queue);
        for _ in 0..count {
            let Some(victim) = self.next(&mut scan, tier) else {
                victims.truncate(before);
                return false;
            };
            victims.push(victim);
        }
        for victim in &victims[before..] {
            self.remove(*victim);
        }
        true
    }

    /// Begins a run at the recent end of a queue.
    pub(crate) fn begin_run(&mut self, queue: usize) -> u32 {
        let queue = u8::try_from(queue).expect("there are few queues");
        let run = self.free_runs.pop().unwrap_or_else(|| {
            self.runs.push(Run { sequence: 0, queue, first: NONE, next_sub: 0, unsorted: 0 });
            u32::try_from(self.runs.len() - 1).expect("a run takes far more than a byte")
        });
        let first = self.append_segment(queue as usize, RUN_START);
        self.metas[first as usize].run = run;
        let sequence = self.metas[first as usize].label.sequence;
        self.runs[run as usize] = Run { sequence, queue, first, next_sub: RUN_START - 1, unsorted: 0 };
        run
    }

    /// Whether a slot stands before everything of a run.
    pub(crate) fn is_older_than_run(&self, slot: SlotId, run: u32) -> bool {
        let place = self.places[slot.0 as usize];
        place == NONE || self.metas[(place >> 4) as usize].label.sequence < self.runs[run as usize].sequence
    }

    /// Whether a slot would move towards the recent end by being put into a run at `end_token`, if it is not there yet
    /// or nearer the tail.
    pub(crate) fn is_raised_by_run(&self, slot: SlotId, run: u32, end_token: u32) -> bool {
        let segment = (self.places[slot.0 as usize] >> 4) as usize;
        let is_in_run = self.metas.get(segment).is_some_and(|meta| meta.run == run);
        self.is_older_than_run(slot, run) || is_in_run && end_token < self.end_tokens[slot.0 as usize]
    }

    /// Puts a slot, wherever it is, into a run, ordered by position, the last first, then by key bytes.
    pub(crate) fn push_to_run(&mut self, run: u32, slot: SlotId, end_token: u32, tier: &dyn Residents) {
        self.remove(slot);
        self.end_tokens[slot.0 as usize] = end_token;
        let first = self.runs[run as usize].first;
        let live = self.metas[first as usize].live;
        let is_behind_oldest = live != 0 && {
            let oldest = self.segments[first as usize].slots[live.trailing_zeros() as usize];
            self.compare_in_run(slot.0, oldest, tier) == Ordering::Greater
        };
        if is_behind_oldest && self.insert_into_first(run, slot, tier) {
            return;
        }
        let unsorted = &mut self.runs[run as usize].unsorted;
        if is_behind_oldest && *unsorted == 0 {
            self.dirty_runs.push(run);
        }
        *unsorted += u32::from(is_behind_oldest || *unsorted > 0);
        self.prepend_to_run(run, slot);
    }

    /// Ends a run. What is still in it keeps its place.
    pub(crate) fn end_run(&mut self, run: u32, tier: &dyn Residents) {
        if self.runs[run as usize].unsorted > 0 {
            self.sort_run(run, tier);
            self.dirty_runs.retain(|dirty| *dirty != run);
        }
        let mut segment = self.runs[run as usize].first;
        while segment != NONE && self.metas[segment as usize].run == run {
            let meta = &mut self.metas[segment as usize];
            meta.run = NONE;
            let next = meta.newer;
            if meta.live == 0 {
                self.free(segment);
            }
            segment = next;
        }
        self.free_runs.push(run);
    }

    /// Ends a run and moves it to the recent end as it stands, if it holds exactly `slots`, oldest first. Else changes
    /// nothing and returns `false`.
    ///
    /// So committing a request that met only its own chunks costs a few steps a segment, not a few a chunk.
    pub(crate) fn promote_run(&mut self, run: u32, slots: impl Iterator<Item = SlotId>) -> bool {
        let Some(last) = self.last_of_exactly(run, slots) else { return false };
        let is_newest = self.metas[last as usize].newer == NONE;
        let mut segment = self.runs[run as usize].first;
        loop {
            let newer = self.metas[segment as usize].newer;
            self.metas[segment as usize].run = NONE;
            if !is_newest {
                self.move_to_recent_end(segment);
            }
            if segment == last {
                self.free_runs.push(run);
                return true;
            }
            segment = newer;
        }
    }

    /// The newest segment of a run, if the run is in order and holds exactly `slots`, oldest first.
    fn last_of_exactly(&self, run: u32, mut slots: impl Iterator<Item = SlotId>) -> Option<u32> {
        let Run { first, unsorted, .. } = self.runs[run as usize];
        if unsorted > 0 || self.metas[first as usize].live == 0 {
            return None;
        }
        let (mut segment, mut last) = (first, first);
        while segment != NONE && self.metas[segment as usize].run == run {
            let mut left = self.metas[segment as usize].live;
            while left != 0 {
                let slot = self.segments[segment as usize].slots[left.trailing_zeros() as usize];
                if slots.next() != Some(SlotId(slot)) {
                    return None;
                }
                left &= left - 1;
            }
            last = segment;
            segment = self.metas[segment as usize].newer;
        }
        slots.next().is_none().then_some(last)
    }

    /// Moves a segment of no run to the recent end of its queue, with a sequence number of its own.
    fn move_to_recent_end(&mut self, segment: u32) {
        let Meta { link, queue, .. } = self.metas[segment as usize];
        if link == Link::Listed {
            self.unlist(segment);
        }
        self.unlink(segment);
        self.next_sequence += 1;
        self.metas[segment as usize].label = Label { sequence: self.next_sequence, sub: 0 };
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

    /// Puts runs that were filled out of order in order. To be called before a scan.
    pub(crate) fn sort_runs(&mut self, tier: &dyn Residents) {
        while let Some(run) = self.dirty_runs.pop() {
            self.sort_run(run, tier);
        }
    }

    /// A segment at the recent end of a queue, with a sequence number of its own.
    fn append_segment(&mut self, queue: usize, sub: u32) -> u32 {
        self.next_sequence += 1;
        let segment = self.allocate(queue, Label { sequence: self.next_sequence, sub }, NONE);
        self.list_before(NONE, segment);
        segment
    }

    fn put(&mut self, segment: u32, index: u32, slot: SlotId) {
        self.segments[segment as usize].slots[index as usize] = slot.0;
        let meta = &mut self.metas[segment as usize];
        meta.live |= 1 << index;
        meta.waiting |= 1 << index;
        self.places[slot.0 as usize] = segment << 4 | index;
        self.queues[meta.queue as usize].len += 1;
        self.bring_back(segment);
    }

    /// A segment that is off the list has something waiting again.
    fn bring_back(&mut self, segment: u32) {
        let meta = &mut self.metas[segment as usize];
        if meta.link == Link::Off {
            meta.link = Link::Returned;
            let queue = &mut self.queues[meta.queue as usize];
            queue.returned.push(Reverse((meta.label, segment)));
            if queue.returned.len() > 2 * self.metas.len() + 64 {
                let metas = &self.metas;
                queue.returned.retain(|Reverse(entry)| is_returned(metas, entry));
            }
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
            if scan.segment != NONE && self.metas[scan.segment as usize].label < label {
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
        let meta = Meta {
            label,
            live: 0,
            waiting: 0,
            queue: u8::try_from(queue).expect("there are few queues"),
            link: Link::Off,
            older,
            newer,
            run: NONE,
        };
        let segment = self.free_segments.pop().unwrap_or_else(|| {
            self.segments.push(Segment { slots: [NONE; WIDTH as usize], prev: NONE, next: NONE });
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
        let mut slots = [NONE; WIDTH as usize];
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
                self.places[slot as usize] = first << 4 | index;
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

    /// Which of two slots of a run goes first.
    fn compare_in_run(&self, a: u32, b: u32, tier: &dyn Residents) -> Ordering {
        self.end_tokens[b as usize]
            .cmp(&self.end_tokens[a as usize])
            .then_with(|| tier.key(SlotId(a)).cmp(&tier.key(SlotId(b))))
    }

    /// Puts a slot at the old end of a run.
    fn prepend_to_run(&mut self, run: u32, slot: SlotId) {
        let Run { first, queue, sequence, next_sub, .. } = self.runs[run as usize];
        let live = self.metas[first as usize].live;
        match if live == 0 { WIDTH } else { live.trailing_zeros() } {
            0 => {
                let segment = self.allocate(queue as usize, Label { sequence, sub: next_sub }, first);
                self.runs[run as usize].next_sub = next_sub - 1;
                self.runs[run as usize].first = segment;
                self.metas[segment as usize].run = run;
                if self.metas[first as usize].link == Link::Listed {
                    self.list_before(first, segment);
                }
                self.put(segment, WIDTH - 1, slot);
            }
            lowest => self.put(first, lowest - 1, slot),
        }
    }

    /// Puts a slot in order into the oldest segment of a run, if it belongs and fits there.
    fn insert_into_first(&mut self, run: u32, slot: SlotId, tier: &dyn Residents) -> bool {
        let first = self.runs[run as usize].first;
        let Meta { live, waiting, newer, .. } = self.metas[first as usize];
        if live.count_ones() == WIDTH || self.runs[run as usize].unsorted > 0 {
            return false;
        }
        let highest = self.segments[first as usize].slots[15 - live.leading_zeros() as usize];
        let is_last = newer == NONE || self.metas[newer as usize].run != run;
        if !is_last && self.compare_in_run(slot.0, highest, tier) == Ordering::Greater {
            return false;
        }
        // From the recent end down, so that the run keeps its room at the old end.
        let old = self.segments[first as usize].slots;
        let (mut new, mut new_live, mut new_waiting) = ([NONE; WIDTH as usize], 0u16, 0u16);
        let (mut index, mut placed) = (WIDTH, false);
        let mut left = live;
        while left != 0 || !placed {
            let from = if left == 0 { None } else { Some(left.ilog2()) };
            let below = from.is_none_or(|from| {
                self.compare_in_run(slot.0, old[from as usize], tier) == Ordering::Greater
            });
            index -= 1;
            let (next, is_waiting) = match from {
                Some(from) if placed || !below => {
                    left &= !(1 << from);
                    (old[from as usize], waiting >> from & 1)
                }
                _ => {
                    placed = true;
                    (slot.0, 1)
                }
            };
            new[index as usize] = next;
            new_live |= 1 << index;
            new_waiting |= is_waiting << index;
            self.places[next as usize] = first << 4 | index;
        }
        self.segments[first as usize].slots = new;
        let meta = &mut self.metas[first as usize];
        meta.live = new_live;
        meta.waiting = new_waiting;
        self.queues[meta.queue as usize].len += 1;
        self.bring_back(first);
        true
    }

    /// Puts a run in order: lays its old end out anew, as far as what came out of order reaches.
    fn sort_run(&mut self, run: u32, tier: &dyn Residents) {
        let unsorted = std::mem::take(&mut self.runs[run as usize].unsorted) as usize;
        let mut slots = std::mem::take(&mut self.scratch);
        slots.clear();
        let mut newest = NONE;
        let mut segment = self.runs[run as usize].first;
        while segment != NONE && self.metas[segment as usize].run == run {
            let Meta { live, waiting, newer, .. } = self.metas[segment as usize];
            let in_segment = self.segments[segment as usize].slots;
            let oldest = in_segment[live.trailing_zeros() as usize % WIDTH as usize];
            if !slots.is_empty()
                && slots.len() >= unsorted
                && self.compare_in_run(oldest, newest, tier) == Ordering::Greater
            {
                break;
            }
            for index in (0..WIDTH).filter(|index| live >> index & 1 == 1) {
                let slot = in_segment[index as usize];
                if newest == NONE || self.compare_in_run(slot, newest, tier) == Ordering::Greater {
                    newest = slot;
                }
                slots.push((slot, waiting >> index & 1 == 1));
            }
            segment = newer;
        }
        slots.sort_unstable_by(|(a, _), (b, _)| self.compare_in_run(*b, *a, tier));
        for (slot, _) in &slots {
            self.remove(SlotId(*slot));
        }
        for (slot, is_waiting) in &slots {
            self.prepend_to_run(run, SlotId(*slot));
            if !is_waiting {
                let place = self.places[*slot as usize];
                self.metas[(place >> 4) as usize].waiting &= !(1 << (place & 15));
            }
        }
        self.scratch = slots;
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

/// Whether an entry of a heap is still meant: its segment may have been freed and used again since.
fn is_returned(metas: &[Meta], (label, segment): &(Label, u32)) -> bool {
    let meta = &metas[*segment as usize];
    meta.link == Link::Returned && meta.label == *label
}

#[cfg(test)]
mod tests;
