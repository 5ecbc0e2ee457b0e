//! Runs: the parts of a queue that the chunks of one running request share.

use std::cmp::Ordering;

use kvo_core::SlotId;

use super::{Label, Link, Meta, NONE, Orders, Place, WIDTH};
use crate::policy::{KeyAccess, Residents};

/// Segments of a run count down from here, so that a run has room on its old side.
const RUN_START: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    pub(super) sequence: u64,
    pub(super) queue: u8,
    /// Its oldest segment; a run that is empty keeps one, for its place.
    pub(super) first: u32,
    next_sub: u32,
    pub(super) len: u32,
    /// The largest position that was ever put into it.
    last_end_token: u32,
    /// Whether each slot was put into it at a position beyond all before.
    is_ascending: bool,
    /// How many of its slots, those at its old end, may not be in order.
    pub(super) unsorted: u32,
}

impl<const Q: usize> Orders<Q> {
    /// Begins a run at the recent end of a queue.
    pub(crate) fn begin_run(&mut self, queue: usize) -> u32 {
        let queue = u8::try_from(queue).expect("there are few queues");
        let run = self.free_runs.pop().unwrap_or_else(|| {
            self.runs.push(Run::begin(0, queue, NONE));
            u32::try_from(self.runs.len() - 1).expect("a run takes far more than a byte")
        });
        self.merge_some(queue as usize);
        let first = self.append_segment(queue as usize, RUN_START);
        self.metas[first as usize].run = run;
        self.runs[run as usize] = Run::begin(self.metas[first as usize].sequence, queue, first);
        run
    }

    /// Whether a slot would move towards the recent end by being put into a run at `end_token`, if it is not there yet
    /// or nearer the tail.
    pub(crate) fn is_raised_by_run(&self, slot: SlotId, run: u32, end_token: u32) -> bool {
        let place = self.places[slot.0 as usize];
        let Some(meta) = self.metas.get((place.at >> 4) as usize) else { return true };
        meta.sequence < self.runs[run as usize].sequence || meta.run == run && end_token < place.end_token
    }

    /// Puts a slot, wherever it is, into a run, ordered by position, the last first, then by key bytes.
    #[inline]
    pub(crate) fn push_to_run(&mut self, run: u32, slot: SlotId, end_token: u32, tier: &dyn Residents) {
        self.remove(slot);
        self.places[slot.0 as usize].end_token = end_token;
        let state = &mut self.runs[run as usize];
        if end_token > state.last_end_token {
            state.last_end_token = end_token;
            state.unsorted += u32::from(state.unsorted > 0);
            self.prepend_to_run(run, slot);
        } else {
            self.push_out_of_order(run, slot, tier);
        }
    }

    /// Puts those of `chunks` that have a slot and a position into a run that would be [raised](Self::is_raised_by_run)
    /// by it, in their order.
    pub(crate) fn raise_all_to_run(&mut self, run: u32, chunks: &[KeyAccess], tier: &dyn Residents) {
        let mut left = chunks;
        while !left.is_empty() {
            let is_raised = |access: &&KeyAccess| {
                let at = access.slot.zip(access.end_token);
                at.is_some_and(|(slot, end_token)| self.is_raised_by_run(slot, run, end_token))
            };
            let (raised, rest) = left.split_at(left.iter().take_while(is_raised).count());
            self.remove_all(raised.iter().filter_map(|access| access.slot));
            self.push_all_to_run(run, raised, tier);
            left = rest.get(1..).unwrap_or_default();
        }
    }

    /// As [`push_to_run`](Self::push_to_run) of each of `chunks`, all of which have a slot and a position, in their
    /// order. Chunks that rise, and are in no queue yet, are laid down side by side.
    pub(crate) fn push_all_to_run(&mut self, run: u32, chunks: &[KeyAccess], tier: &dyn Residents) {
        let mut left = chunks;
        while let [next, rest @ ..] = left {
            let num_laid = if rest.is_empty() { 0 } else { self.lay_down(run, left) };
            if num_laid > 0 {
                left = &left[num_laid..];
                continue;
            }
            let (slot, end_token) = next.slot.zip(next.end_token).expect("it has a slot and a position");
            self.push_to_run(run, slot, end_token, tier);
            left = rest;
        }
    }

