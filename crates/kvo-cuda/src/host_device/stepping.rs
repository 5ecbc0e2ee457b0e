//! A host device without threads, whose time is handed in.

use std::{
    sync::{Arc, atomic::AtomicU64},
    time::Duration,
};

use kvo_core::{CopyOp, Direction, HostMemory, TransferFailure};

use super::{
    DeviceClock, HostDevice, HostDeviceError, HostDeviceOptions, LinkModel, compute, copy::Copier, lane::Work,
};

/// A [`HostDevice`] on which nothing happens but in [`step`](Self::step), in one thread and in an order that follows
/// from a seed: for the simulation of a whole system.
///
/// Whatever a device is free to do in any order, this one does: copies between two marks, transfers of different classes
/// or of the same one, stores, loads and the kernels of all streams are interleaved copy by copy. With a
/// [link](LinkModel), a piece ends no earlier than the link would have brought it, in virtual time.
///
/// The race detector runs, unless it was switched off by [`without_detector`](Self::without_detector).
pub struct SteppedDevice {
    device: HostDevice,
    host: Arc<dyn HostMemory>,
    link: Option<LinkModel>,
    random: Random,
    running: Vec<Running>,
    /// By direction: when the link has brought all that is on it.
    free_at: [Duration; 2],
}

/// What a step did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Something: there may be more to do.
    Done,
    /// Nothing, and nothing will happen before the time says this, or before another call of the device if `None`.
    Idle {
        /// When.
        until: Option<Duration>,
    },
}

/// A piece that is being copied.
struct Running {
    work: Work,
    direction: Direction,
    /// Copies that were not done.
    ops: Vec<CopyOp>,
    result: Result<(), TransferFailure>,
    ends_at: Duration,
}

/// Something that could happen next.
#[derive(Clone, Copy, Debug)]
enum Choice {
    Issue(Direction),
    Copy(usize),
    End(usize),
    Stream(u32),
}

impl SteppedDevice {
    /// A device at time 0 that copies to and from the slots of `host`. Steps follow from `seed`.
    ///
    /// # Errors
    /// [`HostDeviceError`] names an option that is zero.
    pub fn new(
        options: HostDeviceOptions,
        host: Arc<dyn HostMemory>,
        seed: u64,
    ) -> Result<Self, HostDeviceError> {
        Self::make(HostDeviceOptions { detect_races: true, ..options }, host, seed)
    }

