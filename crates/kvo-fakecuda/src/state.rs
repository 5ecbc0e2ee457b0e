//! All that the driver knows, behind one lock.
//!
//! One lock and one condition: whoever changes what another may wait for wakes everybody. Bytes are copied, and
//! callers' functions are called, while the lock is free.

use std::{
    cell::{Cell, RefCell},
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Condvar, LazyLock, Mutex, MutexGuard, PoisonError},
};

use crate::{
    abi::{Code, Done, NEWEST_VERSION},
    capture::Capture,
    device::Device,
    faults::Faults,
    host::HostMemory,
    kernel::Modules,
    memory::Arena,
    streams::{Event, Stream},
    symbols::SYMBOLS,
    tally::Tally,
    wire::Held,
};

/// How many addresses a device has; only what is allocated is ever in memory.
pub(crate) const ARENA_BYTES: usize = 64 << 30;

/// The driver of this process.
pub(crate) struct Driver {
    state: Mutex<State>,
    changed: Condvar,
}

/// What can be set, and what it is unless a test sets it.
pub(crate) struct Config {
    pub(crate) driver_version: i32,
    pub(crate) device_count: usize,
    /// What `cuInit` fails with, unless 0.
    pub(crate) init_code: u32,
    /// By device and attribute.
    pub(crate) attributes: BTreeMap<(u64, u64), i32>,
    pub(crate) memory_bytes: usize,
    /// Bytes a second, or 0.
    pub(crate) engine_rate: u64,
    pub(crate) registration_bytes_max: usize,
    pub(crate) hidden: BTreeSet<usize>,
    pub(crate) is_journal_kept: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            driver_version: NEWEST_VERSION,
            device_count: 1,
            init_code: 0,
            attributes: BTreeMap::new(),
            memory_bytes: 8 << 30,
            engine_rate: 0,
            // One registration of this size and above fails on the machines that are known.
            registration_bytes_max: 512 << 30,
            hidden: BTreeSet::new(),
            is_journal_kept: false,
        }
    }
}

/// What does not start until it is released.
#[derive(Default)]
pub(crate) struct Holds {
    pub(crate) is_all: bool,
    pub(crate) streams: BTreeSet<u64>,
    /// By device: the engine to it, the engine from it.
    pub(crate) engines: BTreeSet<(usize, bool)>,
    /// Start and length.
    pub(crate) ranges: BTreeSet<(u64, u64)>,
    /// Names of functions that do not return.
    pub(crate) calls: BTreeSet<&'static str>,
    /// How many operations a held stream may start all the same.
    pub(crate) steps: BTreeMap<u64, u32>,
}

impl Holds {
    /// Holds or releases.
    pub(crate) fn change(&mut self, held: Held, first: u64, second: u64, is_held: bool) {
        fn put<T: Ord>(set: &mut BTreeSet<T>, value: T, is_held: bool) {
            if is_held {
                set.insert(value);
            } else {
                set.remove(&value);
            }
        }
        let device = usize::try_from(first).unwrap_or(usize::MAX);
        match held {
            Held::All if is_held => self.is_all = true,
            Held::All => *self = Self::default(),
            Held::Stream => put(&mut self.streams, first, is_held),
            Held::HostToDevice => put(&mut self.engines, (device, true), is_held),
            Held::DeviceToHost => put(&mut self.engines, (device, false), is_held),
            Held::Call => {
                let index = usize::try_from(first).unwrap_or(usize::MAX);
                if let Some((name, _)) = SYMBOLS.get(index) {
                    put(&mut self.calls, *name, is_held);
                }
            }
            Held::Range => put(&mut self.ranges, (first, second), is_held),
        }
    }

    /// Whether the stream may start its next operation; takes a step if it may only so.
    pub(crate) fn lets(&mut self, stream: u64) -> bool {
        if !self.is_all && !self.streams.contains(&stream) {
            return true;
        }
        match self.steps.get_mut(&stream) {
            Some(steps) if *steps > 0 => {
                *steps -= 1;
                true
            }
            _ => false,
        }
    }
}

#[derive(Default)]
pub(crate) struct State {
    pub(crate) config: Config,
    pub(crate) is_initialised: bool,
    last_handle: u64,
    /// One for each device there ever was; kept for the life of the process, so no address is unmapped.
    pub(crate) arenas: Vec<Arena>,
    /// Where the allocations of each device had got to at the last reset.
    pub(crate) cursors: Vec<usize>,
    pub(crate) devices: Vec<Device>,
    /// The device of each context.
    pub(crate) contexts: BTreeMap<u64, usize>,
    pub(crate) streams: BTreeMap<u64, Stream>,
    pub(crate) events: BTreeMap<u64, Event>,
    pub(crate) captures: BTreeMap<u64, Capture>,
    pub(crate) host: HostMemory,
    pub(crate) modules: Modules,
    pub(crate) holds: Holds,
    pub(crate) faults: Faults,
    pub(crate) tally: Tally,
    /// By name.
    pub(crate) calls: HashMap<&'static str, u64>,
}

