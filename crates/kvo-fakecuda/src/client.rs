//! The driver as a test sees it: loaded once, then told what to do.

#[expect(unsafe_code, reason = "loads a library and calls it")]
mod library;
mod records;

use std::{
    io,
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use thiserror::Error;

pub use self::records::{Counts, Leak, Mismatch, Ran, RanKind, Violation};
use crate::{
    abi::Code,
    symbols::index_of,
    wire::{self, Controls, Count, Held, List, Setting},
};

/// Why the fake driver is not there.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The program, or the library's file, could not be read.
    #[error("the program or the library could not be read")]
    Program(#[source] io::Error),
    /// Cargo builds the library for a package that has this one among its dev-dependencies.
    #[error("no libkvo_fakecuda.so where cargo puts it, near {}", beside.display())]
    NoFile {
        /// Where the program is.
        beside: PathBuf,
    },
    /// The process has a driver already, perhaps a real one, and what it calls is that.
    #[error("the process has loaded another driver already")]
    AnotherDriver,
    /// The loader's words.
    #[error("the loader refuses it: {0}")]
    Loader(String),
    /// A release build has an empty library.
    #[error("the library was built for release, without a driver in it")]
    NotArmed,
    /// The driver has no such symbol, so it cannot be left out.
    #[error("the driver has no symbol {0}")]
    NoSymbol(String),
    /// It is loaded, with other symbols.
    #[error("it is loaded already, with other symbols")]
    LoadedOtherwise,
}

/// What is held back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hold {
    /// All streams: what they have not started waits.
    All,
    /// The stream with that handle.
    Stream(u64),
    /// The engine that copies to the device with that ordinal: copies wait in front of it, and all behind them.
    ToDevice(u32),
    /// The engine that copies from the device.
    ToHost(u32),
    /// Every call of that function: it does not return, and has done nothing. To be released before the driver is reset.
    Calls(&'static str),
    /// Every copy that reads or writes one of these bytes, of a device or of the host.
    Range {
        /// Where they start.
        address: u64,
        /// How many.
        bytes: u64,
    },
}

impl Hold {
    fn numbers(self) -> (u32, u64, u64) {
        match self {
            Self::All => (Held::All as u32, 0, 0),
            Self::Stream(handle) => (Held::Stream as u32, handle, 0),
            Self::ToDevice(device) => (Held::HostToDevice as u32, u64::from(device), 0),
            Self::ToHost(device) => (Held::DeviceToHost as u32, u64::from(device), 0),
            Self::Calls(symbol) => (Held::Call as u32, number_of(symbol) as u64, 0),
            Self::Range { address, bytes } => (Held::Range as u32, address, bytes),
        }
    }
}

/// How a step of a held stream went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The operation is over.
    Done,
    /// It has begun, and waits for an event, an engine or another hold.
    Blocked,
    /// There is nothing on the stream, or no such stream, or its device is dead.
    Nothing,
}

/// A model of a compute kernel, to be put on a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compute {
    /// Takes its time.
    Nothing,
    /// Writes a pattern: the first half at once, the second when the time is up.
    Write {
        /// Of the device.
        address: u64,
        /// How many.
        bytes: u64,
        /// Which pattern.
        seed: u64,
    },
    /// Reads a pattern, the first half at once, the second when the time is up. What differs is a [`Mismatch`].
    Check {
        /// Of the device.
        address: u64,
        /// How many.
        bytes: u64,
        /// Which pattern.
        seed: u64,
    },
}

/// The fake driver of this process.
#[derive(Clone, Copy, Debug)]
pub struct FakeDriver {
    controls: &'static Controls,
}

/// The driver for one test alone, as freshly loaded. When it is dropped, everything is released and ended.
#[derive(Debug)]
pub struct Exclusive {
    driver: FakeDriver,
    _guard: MutexGuard<'static, ()>,
}

impl std::ops::Deref for Exclusive {
    type Target = FakeDriver;

    fn deref(&self) -> &FakeDriver {
        &self.driver
    }
}

impl Drop for Exclusive {
    fn drop(&mut self) {
        self.driver.reset();
    }
}

/// The driver and the symbols that it was loaded without.
static LOADED: Mutex<Option<(FakeDriver, Vec<String>)>> = Mutex::new(None);
static EXCLUSIVE: Mutex<()> = Mutex::new(());

