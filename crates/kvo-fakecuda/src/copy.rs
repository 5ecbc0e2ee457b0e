//! Copies: what a caller's addresses mean, and what the driver refuses before anything is queued.

use crate::{
    abi::{Code, Copy2d, CopyAttributes, Done, LEGACY_STREAM, SOURCE_IN_STREAM_ORDER, SOURCE_ORDER_MAX},
    host::Overlap,
    memory::Span,
    pointers::{In, Out},
    state::{Driver, State},
    streams::Point,
    tally,
    wire::native,
    work::Work,
};

/// Whose memory it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// Inside of one allocation of the device with that index.
    Device(usize),
    /// Inside of one registration. Whether a kernel and a batch reach it under this address is said with it.
    Pinned { is_device_address: bool },
    /// Host memory that no one has registered.
    Pageable,
}

/// A stretch of memory as a caller names it, and where it really is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) side: Side,
    pub(crate) address: u64,
    pub(crate) span: Span,
}

#[derive(Debug)]
pub(crate) enum Source {
    Place(Place),
    /// Read during the call.
    Staged(Vec<u8>),
}

/// One contiguous copy.
#[derive(Debug)]
pub(crate) struct Piece {
    pub(crate) from: Source,
    pub(crate) from_address: u64,
    from_side: Side,
    pub(crate) to: Place,
}

/// Copies that are one entry of a stream: one, the rows of a rectangle, or a batch. They run from the last to the first.
#[derive(Debug)]
pub(crate) struct Copy {
    pub(crate) pieces: Vec<Piece>,
}

/// Which way a function copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    ToDevice,
    ToHost,
    OnDevice,
    /// As the addresses say.
    Any,
}

impl Way {
    fn allows(self, from: Side, to: Side) -> bool {
        let (from, to) = (matches!(from, Side::Device(_)), matches!(to, Side::Device(_)));
        match self {
            Self::ToDevice => !from && to,
            Self::ToHost => from && !to,
            Self::OnDevice => from && to,
            Self::Any => true,
        }
    }
}

impl Piece {
    /// The engine that makes it: the device, and whether it goes there. `None` for a copy within a device or the host.
    pub(crate) fn engine(&self) -> Option<(usize, bool)> {
        match (self.from_side, self.to.side) {
            (Side::Device(_), Side::Device(_)) => None,
            (_, Side::Device(device)) => Some((device, true)),
            (Side::Device(device), _) => Some((device, false)),
            _ => None,
        }
    }

    /// Whether one of its sides touches these bytes. A source that was read during the call touches none.
    pub(crate) fn touches(&self, start: u64, bytes: u64) -> bool {
        let length = self.to.span.bytes() as u64;
        let is_read =
            matches!(self.from, Source::Place(_)) && overlaps(self.from_address, length, start, bytes);
        is_read || overlaps(self.to.address, length, start, bytes)
    }

    fn is_to_pageable(&self) -> bool {
        self.to.side == Side::Pageable && matches!(self.from_side, Side::Device(_))
    }
}

fn overlaps(start: u64, bytes: u64, other: u64, other_bytes: u64) -> bool {
    start < other.saturating_add(other_bytes) && other < start.saturating_add(bytes)
}

impl State {
    /// What `bytes` bytes at `address` are to work in `context`.
    pub(crate) fn place(&self, context: u64, address: u64, bytes: usize) -> Result<Place, Code> {
        if address == 0 || address.checked_add(bytes as u64).is_none() {
            return Err(Code::INVALID_VALUE);
        }
        if let Some(device) = self.device_at(address) {
            let (_, start, length) = self.allocation_at(address).ok_or(Code::INVALID_VALUE)?;
            let is_inside = bytes as u64 <= start + length as u64 - address;
            let span = self.arenas[device].span(address, bytes).filter(|_| is_inside);
            let span = span.ok_or(Code::INVALID_VALUE)?;
            return Ok(Place { side: Side::Device(device), address, span });
        }
        let device = self.usable(context)?;
        let host = self.host.host_address_of(device, address)?;
        let span = Span::of_caller(host, bytes);
        let side = match self.host.overlap(context, host, bytes) {
            Overlap::Inside(range) => {
                Side::Pinned { is_device_address: range.address_on(device) + (host - range.start) == address }
            }
            Overlap::Straddles => return Err(Code::INVALID_VALUE),
            Overlap::Outside => Side::Pageable,
        };
        Ok(Place { side, address: host, span })
    }

    /// A copy of `bytes` bytes. A pageable source is read now; so is any if `is_read_now`.
    fn piece(
        &mut self,
        context: u64,
        to: u64,
        from: u64,
        bytes: usize,
        is_read_now: bool,
    ) -> Result<Piece, Code> {
        let (to, from) = (self.place(context, to, bytes)?, self.place(context, from, bytes)?);
        let is_pageable = from.side == Side::Pageable;
        self.tally.pageable_copies += u64::from(is_pageable || to.side == Side::Pageable);
        let source =
            if is_pageable || is_read_now { Source::Staged(from.span.to_vec()) } else { Source::Place(from) };
        Ok(Piece { from: source, from_address: from.address, from_side: from.side, to })
    }