thread_local! {
    /// The contexts of this thread; the last one is current.
    static CONTEXTS: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
    /// Whether a caller's function is running on this thread.
    static IS_IN_HOST_FUNCTION: Cell<bool> = const { Cell::new(false) };
}

/// What a call needs before it is even looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Needs {
    /// Nothing at all.
    Nothing,
    /// `cuInit`.
    Init,
    /// A context that is bound to the thread, and that is not dead.
    Context,
}

pub(crate) fn driver() -> &'static Driver {
    static DRIVER: LazyLock<Driver> =
        LazyLock::new(|| Driver { state: Mutex::default(), changed: Condvar::new() });
    &DRIVER
}

impl Driver {
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes everybody who waits for a change.
    pub(crate) fn wake(&self) {
        self.changed.notify_all();
    }

    pub(crate) fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    /// Blocks the caller until something is so. A context that is dead or gone ends it.
    pub(crate) fn wait_until(&self, context: u64, is_so: impl Fn(&State) -> bool) -> Done {
        let mut state = self.lock();
        state.tally.waiting += 1;
        let outcome = loop {
            match state.usable(context) {
                Err(code) => break Err(code),
                Ok(_) if is_so(&state) => break Ok(()),
                Ok(_) => state = self.wait(state),
            }
        };
        state.tally.waiting -= 1;
        outcome
    }

    /// Counts a call and says whether it may go on, and in which context.
    pub(crate) fn admit(&self, name: &'static str, needs: Needs) -> Result<u64, Code> {
        let mut state = self.lock();
        *state.calls.entry(name).or_default() += 1;
        if state.holds.calls.contains(name) {
            state.tally.waiting += 1;
            while state.holds.calls.contains(name) {
                state = self.wait(state);
            }
            state.tally.waiting -= 1;
        }
        if let Some(code) = state.faults.of_call(name) {
            return Err(code);
        }
        if IS_IN_HOST_FUNCTION.get() && needs != Needs::Nothing {
            state.tally.violation(crate::tally::HOST_FUNCTION_CALLS, [0; 5]);
            return Err(Code::NOT_PERMITTED);
        }
        if needs != Needs::Nothing && !state.is_initialised {
            return Err(Code::NOT_INITIALIZED);
        }
        if needs != Needs::Context {
            return Ok(0);
        }
        let context = current_context().ok_or(Code::INVALID_CONTEXT)?;
        state.usable(context)?;
        state.allow_beside_captures(name)?;
        Ok(context)
    }
}

impl State {
    /// A number that no handle had before.
    pub(crate) fn new_handle(&mut self) -> u64 {
        self.last_handle += 1;
        // No address of this process, and no handle that is special.
        0x1000_0000_0000_0000 + (self.last_handle << 4)
    }

    /// The device of a context that lives.
    pub(crate) fn usable(&self, context: u64) -> Result<usize, Code> {
        let device = *self.contexts.get(&context).ok_or(Code::INVALID_CONTEXT)?;
        self.devices[device].dead.map_or(Ok(device), Err)
    }

    /// From now on each call for the device fails with `code`, and nothing on its streams goes on.
    pub(crate) fn kill(&mut self, device: usize, code: Code) {
        if let Some(device) = self.devices.get_mut(device) {
            device.dead.get_or_insert(code);
        }
    }
}

pub(crate) fn current_context() -> Option<u64> {
    CONTEXTS.with_borrow(|contexts| contexts.last().copied())
}

/// Replaces the top of the thread's stack; `None` takes it off.
pub(crate) fn set_current_context(context: Option<u64>) {
    CONTEXTS.with_borrow_mut(|contexts| {
        contexts.pop();
        contexts.extend(context);
    });
}

pub(crate) fn push_context(context: u64) {
    CONTEXTS.with_borrow_mut(|contexts| contexts.push(context));
}

pub(crate) fn pop_context() -> Option<u64> {
    CONTEXTS.with_borrow_mut(Vec::pop)
}

/// Runs a caller's function, in which no call of the driver is allowed.
pub(crate) fn in_host_function(run: impl FnOnce()) {
    IS_IN_HOST_FUNCTION.set(true);
    run();
    IS_IN_HOST_FUNCTION.set(false);
}