/// Loading.
impl FakeDriver {
    /// Loads the library that Cargo has built beside this program, or finds it loaded. Whoever opens `libcuda.so` from
    /// now on gets it. To be called before anybody looks for a driver.
    ///
    /// # Errors
    /// [`LoadError`]; then nothing is loaded.
    pub fn load() -> Result<Self, LoadError> {
        Self::load_without(&[])
    }

    /// As [`load`](Self::load), without some symbols: the driver of an earlier version, or a broken one.
    ///
    /// # Errors
    /// [`LoadError::LoadedOtherwise`] if the process has it with other symbols; else as `load`.
    pub fn load_without(symbols: &[&str]) -> Result<Self, LoadError> {
        Self::load_from(&Self::library_path()?, symbols)
    }

    /// As [`load_without`](Self::load_without), from a path.
    ///
    /// # Errors
    /// As there.
    pub fn load_from(path: &Path, without: &[&str]) -> Result<Self, LoadError> {
        let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((driver, symbols)) = &*loaded {
            let is_same = symbols.iter().map(String::as_str).eq(without.iter().copied());
            return if is_same { Ok(*driver) } else { Err(LoadError::LoadedOtherwise) };
        }
        if let Some(unknown) = without.iter().find(|symbol| index_of(symbol).is_none()) {
            return Err(LoadError::NoSymbol((*unknown).to_owned()));
        }
        let driver = Self { controls: library::load(path, without)? };
        *loaded = Some((driver, without.iter().map(|symbol| (*symbol).to_owned()).collect()));
        Ok(driver)
    }

    /// Where the library is.
    ///
    /// # Errors
    /// [`LoadError::NoFile`] if it is not where Cargo puts it.
    pub fn library_path() -> Result<PathBuf, LoadError> {
        library::path()
    }

    /// Waits until no other test of this process has the driver, and resets it.
    pub fn exclusive(self) -> Exclusive {
        let guard = EXCLUSIVE.lock().unwrap_or_else(PoisonError::into_inner);
        self.reset();
        Exclusive { driver: self, _guard: guard }
    }

    /// Ends all contexts without a word, releases all holds, forgets settings, faults and counts. Handles and addresses
    /// from before are invalid; a thread that is blocked in a call gets an error.
    pub fn reset(&self) {
        (self.controls.reset)();
    }
}

/// What the driver is. Most of it is to be set before `cuInit`.
impl FakeDriver {
    /// What `cuDriverGetVersion` says, as 12080; and `cuGetProcAddress` finds what was there by then.
    pub fn set_driver_version(&self, version: i32) {
        self.set(Setting::DriverVersion, 0, 0, i64::from(version));
    }

    /// How many devices there are; with none, `cuInit` says so. Settled by `cuInit`.
    pub fn set_device_count(&self, count: u32) {
        self.set(Setting::DeviceCount, 0, 0, i64::from(count));
    }

    /// What `cuInit` fails with; 0 lets it pass.
    pub fn fail_init(&self, code: u32) {
        self.set(Setting::InitCode, 0, 0, i64::from(code));
    }

    /// An attribute of a device. With 91 at 0 the device does not take the host's addresses: memory that is registered
    /// then has another on the device, and a batch or a kernel that uses the host's kills the device.
    pub fn set_attribute(&self, device: u32, attribute: u32, value: i32) {
        self.set(Setting::Attribute, u64::from(device), u64::from(attribute), i64::from(value));
    }

    /// Attributes 75 and 76.
    pub fn set_compute_capability(&self, device: u32, major: i32, minor: i32) {
        self.set_attribute(device, 75, major);
        self.set_attribute(device, 76, minor);
    }

    /// How much memory each device has; at most 64 GiB.
    pub fn set_memory_bytes(&self, bytes: u64) {
        self.set(Setting::MemoryBytes, 0, 0, bytes.cast_signed());
    }

    /// A model of a link: how many bytes a second each engine makes. With 0 it is as fast as the host.
    pub fn set_engine_rate(&self, bytes_per_s: u64) {
        self.set(Setting::EngineRate, 0, 0, bytes_per_s.cast_signed());
    }