    /// Refuses members that a batch may not have: its order is not defined.
    fn note_overlaps(&mut self, pieces: &[Piece]) {
        let mut written: Vec<(u64, u64, usize)> = pieces
            .iter()
            .enumerate()
            .map(|(index, piece)| (piece.to.address, piece.to.span.bytes() as u64, index))
            .collect();
        written.sort_unstable();
        for pair in written.windows(2) {
            if overlaps(pair[0].0, pair[0].1, pair[1].0, pair[1].1) {
                let numbers = [pair[0].2 as u64, pair[1].2 as u64, pair[1].0, 0, 0];
                self.tally.violation(tally::BATCH_OVERLAP, numbers);
            }
        }
        for (index, piece) in pieces.iter().enumerate() {
            let (start, bytes) = (piece.from_address, piece.to.span.bytes() as u64);
            let behind = written.partition_point(|(to, _, _)| *to < start + bytes);
            if let Some((to, length, other)) = behind.checked_sub(1).map(|at| written[at])
                && overlaps(start, bytes, to, length)
            {
                self.tally.violation(tally::BATCH_OVERLAP, [index as u64, other as u64, to, 0, 0]);
            }
        }
    }
}

/// What the two addresses of one copy are, and its length.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ends {
    pub(crate) to: u64,
    pub(crate) from: u64,
    pub(crate) bytes: usize,
}

impl Driver {
    /// One copy. Into pageable memory it is over when the call returns.
    pub(crate) fn copy(&self, context: u64, way: Way, ends: Ends, stream: u64) -> Done {
        self.copy_rows(context, way, &[ends], stream).map(|_| ())
    }

    /// As [`copy`](Self::copy), and over when the call returns.
    pub(crate) fn copy_and_wait(&self, context: u64, way: Way, ends: Ends) -> Done {
        match self.copy_rows(context, way, &[ends], 0)? {
            Some(point) => self.wait_until(context, |_| point.is_passed()),
            None => Ok(()),
        }
    }

    fn copy_rows(&self, context: u64, way: Way, rows: &[Ends], stream: u64) -> Result<Option<Point>, Code> {
        let mut state = self.lock();
        state.stream_of(context, stream)?;
        let mut pieces = Vec::with_capacity(rows.len());
        for row in rows.iter().filter(|row| row.bytes > 0) {
            let piece = state.piece(context, row.to, row.from, row.bytes, false)?;
            if !way.allows(piece.from_side, piece.to.side) {
                return Err(Code::INVALID_VALUE);
            }
            pieces.push(piece);
        }
        if pieces.is_empty() {
            return Ok(None);
        }
        let is_to_pageable = pieces.iter().any(Piece::is_to_pageable);
        let point = state.enqueue(context, stream, Work::Copy(Copy { pieces }))?;
        drop(state);
        if is_to_pageable {
            self.wait_until(context, |_| point.is_passed())?;
        }
        Ok(Some(point))
    }

    /// The rows of a rectangle.
    pub(crate) fn copy_2d(&self, context: u64, copy: &Copy2d, stream: u64) -> Done {
        let from = end_of(copy.src_memory, copy.src_host, copy.src_device)?;
        let to = end_of(copy.dst_memory, copy.dst_host, copy.dst_device)?;
        if copy.width_bytes == 0 || copy.height == 0 {
            return Ok(());
        }
        let from = Rows { base: from, x: copy.src_x_bytes, y: copy.src_y, pitch: copy.src_pitch };
        let to = Rows { base: to, x: copy.dst_x_bytes, y: copy.dst_y, pitch: copy.dst_pitch };
        let rows: Option<Vec<Ends>> = (0..copy.height)
            .map(|row| {
                let (to, from) = (to.start(row, copy)?, from.start(row, copy)?);
                Some(Ends { to, from, bytes: copy.width_bytes })
            })
            .collect();
        let rows = rows.ok_or(Code::INVALID_VALUE)?;
        let (first, last) = (rows[0], rows[rows.len() - 1]);
        let state = self.lock();
        // What is between the rows is of the same memory as these.
        for (start, end) in [(first.to, last.to), (first.from, last.from)] {
            state.place(context, start, native(end - start) + copy.width_bytes)?;
        }
        drop(state);
        self.copy_rows(context, Way::Any, &rows, stream).map(|_| ())
    }
}

/// The address that a rectangle starts from.
fn end_of(memory: u32, host: u64, device: u64) -> Result<u64, Code> {
    match memory {
        crate::abi::MEMORY_HOST => Ok(host),
        crate::abi::MEMORY_DEVICE | crate::abi::MEMORY_UNIFIED => Ok(device),
        _ => Err(Code::INVALID_VALUE),
    }
}

