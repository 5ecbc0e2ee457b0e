//! What is on a stream, and how it is done.

use std::{
    sync::{Arc, MutexGuard, OnceLock},
    thread,
    time::{Duration, Instant},
};

use crate::{
    abi::{Code, Done},
    copy::{Copy, Piece, Source},
    kernel::Launch,
    memory::Span,
    pointers::HostFunction,
    state::{Driver, State, in_host_function},
    streams::{Point, Record},
    tally,
    wire::{self, pattern},
};

/// One entry of a stream's queue.
pub(crate) enum Work {
    Copy(Copy),
    Fill(Fill),
    Host(HostFunction),
    Compute(Compute),
    Launch(Launch),
    Record(Arc<OnceLock<Arc<Record>>>),
    Wait(Point),
    /// What the device finds out only when it gets there.
    Fault(Code),
}

/// A value of one to four bytes, again and again.
pub(crate) struct Fill {
    pub(crate) to: Span,
    pub(crate) address: u64,
    pub(crate) unit: Vec<u8>,
}

/// A model of a compute kernel.
pub(crate) struct Compute {
    pub(crate) work: wire::Work,
    pub(crate) span: Span,
    pub(crate) address: u64,
    pub(crate) seed: u64,
    /// How long it takes.
    pub(crate) delay: Duration,
}

impl Work {
    /// Whether it touches these bytes of the host.
    pub(crate) fn touches(&self, start: u64, bytes: u64) -> bool {
        match self {
            Self::Copy(copy) => copy.pieces.iter().any(|piece| piece.touches(start, bytes)),
            _ => false,
        }
    }
}

/// Does it. What it fails with is sticky.
pub(crate) fn run(driver: &'static Driver, stream: u64, work: &Work) -> Done {
    match work {
        Work::Copy(copy) => run_copy(driver, stream, copy),
        Work::Fill(fill) => {
            fill.to.write(&fill.unit.repeat(fill.to.bytes() / fill.unit.len()));
            let numbers = [stream, fill.address, 0, fill.to.bytes() as u64, 0];
            driver.lock().note(tally::RAN_FILL, numbers);
            Ok(())
        }
        Work::Host(function) => {
            in_host_function(|| function.call());
            Ok(())
        }
        Work::Compute(compute) => {
            run_compute(driver, stream, compute);
            Ok(())
        }
        Work::Launch(launch) => {
            driver.lock().note(tally::RAN_LAUNCH, [stream, launch.function, 0, 0, 0]);
            launch.run(driver)
        }
        Work::Record(cell) => {
            // Set under the lock under which it was queued.
            drop(driver.lock());
            if let Some(record) = cell.get() {
                record.time.get_or_init(Instant::now);
            }
            Ok(())
        }
        Work::Fault(code) => Err(*code),
        Work::Wait(point) => {
            block(driver, driver.lock(), stream, |_| point.is_passed());
            Ok(())
        }
    }
}

/// Waits, seen by others to be blocked. The end of the stream or the death of its device ends it.
/// Returns whether what was waited for is so.
fn block(
    driver: &Driver,
    mut state: MutexGuard<'_, State>,
    stream: u64,
    is_so: impl Fn(&State) -> bool,
) -> bool {
    loop {
        if is_so(&state) {
            return true;
        }
        let context = state.streams.get(&stream).map(|stream| stream.context);
        if context.is_none_or(|context| state.usable(context).is_err()) {
            return false;
        }
        if let Some(own) = state.streams.get_mut(&stream)
            && !own.is_blocked
        {
            own.is_blocked = true;
            driver.wake();
        }
        state = driver.wait(state);
    }
}

fn run_copy(driver: &Driver, stream: u64, copy: &Copy) -> Done {
    // The order inside of a batch is nobody's business, so it is the one that nobody expects.
    copy.pieces.iter().rev().try_for_each(|piece| run_piece(driver, stream, piece))
}