    /// A registration of that many bytes or more fails for want of memory.
    pub fn refuse_registrations_from(&self, bytes: u64) {
        self.set(Setting::RegistrationBytesMax, 0, 0, bytes.cast_signed());
    }

    /// `cuGetProcAddress` does not find the symbol, by its full name. `dlsym` does: see
    /// [`load_without`](Self::load_without).
    #[track_caller]
    pub fn hide(&self, symbol: &str) {
        self.set(Setting::Hidden, number_of(symbol) as u64, 0, 1);
    }

    /// Whether what streams do is written down, for [`journal`](Self::journal).
    pub fn keep_journal(&self, is_kept: bool) {
        self.set(Setting::JournalKept, 0, 0, i64::from(is_kept));
    }

    fn set(self, setting: Setting, first: u64, second: u64, value: i64) {
        let is_known = (self.controls.set)(setting as u32, first, second, value);
        assert!(is_known, "the library does not know {setting:?}");
    }
}

/// Errors.
impl FakeDriver {
    /// From the `nth` call of `symbol` on, counted from 1, `times` calls fail and do nothing.
    #[track_caller]
    pub fn fail_calls(&self, symbol: &str, nth: u64, times: u64, code: u32) {
        (self.controls.fail)(number_of(symbol), nth, times, code);
    }

    /// The next batch that is long enough fails at `member`, which it reports. The members behind it run all the same.
    pub fn fail_batch(&self, member: u64, code: u32) {
        self.set(Setting::BatchFailure, member, 0, i64::from(code));
    }

    /// The device dies: every call for it fails with the code, and nothing on its streams goes on.
    pub fn kill(&self, device: u32, code: u32) {
        (self.controls.kill)(u64::from(device), code);
    }

    /// The device dies at the `nth` copy from now on, counted from 1, which is not made.
    pub fn kill_at_copy(&self, nth: u64, code: u32) {
        (self.controls.kill_at_copy)(nth, code);
    }
}

/// Time.
impl FakeDriver {
    /// Holds back what has not started.
    pub fn hold(&self, hold: Hold) {
        let (held, first, second) = hold.numbers();
        (self.controls.hold)(held, first, second);
    }

    /// Takes one hold back. [`Hold::All`] takes all back, of any kind.
    pub fn release(&self, hold: Hold) {
        let (held, first, second) = hold.numbers();
        (self.controls.release)(held, first, second);
    }

    /// Lets a held stream do its next operation, and returns when that is over or waits for something else.
    pub fn step(&self, stream: u64) -> Step {
        match (self.controls.step)(stream) {
            wire::STEP_DONE => Step::Done,
            wire::STEP_BLOCKED => Step::Blocked,
            _ => Step::Nothing,
        }
    }

    /// Puts a model of a compute kernel on a stream, by the handle that the driver gave. `delay` is how long it takes.
    ///
    /// # Errors
    /// The code that a launch would have failed with.
    pub fn enqueue(&self, stream: u64, compute: Compute, delay: Duration) -> Result<(), Code> {
        let (work, address, bytes, seed) = match compute {
            Compute::Nothing => (wire::Work::Nothing, 0, 0, 0),
            Compute::Write { address, bytes, seed } => (wire::Work::Write, address, bytes, seed),
            Compute::Check { address, bytes, seed } => (wire::Work::Check, address, bytes, seed),
        };
        let delay_us = u64::try_from(delay.as_micros()).unwrap_or(u64::MAX);
        match (self.controls.compute)(stream, work as u32, address, bytes, seed, delay_us) {
            0 => Ok(()),
            code => Err(Code(code)),
        }
    }

    /// Byte `index` of the pattern `seed`.
    pub fn pattern(seed: u64, index: u64) -> u8 {
        wire::pattern(seed, index)
    }

    /// Waits until `count` threads are blocked in calls of the driver; false if that takes more than ten seconds.
    pub fn wait_for_blocked(&self, count: u64) -> bool {
        let end = Instant::now() + Duration::from_secs(10);
        while self.count(Count::Waiting) < count {
            if Instant::now() > end {
                return false;
            }
            thread::sleep(Duration::from_micros(200));
        }
        true
    }
}

