//! What a test and the library say to one another.
//!
//! The test links this crate, and the loader brings in the same crate once more, as the library. They meet in one table
//! of functions that take and give plain numbers.

/// The numbers of a list of words, and back.
macro_rules! words {
    ($($(#[$doc:meta])* $name:ident { $($(#[$of:meta])* $word:ident,)* })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u32)]
        pub(crate) enum $name {
            $($(#[$of])* $word,)*
        }

        #[cfg(kvo_fakecuda_armed)]
        impl $name {
            pub(crate) fn from_number(number: u32) -> Option<Self> {
                [$(Self::$word),*].into_iter().find(|word| *word as u32 == number)
            }
        }
    )*};
}

words! {
    /// What can be set, before `cuInit` or later.
    Setting {
        DriverVersion,
        DeviceCount,
        InitCode,
        /// Of the device in the first argument, the attribute in the second.
        Attribute,
        MemoryBytes,
        /// Bytes a second of each engine; 0 is as fast as it goes.
        EngineRate,
        RegistrationBytesMax,
        /// Whether `cuGetProcAddress` hides the symbol in the first argument.
        Hidden,
        /// The next batch fails at the member in the first argument, with the code in the value.
        BatchFailure,
        /// Whether what streams do is written down.
        JournalKept,
    }

    /// What can be held.
    Held {
        /// Every stream.
        All,
        /// The stream with the handle in the first argument.
        Stream,
        /// The engine from host to device of the device in the first argument.
        HostToDevice,
        /// The engine from device to host.
        DeviceToHost,
        /// Every call of the symbol in the first argument.
        Call,
        /// Each copy that touches the bytes from the first argument on, as many as the second says.
        Range,
    }

    /// Which list is read.
    List {
        Violations,
        Mismatches,
        Leaks,
        Journal,
    }

    /// What is counted.
    Count {
        BytesToDevice,
        BytesToHost,
        BytesOnDevice,
        Copies,
        PageableCopies,
        Batches,
        BatchMembers,
        Launches,
        Streams,
        Events,
        Allocations,
        Registrations,
        Modules,
        Retains,
        Waiting,
    }

    /// What a model of a compute kernel does.
    Work {
        Nothing,
        Write,
        Check,
    }
}

/// A number of this process's own address space.
pub(crate) fn native(number: u64) -> usize {
    usize::try_from(number).expect("the library is for machines of 64 bits")
}

/// Answers to a step: see [`crate::Step`].
pub(crate) const STEP_NONE: u32 = 0;
pub(crate) const STEP_DONE: u32 = 1;
pub(crate) const STEP_BLOCKED: u32 = 2;

/// An entry of a list; what the numbers mean depends on the list.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Item {
    pub(crate) is_there: bool,
    pub(crate) kind: u32,
    pub(crate) numbers: [u64; 5],
}

/// The library's functions for tests, found by `kvofake_controls`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Controls {
    /// Of this struct, so that a library of another build is told from this one.
    pub(crate) bytes: usize,
    pub(crate) num_symbols: usize,
    pub(crate) reset: extern "C" fn(),
    pub(crate) set: extern "C" fn(setting: u32, first: u64, second: u64, value: i64) -> bool,
    /// From the `nth` call on, counted from 1, `times` calls of the symbol fail.
    pub(crate) fail: extern "C" fn(symbol: usize, nth: u64, times: u64, code: u32),
    pub(crate) hold: extern "C" fn(held: u32, first: u64, second: u64),
    pub(crate) release: extern "C" fn(held: u32, first: u64, second: u64),
    /// See [`crate::Step`].
    pub(crate) step: extern "C" fn(stream: u64) -> u32,
    pub(crate) kill: extern "C" fn(device: u64, code: u32),
    pub(crate) kill_at_copy: extern "C" fn(nth: u64, code: u32),
    pub(crate) calls: extern "C" fn(symbol: usize) -> u64,
    pub(crate) count: extern "C" fn(count: u32) -> u64,
    pub(crate) item: extern "C" fn(list: u32, index: u64) -> Item,
    pub(crate) forget: extern "C" fn(list: u32),
    pub(crate) compute:
        extern "C" fn(stream: u64, work: u32, address: u64, bytes: u64, seed: u64, delay_us: u64) -> u32,
    /// Where bytes of a device really are; 0 if they are not of one allocation, or not of one device if that is enough.
    pub(crate) shadow: extern "C" fn(address: u64, bytes: u64, anywhere: bool) -> u64,
    pub(crate) check_red_zones: extern "C" fn(),
    /// Where `count` allocations of `bytes` bytes are; 0 if they cannot be had.
    pub(crate) side_by_side: extern "C" fn(device: u64, bytes: u64, count: u64) -> u64,
}

/// Byte `index` of the pattern `seed`.
pub(crate) fn pattern(seed: u64, index: u64) -> u8 {
    let mixed = (seed ^ index.wrapping_mul(0x9E37_79B9_7F4A_7C15)).wrapping_mul(0xD6E8_FEB8_6659_FD93);
    mixed.to_be_bytes()[0] ^ mixed.to_be_bytes()[3]
}
