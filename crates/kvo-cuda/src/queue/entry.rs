//! One transfer in the queue.

use std::time::Duration;

use kvo_core::{CopyOp, Fence, Ticket, Transfer, TransferClass, TransferFailure};

use super::{MarkState, check::Size};

/// A place in a transfer: a copy, and how many of its bytes lie before. Never at the end of a copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Cursor {
    op: usize,
    offset: u64,
}

/// A transfer from its submission until it is reported and the device has nothing of it.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) ticket: Ticket,
    pub(super) class: TransferClass,
    pub(super) ops: Vec<CopyOp>,
    marks: Vec<u32>,
    pub(super) after: Fence,
    pub(super) deadline: Option<Duration>,
    pub(super) size: Size,
    pub(super) submitted: Duration,
    pub(super) span: tracing::Span,
    /// Everything before was given out.
    pub(super) cursor: Cursor,
    /// By part: pieces on the device.
    on_device: Vec<u32>,
    pub(super) num_on_device: u32,
    pub(super) failure: Option<TransferFailure>,
    pub(super) is_reported: bool,
}

impl Entry {
    pub(super) fn new(
        ticket: Ticket,
        transfer: Transfer,
        size: Size,
        submitted: Duration,
        mut on_device: Vec<u32>,
    ) -> Self {
        let Transfer { class, ops, marks, after, deadline } = transfer;
        let (bytes, num_ops) = (size.bytes, ops.len());
        let span = if class == TransferClass::Store {
            tracing::debug_span!("kvo.cuda.store", ticket = ticket.0, bytes, num_ops)
        } else {
            tracing::debug_span!("kvo.cuda.load", ticket = ticket.0, bytes, num_ops)
        };
        on_device.resize(marks.len() + 1, 0);
        Self {
            ticket,
            class,
            ops,
            marks,
            after,
            deadline,
            size,
            submitted,
            span,
            cursor: Cursor::default(),
            on_device,
            num_on_device: 0,
            failure: None,
            is_reported: false,
        }
    }

    /// The list of counts, all of them 0, for another transfer.
    pub(super) fn into_counts(mut self) -> Vec<u32> {
        self.on_device.clear();
        self.on_device
    }

    pub(super) fn has_begun(&self) -> bool {
        self.cursor > Cursor::default()
    }

    pub(super) fn is_issued(&self) -> bool {
        self.cursor.op == self.ops.len()
    }

    /// Whether its bytes are still of use.
    pub(super) fn is_wanted(&self) -> bool {
        !self.is_reported && self.failure.is_none()
    }

    pub(super) fn expires(&self) -> Option<Duration> {
        self.submitted.checked_add(self.deadline?)
    }

    /// Marks up to which everything was given out.
    pub(super) fn marks_issued(&self) -> u32 {
        let issued = self.marks.partition_point(|mark| *mark as usize <= self.cursor.op);
        u32::try_from(issued).expect("marks are fewer than copies, which are checked to be 32 bits")
    }

    /// The part that is given out next.
    pub(super) fn part(&self) -> usize {
        self.marks_issued() as usize
    }

    /// Where the next piece ends, and its bytes. It ends at the next mark, has at most `ops_max` copies, and at most
    /// `quantum` bytes; a copy is cut only if it is longer than that.
    pub(super) fn cut(&self, quantum: u64, ops_max: usize) -> (Cursor, u64) {
        let part_end = self.marks.get(self.part()).map_or(self.ops.len(), |mark| *mark as usize);
        let Cursor { op, offset } = self.cursor;
        let rest = self.ops[op].bytes - offset;
        if rest > quantum {
            return (Cursor { op, offset: offset + quantum }, quantum);
        }
        let (mut end, mut bytes) = (op + 1, rest);
        while end < part_end.min(op.saturating_add(ops_max)) && self.ops[end].bytes <= quantum - bytes {
            bytes += self.ops[end].bytes;
            end += 1;
        }
        (Cursor { op: end, offset: 0 }, bytes)
    }

    /// Everything before `end` was given out, the last piece being of `part`.
    pub(super) fn advance(&mut self, end: Cursor, part: usize) {
        self.cursor = end;
        self.on_device[part] += 1;
        self.num_on_device += 1;
    }

    /// A piece of `part` has ended.
    pub(super) fn end(&mut self, part: usize) {
        self.on_device[part] -= 1;
        self.num_on_device -= 1;
    }

    /// How far it is with the copies up to a mark; `None` if it has no such mark.
    pub(super) fn mark(&self, mark: u32) -> Option<MarkState> {
        let op = *self.marks.get(mark as usize)? as usize;
        let state = if self.is_reported {
            MarkState::Over
        } else if self.cursor.op < op {
            MarkState::Queued
        } else if self.on_device[..=mark as usize].iter().any(|pieces| *pieces > 0) {
            MarkState::Issued
        } else {
            MarkState::Copied
        };
        Some(state)
    }

    pub(super) fn copies(&self, start: Cursor, end: Cursor, into: &mut Vec<CopyOp>) {
        let last = end.op + usize::from(end.offset > 0);
        for (nth, op) in (start.op..).zip(&self.ops[start.op..last]) {
            let from = if nth == start.op { start.offset } else { 0 };
            let to = if nth == end.op { end.offset } else { op.bytes };
            let (device_offset, slot_offset) = (op.device_offset + from, op.slot_offset + from);
            into.push(CopyOp { device_offset, slot_offset, bytes: to - from, ..*op });
        }
    }
}