    /// Puts the first of `chunks` into the room of a run's oldest segment, as many as rise and are in no queue; returns
    /// how many.
    fn lay_down(&mut self, run: u32, chunks: &[KeyAccess]) -> usize {
        let Run { first, unsorted, mut last_end_token, .. } = self.runs[run as usize];
        if unsorted > 0 {
            return 0;
        }
        let room = (self.metas[first as usize].live | 1 << WIDTH).trailing_zeros();
        let slots = &mut self.segments[first as usize].slots;
        let mut index = room;
        for KeyAccess { slot, end_token, .. } in chunks.iter().take(room as usize) {
            let (Some(slot), Some(end_token)) = (*slot, *end_token) else { break };
            let place = &mut self.places[slot.0 as usize];
            if place.at != NONE || end_token <= last_end_token {
                break;
            }
            index -= 1;
            slots[index as usize] = slot;
            *place = Place { at: first << 4 | index, end_token };
            last_end_token = end_token;
        }
        if index < room {
            self.runs[run as usize].last_end_token = last_end_token;
            self.put_in(first, (1 << room) - (1 << index));
        }
        (room - index) as usize
    }

    /// As [`push_to_run`](Self::push_to_run), at a position that is not beyond all that were put there.
    fn push_out_of_order(&mut self, run: u32, slot: SlotId, tier: &dyn Residents) {
        let state = &mut self.runs[run as usize];
        state.is_ascending = false;
        let first = state.first;
        let live = self.metas[first as usize].live;
        let is_behind_oldest = live != 0 && {
            let oldest = self.segments[first as usize].slots[live.trailing_zeros() as usize];
            self.compare_in_run(slot, oldest, tier) == Ordering::Greater
        };
        if is_behind_oldest && self.insert_into_first(run, slot, tier) {
            return;
        }
        if is_behind_oldest && self.runs[run as usize].unsorted == 0 {
            self.note_dirty(run);
        }
        let unsorted = &mut self.runs[run as usize].unsorted;
        *unsorted += u32::from(is_behind_oldest || *unsorted > 0);
        self.prepend_to_run(run, slot);
    }

    /// Ends a run. What is still in it keeps its place.
    pub(crate) fn end_run(&mut self, run: u32, tier: &dyn Residents) {
        if self.runs[run as usize].unsorted > 0 {
            self.sort_run(run, tier);
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

    /// Ends a run that holds nothing.
    pub(crate) fn end_empty_run(&mut self, run: u32) {
        let Run { first, len, .. } = self.runs[run as usize];
        assert_eq!(len, 0, "a run that is not empty must be ended in order");
        self.runs[run as usize].unsorted = 0;
        self.metas[first as usize].run = NONE;
        self.free(first);
        self.free_runs.push(run);
    }

    /// Ends a run and moves it to the recent end as it stands, if it holds exactly `slots`, oldest first. Else changes
    /// nothing and returns `false`.
    ///
    /// So committing a request that met only its own chunks costs a few steps a segment, not a few a chunk.
    pub(crate) fn promote_run(&mut self, run: u32, slots: impl Iterator<Item = SlotId>) -> bool {
        let Some(last) = self.last_of_exactly(run, slots) else { return false };
        self.promote_segments(run, last);
        true
    }

    /// As [`promote_run`](Self::promote_run), of a run of which the caller knows that it holds some of `len` slots,
    /// each of another position: it is all of them if it holds as many. Looks at no slot.
    pub(crate) fn promote_run_of(&mut self, run: u32, len: usize) -> bool {
        let Run { first, len: in_run, is_ascending, .. } = self.runs[run as usize];
        if !is_ascending || in_run == 0 || in_run as usize != len {
            return false;
        }
        let mut last = first;
        let mut next = self.metas[last as usize].newer;
        while next != NONE && self.metas[next as usize].run == run {
            last = next;
            next = self.metas[next as usize].newer;
        }
        self.promote_segments(run, last);
        true
    }

    /// Ends a run, whose newest segment is `last`, and moves it to the recent end.
    fn promote_segments(&mut self, run: u32, last: u32) {
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
                return;
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
                if slots.next() != Some(slot) {
                    return None;
                }
                left &= left - 1;
            }
            last = segment;
            segment = self.metas[segment as usize].newer;
        }
        slots.next().is_none().then_some(last)
    }

    /// Puts runs that were filled out of order in order. To be called before a scan.
    pub(crate) fn sort_runs(&mut self, tier: &dyn Residents) {
        while let Some(run) = self.dirty_runs.pop() {
            // Not if the run has ended since.
            if self.runs[run as usize].unsorted > 0 {
                self.sort_run(run, tier);
            }
        }
    }

    /// A run is to be sorted. Those that have ended since they were noted are forgotten once they are most.
    fn note_dirty(&mut self, run: u32) {
        if self.dirty_runs.len() > 2 * self.runs.len() + 64 {
            let runs = &self.runs;
            self.dirty_runs.retain(|run| runs[*run as usize].unsorted > 0);
        }
        self.dirty_runs.push(run);
    }