/// Memory.
impl FakeDriver {
    /// Allocations of `bytes` bytes each on a device, side by side, as a program maps them into one range of addresses:
    /// where the first starts. A copy that leaves one of them is refused, which a real driver need not do; they are freed
    /// with the context. `None` if there is no room, or `bytes` is not in whole pages of 4096.
    pub fn allocate_side_by_side(&self, device: u32, bytes: u64, count: u64) -> Option<u64> {
        let address = (self.controls.side_by_side)(u64::from(device), bytes, count);
        (address != 0).then_some(address)
    }
}

/// What has happened.
impl FakeDriver {
    /// How often a function was called, refused calls too.
    #[track_caller]
    pub fn calls(&self, symbol: &str) -> u64 {
        (self.controls.calls)(number_of(symbol))
    }

    /// What has been done, and what there is.
    pub fn counts(&self) -> Counts {
        Counts {
            bytes_to_device: self.count(Count::BytesToDevice),
            bytes_to_host: self.count(Count::BytesToHost),
            bytes_on_device: self.count(Count::BytesOnDevice),
            copies: self.count(Count::Copies),
            pageable_copies: self.count(Count::PageableCopies),
            batches: self.count(Count::Batches),
            batch_members: self.count(Count::BatchMembers),
            launches: self.count(Count::Launches),
            streams: self.count(Count::Streams),
            events: self.count(Count::Events),
            allocations: self.count(Count::Allocations),
            registrations: self.count(Count::Registrations),
            modules: self.count(Count::Modules),
            retains: self.count(Count::Retains),
        }
    }

    /// What was done that no program may do, with all red zones looked at once more. Oldest first.
    pub fn violations(&self) -> Vec<Violation> {
        (self.controls.check_red_zones)();
        self.list(List::Violations, Violation::from_item)
    }

    /// What [`Compute::Check`] did not find.
    pub fn mismatches(&self) -> Vec<Mismatch> {
        self.list(List::Mismatches, Mismatch::from_item)
    }

    /// What was still there when its context was released for the last time. A dead device leaks nothing.
    pub fn leaks(&self) -> Vec<Leak> {
        self.list(List::Leaks, Leak::from_item)
    }

    /// What streams have done, in the order in which it ended, since [`keep_journal`](Self::keep_journal); the last
    /// 65,536 lines.
    pub fn journal(&self) -> Vec<Ran> {
        self.list(List::Journal, Ran::from_item)
    }

    /// Forgets violations, mismatches, leaks and the journal.
    pub fn forget(&self) {
        for list in [List::Violations, List::Mismatches, List::Leaks, List::Journal] {
            (self.controls.forget)(list as u32);
        }
    }

    /// Reads memory of a device past the driver. False if it is not of one allocation.
    pub fn read_device(&self, address: u64, bytes: &mut [u8]) -> bool {
        let shadow = (self.controls.shadow)(address, bytes.len() as u64, false);
        if shadow != 0 {
            library::read_shadow(shadow, bytes);
        }
        shadow != 0
    }

    /// Writes memory of a device past the driver. False if it is not of one allocation.
    pub fn write_device(&self, address: u64, bytes: &[u8]) -> bool {
        let shadow = (self.controls.shadow)(address, bytes.len() as u64, false);
        if shadow != 0 {
            library::write_shadow(shadow, bytes);
        }
        shadow != 0
    }

    /// Writes memory of a device wherever it is, red zones too, as a kernel with a bug does.
    #[track_caller]
    pub fn spoil_device(&self, address: u64, bytes: &[u8]) {
        let shadow = (self.controls.shadow)(address, bytes.len() as u64, true);
        assert!(shadow != 0, "{address:#x} is no address of a device");
        library::write_shadow(shadow, bytes);
    }

    fn count(self, count: Count) -> u64 {
        (self.controls.count)(count as u32)
    }

    fn list<T>(self, list: List, read: impl Fn(wire::Item) -> T) -> Vec<T> {
        let items = (0..).map(|index| (self.controls.item)(list as u32, index));
        items.take_while(|item| item.is_there).map(read).collect()
    }
}

#[track_caller]
fn number_of(symbol: &str) -> usize {
    index_of(symbol).unwrap_or_else(|| panic!("the fake driver has no symbol {symbol}"))
}