fn run_piece(driver: &Driver, stream: u64, piece: &Piece) -> Done {
    let engine = piece.engine();
    let mut state = driver.lock();
    if let Some((device, is_to_device)) = engine {
        state.devices[device].engines[usize::from(is_to_device)].push_back(stream);
    }
    let may_run = block(driver, state, stream, |state| state.may_run(stream, piece));
    let mut state = driver.lock();
    let outcome = if may_run { state.faults.of_copy().map_or(Ok(()), Err) } else { Ok(()) };
    if may_run && outcome.is_ok() {
        let rate = state.config.engine_rate;
        drop(state);
        copy_bytes(piece);
        if let Some(time) = engine.and(piece.to.span.bytes().checked_mul(1_000_000_000))
            && rate > 0
        {
            thread::sleep(Duration::from_nanos(time as u64 / rate));
        }
        state = driver.lock();
        state.count(stream, piece);
    }
    if let Some((device, is_to_device)) = engine
        && let Some(device) = state.devices.get_mut(device)
    {
        device.engines[usize::from(is_to_device)].retain(|waiting| *waiting != stream);
    }
    driver.wake();
    outcome
}

fn copy_bytes(piece: &Piece) {
    match &piece.from {
        Source::Place(place) => piece.to.span.copy_from(place.span),
        Source::Staged(bytes) => piece.to.span.write(bytes),
    }
}

/// Half of the bytes are written before the time is up, and the others after it, so that whoever does not wait meets
/// a half.
fn run_compute(driver: &Driver, stream: u64, compute: &Compute) {
    let bytes: Vec<u8> = (0..compute.span.bytes() as u64).map(|index| pattern(compute.seed, index)).collect();
    let half = bytes.len() / 2;
    match compute.work {
        wire::Work::Nothing => thread::sleep(compute.delay),
        wire::Work::Write => {
            compute.span.part(0, half).write(&bytes[..half]);
            thread::sleep(compute.delay);
            compute.span.part(half, bytes.len() - half).write(&bytes[half..]);
        }
        wire::Work::Check => {
            let mut found = vec![0; bytes.len()];
            compute.span.part(0, half).read(&mut found[..half]);
            thread::sleep(compute.delay);
            compute.span.part(half, bytes.len() - half).read(&mut found[half..]);
            let differs = found.iter().zip(&bytes).position(|(found, bytes)| found != bytes);
            if let Some(at) = differs {
                let (found, expected) = (u64::from(found[at]), u64::from(bytes[at]));
                let numbers = [compute.address, compute.seed, at as u64, expected, found];
                driver.lock().tally.mismatch(numbers);
            }
        }
    }
    let numbers = [stream, compute.address, compute.work as u64, bytes.len() as u64, compute.seed];
    driver.lock().note(tally::RAN_COMPUTE, numbers);
}

impl State {
    /// Whether a copy is first in the queue of its engine, and not held.
    fn may_run(&self, stream: u64, piece: &Piece) -> bool {
        let is_first = piece.engine().is_none_or(|(device, is_to_device)| {
            let queue = &self.devices[device].engines[usize::from(is_to_device)];
            queue.front() == Some(&stream) && !self.holds.engines.contains(&(device, is_to_device))
        });
        is_first && !self.holds.ranges.iter().any(|(start, bytes)| piece.touches(*start, *bytes))
    }

    fn count(&mut self, stream: u64, piece: &Piece) {
        let bytes = piece.to.span.bytes() as u64;
        let (kind, sum) = match piece.engine() {
            Some((_, true)) => (tally::RAN_TO_DEVICE, &mut self.tally.bytes_to_device),
            Some((_, false)) => (tally::RAN_TO_HOST, &mut self.tally.bytes_to_host),
            None => (tally::RAN_COPY, &mut self.tally.bytes_on_device),
        };
        *sum += bytes;
        self.tally.copies += 1;
        self.note(kind, [stream, piece.to.address, piece.from_address, bytes, 0]);
    }

    /// Writes a line into the journal, if there is one.
    fn note(&mut self, kind: u32, numbers: [u64; 5]) {
        if self.config.is_journal_kept {
            self.tally.ran(kind, numbers);
        }
    }
}