/// Rows in memory.
struct Rows {
    base: u64,
    x: usize,
    y: usize,
    pitch: usize,
}

impl Rows {
    /// Where a row starts. A row does not reach into the next.
    fn start(&self, row: usize, copy: &Copy2d) -> Option<u64> {
        // With no pitch the rows lie one behind the other.
        let pitch = if self.pitch == 0 { copy.width_bytes } else { self.pitch };
        if self.x.checked_add(copy.width_bytes)? > pitch {
            return None;
        }
        let offset = self.y.checked_add(row)?.checked_mul(pitch)?.checked_add(self.x)?;
        self.base.checked_add(offset as u64)
    }
}

/// The arguments of a batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Batch {
    pub(crate) to: In<u64>,
    pub(crate) from: In<u64>,
    pub(crate) bytes: In<usize>,
    pub(crate) count: usize,
    pub(crate) attributes: In<CopyAttributes>,
    /// The first member that each attribute is for.
    pub(crate) first_of: In<usize>,
    pub(crate) num_attributes: usize,
}

impl Batch {
    /// The source order of each member.
    fn orders(&self) -> Result<Vec<u32>, Code> {
        let mut orders = Vec::with_capacity(self.count);
        if self.count == 0 || self.num_attributes == 0 || self.num_attributes > self.count {
            return Err(Code::INVALID_VALUE);
        }
        for index in 0..self.num_attributes {
            let order = self.attributes.at(index)?.source_order;
            let first = self.first_of.at(index)?;
            let end = if index + 1 < self.num_attributes { self.first_of.at(index + 1)? } else { self.count };
            let is_known = (SOURCE_IN_STREAM_ORDER..=SOURCE_ORDER_MAX).contains(&order);
            if !is_known || first != orders.len() || end <= first || end > self.count {
                return Err(Code::INVALID_VALUE);
            }
            orders.resize(end, order);
        }
        Ok(orders)
    }
}

impl Driver {
    /// A batch. `fail_index` gets the member that is wrong, or the largest number if none is to blame.
    ///
    /// A source that need not be read in stream order is read now: the worst that the caller allows. At an error the
    /// members behind the one to blame are queued all the same.
    pub(crate) fn copy_batch(
        &self,
        context: u64,
        batch: &Batch,
        fail_index: Out<usize>,
        stream: u64,
    ) -> Done {
        fail_index.put_if_wanted(usize::MAX);
        if stream == 0 || stream == LEGACY_STREAM {
            return Err(Code::INVALID_VALUE);
        }
        let orders = batch.orders()?;
        let mut state = self.lock();
        state.stream_of(context, stream)?;
        state.tally.batches += 1;
        let injected = state.faults.of_batch(batch.count);
        let mut pieces = Vec::with_capacity(batch.count);
        let mut failure = None;
        for (index, order) in orders.iter().enumerate().rev() {
            let piece = match injected {
                Some((member, code)) if member == index => Err(code),
                _ => state.member(context, batch, index, *order),
            };
            match piece {
                Ok(piece) => pieces.push(piece),
                Err(code) => {
                    failure = Some((index, code));
                    break;
                }
            }
        }
        pieces.reverse();
        state.tally.batch_members += pieces.len() as u64;
        state.note_overlaps(&pieces);
        let is_to_pageable = pieces.iter().any(Piece::is_to_pageable);
        let is_reached = pieces.iter().all(|piece| is_reached(piece.from_side) && is_reached(piece.to.side));
        let point = if pieces.is_empty() {
            None
        } else if is_reached {
            Some(state.enqueue(context, stream, Work::Copy(Copy { pieces }))?)
        } else {
            // The device does not know the host's addresses, and finds out when it gets there.
            state.enqueue(context, stream, Work::Fault(Code::ILLEGAL_ADDRESS))?;
            None
        };
        drop(state);
        if let Some((index, code)) = failure {
            fail_index.put_if_wanted(index);
            return Err(code);
        }
        match point.filter(|_| is_to_pageable) {
            Some(point) => self.wait_until(context, |_| point.is_passed()),
            None => Ok(()),
        }
    }
}

fn is_reached(side: Side) -> bool {
    side != Side::Pinned { is_device_address: false }
}

impl State {
    fn member(&mut self, context: u64, batch: &Batch, index: usize, order: u32) -> Result<Piece, Code> {
        let bytes = batch.bytes.at(index)?;
        if bytes == 0 {
            return Err(Code::INVALID_VALUE);
        }
        let is_read_now = order != SOURCE_IN_STREAM_ORDER;
        self.piece(context, batch.to.at(index)?, batch.from.at(index)?, bytes, is_read_now)
    }
}
