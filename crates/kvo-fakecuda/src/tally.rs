//! What the driver counts and writes down for tests.

use std::collections::VecDeque;

pub(crate) use crate::tally_kinds::*;
use crate::wire::{Count, Item, List};

const LINES_MAX: usize = 65_536;

#[derive(Default)]
pub(crate) struct Tally {
    pub(crate) bytes_to_device: u64,
    pub(crate) bytes_to_host: u64,
    pub(crate) bytes_on_device: u64,
    pub(crate) copies: u64,
    pub(crate) pageable_copies: u64,
    pub(crate) batches: u64,
    pub(crate) batch_members: u64,
    pub(crate) launches: u64,
    /// Callers that are blocked now.
    pub(crate) waiting: u64,
    violations: VecDeque<Item>,
    mismatches: VecDeque<Item>,
    /// What was there when its context ended.
    leaks: VecDeque<Item>,
    journal: VecDeque<Item>,
}

impl Tally {
    pub(crate) fn violation(&mut self, kind: u32, numbers: [u64; 5]) {
        write(&mut self.violations, kind, numbers);
    }

    pub(crate) fn mismatch(&mut self, numbers: [u64; 5]) {
        write(&mut self.mismatches, 0, numbers);
    }

    pub(crate) fn leak(&mut self, kind: u32, handle: u64) {
        write(&mut self.leaks, kind, [handle, 0, 0, 0, 0]);
    }

    pub(crate) fn ran(&mut self, kind: u32, numbers: [u64; 5]) {
        write(&mut self.journal, kind, numbers);
    }

    pub(crate) fn of(&self, count: Count) -> Option<u64> {
        Some(match count {
            Count::BytesToDevice => self.bytes_to_device,
            Count::BytesToHost => self.bytes_to_host,
            Count::BytesOnDevice => self.bytes_on_device,
            Count::Copies => self.copies,
            Count::PageableCopies => self.pageable_copies,
            Count::Batches => self.batches,
            Count::BatchMembers => self.batch_members,
            Count::Launches => self.launches,
            Count::Waiting => self.waiting,
            _ => return None,
        })
    }

    pub(crate) fn list(&mut self, list: List) -> &mut VecDeque<Item> {
        match list {
            List::Violations => &mut self.violations,
            List::Mismatches => &mut self.mismatches,
            List::Leaks => &mut self.leaks,
            List::Journal => &mut self.journal,
        }
    }
}

/// The oldest lines make room.
fn write(list: &mut VecDeque<Item>, kind: u32, numbers: [u64; 5]) {
    if list.len() == LINES_MAX {
        list.pop_front();
    }
    list.push_back(Item { is_there: true, kind, numbers });
}