    /// Puts a run in order: lays its old end out anew, as far as what came out of order reaches.
    fn sort_run(&mut self, run: u32, tier: &dyn Residents) {
        let unsorted = std::mem::take(&mut self.runs[run as usize].unsorted) as usize;
        let mut slots = std::mem::take(&mut self.scratch);
        slots.clear();
        let mut newest: Option<SlotId> = None;
        let mut segment = self.runs[run as usize].first;
        while segment != NONE && self.metas[segment as usize].run == run {
            let Meta { live, waiting, newer, .. } = self.metas[segment as usize];
            let in_segment = self.segments[segment as usize].slots;
            let oldest = in_segment[live.trailing_zeros() as usize % WIDTH as usize];
            let is_newer = |slot, than| self.compare_in_run(slot, than, tier) == Ordering::Greater;
            if slots.len() >= unsorted && newest.is_some_and(|newest| is_newer(oldest, newest)) {
                break;
            }
            for index in (0..WIDTH).filter(|index| live >> index & 1 == 1) {
                let slot = in_segment[index as usize];
                if newest.is_none_or(|newest| is_newer(slot, newest)) {
                    newest = Some(slot);
                }
                slots.push((slot, waiting >> index & 1 == 1));
            }
            segment = newer;
        }
        slots.sort_unstable_by(|(a, _), (b, _)| self.compare_in_run(*b, *a, tier));
        for (slot, _) in &slots {
            self.remove(*slot);
        }
        for (slot, is_waiting) in &slots {
            self.prepend_to_run(run, *slot);
            if !is_waiting {
                let place = self.places[slot.0 as usize].at;
                self.metas[(place >> 4) as usize].waiting &= !(1 << (place & 15));
            }
        }
        self.scratch = slots;
    }

    /// Which of two slots of a run goes first.
    fn compare_in_run(&self, a: SlotId, b: SlotId, tier: &dyn Residents) -> Ordering {
        let end_token = |slot: SlotId| self.places[slot.0 as usize].end_token;
        end_token(b).cmp(&end_token(a)).then_with(|| tier.key(a).cmp(&tier.key(b)))
    }

    /// Puts a slot at the old end of a run.
    #[inline]
    fn prepend_to_run(&mut self, run: u32, slot: SlotId) {
        let first = self.runs[run as usize].first;
        let live = self.metas[first as usize].live;
        // Above the bits of a segment's slots, so that an empty one has room at its recent end.
        match (live | 1 << WIDTH).trailing_zeros() {
            0 => {
                let segment = self.extend_run(run);
                self.put(segment, WIDTH - 1, slot);
            }
            lowest => self.put(first, lowest - 1, slot),
        }
    }

    /// Gives a run another segment at its old end.
    fn extend_run(&mut self, run: u32) -> u32 {
        let Run { first, queue, sequence, next_sub, .. } = self.runs[run as usize];
        self.merge_some(queue as usize);
        let segment = self.allocate(queue as usize, Label { sequence, sub: next_sub }, first);
        self.runs[run as usize].next_sub = next_sub - 1;
        self.runs[run as usize].first = segment;
        self.metas[segment as usize].run = run;
        if self.metas[first as usize].link == Link::Listed {
            self.list_before(first, segment);
        }
        segment
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
        if !is_last && self.compare_in_run(slot, highest, tier) == Ordering::Greater {
            return false;
        }
        // From the recent end down, so that the run keeps its room at the old end.
        let old = self.segments[first as usize].slots;
        let (mut new, mut new_live, mut new_waiting) = ([SlotId(NONE); WIDTH as usize], 0u16, 0u16);
        let (mut index, mut placed) = (WIDTH, false);
        let mut left = live;
        while left != 0 || !placed {
            let from = if left == 0 { None } else { Some(left.ilog2()) };
            let below = from
                .is_none_or(|from| self.compare_in_run(slot, old[from as usize], tier) == Ordering::Greater);
            index -= 1;
            let (next, is_waiting) = match from {
                Some(from) if placed || !below => {
                    left &= !(1 << from);
                    (old[from as usize], waiting >> from & 1)
                }
                _ => {
                    placed = true;
                    (slot, 1)
                }
            };
            new[index as usize] = next;
            new_live |= 1 << index;
            new_waiting |= is_waiting << index;
            self.places[next.0 as usize].at = first << 4 | index;
        }
        self.segments[first as usize].slots = new;
        let meta = &mut self.metas[first as usize];
        meta.live = new_live;
        meta.waiting = new_waiting;
        self.queues[meta.queue as usize].len += 1;
        self.runs[run as usize].len += 1;
        self.bring_back(first);
        true
    }
}

impl Run {
    fn begin(sequence: u64, queue: u8, first: u32) -> Self {
        Self {
            sequence,
            queue,
            first,
            next_sub: RUN_START - 1,
            len: 0,
            last_end_token: 0,
            is_ascending: true,
            unsorted: 0,
        }
    }
}