    /// As [`new`](Self::new), without the race detector.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn without_detector(
        options: HostDeviceOptions,
        host: Arc<dyn HostMemory>,
        seed: u64,
    ) -> Result<Self, HostDeviceError> {
        Self::make(HostDeviceOptions { detect_races: false, ..options }, host, seed)
    }

    fn make(
        options: HostDeviceOptions,
        host: Arc<dyn HostMemory>,
        seed: u64,
    ) -> Result<Self, HostDeviceError> {
        let (clock, link) = (DeviceClock::Virtual(AtomicU64::new(0)), options.link);
        Ok(Self {
            device: HostDevice::without_threads(options, &*host, clock)?,
            host,
            link,
            random: Random(seed),
            running: Vec::new(),
            free_at: [Duration::ZERO; 2],
        })
    }

    /// The device, to be used as any other.
    pub fn device(&self) -> &HostDevice {
        &self.device
    }

    /// The device, to be used as any other.
    pub fn device_mut(&mut self) -> &mut HostDevice {
        &mut self.device
    }

    /// What time it is.
    pub fn now(&self) -> Duration {
        self.device.shared.now()
    }

    /// Lets the time be `now`, unless it is later already.
    pub fn advance_to(&mut self, now: Duration) {
        self.device.shared.clock.advance_to(now);
        self.device.shared.lock().queue.on_time(self.device.shared.now());
    }

    /// Does one thing that may happen now, whichever the seed chooses.
    pub fn step(&mut self) -> Step {
        let mut choices = self.choices();
        while !choices.is_empty() {
            let choice = choices.swap_remove(self.random.below(choices.len()));
            if self.does(choice) {
                return Step::Done;
            }
        }
        let ends = self.running.iter().filter(|running| running.ops.is_empty());
        let deadline = self.device.shared.lock().queue.next_deadline();
        Step::Idle { until: ends.map(|running| running.ends_at).chain(deadline).min() }
    }

    /// Steps, and lets time go on, until nothing is left to happen or it is `until`.
    pub fn run_until(&mut self, until: Duration) {
        loop {
            match self.step() {
                Step::Done => {}
                Step::Idle { until: Some(next) } if next < until => self.advance_to(next),
                Step::Idle { .. } => break,
            }
        }
    }

    /// Steps, and lets time go on, until nothing is left to happen.
    pub fn run(&mut self) {
        self.run_until(Duration::MAX);
    }

    fn choices(&self) -> Vec<Choice> {
        let now = self.now();
        let mut choices = vec![Choice::Issue(Direction::Store), Choice::Issue(Direction::Load)];
        for (nth, running) in self.running.iter().enumerate() {
            if !running.ops.is_empty() {
                if self.is_first_part(running) {
                    choices.push(Choice::Copy(nth));
                }
            } else if running.ends_at <= now {
                choices.push(Choice::End(nth));
            }
        }
        let core = self.device.shared.lock();
        choices.extend((0..core.streams.len()).filter(|stream| core.can_run(*stream)).map(Choice::Stream));
        choices
    }

    /// Whether no copies before an earlier mark of the same transfer are left to be done.
    fn is_first_part(&self, running: &Running) -> bool {
        let piece = &running.work.piece;
        let is_before = |other: &Running| {
            let other = &other.work.piece;
            other.ticket() == piece.ticket() && other.part() < piece.part()
        };
        !self.running.iter().any(is_before)
    }

    /// Does something, if there is something to do.
    fn does(&mut self, choice: Choice) -> bool {
        match choice {
            Choice::Issue(direction) => return self.issue(direction),
            Choice::Copy(nth) => self.copy(nth),
            Choice::End(nth) => {
                let Running { work, result, .. } = self.running.swap_remove(nth);
                self.device.shared.lock().end(work.piece, result, self.device.shared.now());
            }
            Choice::Stream(stream) => {
                let item = self.device.shared.lock().streams.take(stream);
                let Some(item) = item else { return false };
                compute::run_item(&self.device.shared, stream, item);
            }
        }
        true
    }

    fn issue(&mut self, direction: Direction) -> bool {
        let now = self.now();
        let mut core = self.device.shared.lock();
        core.queue.on_time(now);
        let Some(piece) = core.next_piece(direction) else { return false };
        let mut ops = Vec::new();
        let work = Work::new(&core, piece, &mut ops);
        drop(core);
        let copier = Copier { host: &*self.host, regions: &work.regions, direction };
        // Its other pieces may be copied before this one.
        let result = self.device.shared.caught(|| {
            if work.detects {
                work.poison(&self.device.shared, &copier)?;
            }
            Ok(())
        });
        if let Err(failure) = &result {
            ops.clear();
            // Its other pieces may be given out before this one ends, and find what was not poisoned.
            self.device.shared.lock().queue.fail(&work.piece, failure.clone());
        }
        let mut ends_at = now;
        if let Some(link) = &self.link {
            let free_at = &mut self.free_at[direction as usize];
            let time = link.time(work.piece.bytes(), ops.len(), work.piece.is_first());
            *free_at = (*free_at).max(now).saturating_add(time);
            ends_at = *free_at;
        }
        self.running.push(Running { work, direction, ops, result, ends_at });
        true
    }

    /// Does one of the copies of a piece, any of them, or none if nobody wants them any more.
    fn copy(&mut self, nth: usize) {
        let running = &mut self.running[nth];
        let Running { work, direction, ops, result, .. } = running;
        let shared = &self.device.shared;
        if !shared.lock().queue.is_wanted(&work.piece) {
            ops.clear();
            return;
        }
        let copier = Copier { host: &*self.host, regions: &work.regions, direction: *direction };
        let op = [ops.swap_remove(self.random.below(ops.len()))];
        if work.detects {
            work.check_poison(shared, &copier, &op);
        }
        if let Err(failure) = shared.caught(|| Ok(copier.copy(&op)?)) {
            ops.clear();
            *result = Err(failure);
        }
    }
}

impl std::fmt::Debug for SteppedDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SteppedDevice")
            .field("device", &self.device)
            .field("now", &self.now())
            .field("running", &self.running.len())
            .finish_non_exhaustive()
    }
}

/// The generator of Steele, Lea and Flood's `SplitMix` (OOPSLA 2014): small, and the same everywhere for ever, so that a
/// seed stays what it is.
#[derive(Debug)]
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`, which is at least 1.
    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % bound as u64).expect("it is below a usize")
    }
}
