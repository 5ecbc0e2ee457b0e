//! A device under test, with an engine beside it.

use std::{any::Any, fmt, sync::Arc, time::Duration};

use kvo_core::{DeviceBackend, DeviceSpan, EventHandle, HostMemory, SlotId, StreamHandle};
use kvo_cpu::{HostRegion, RegionOptions};
use kvo_cuda::CopyPath;

/// Longer than anything takes that ends at all.
pub(crate) const LONG: Duration = Duration::from_mins(1);

/// What fresh memory of a device, and fresh slots, are full of.
pub(crate) const POISON: u8 = 0xa5;

/// What a bed is made with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BedOptions {
    /// Slots of host memory.
    pub num_slots: u32,
    /// Bytes of a slot.
    pub slot_bytes: usize,
    /// Whether the slots are poisoned. If not, they have no pages until the device, or a copy, gives them some.
    pub is_poisoned: bool,
    /// Transfers that may be submitted and not yet polled.
    pub inflight_max: usize,
    /// Bytes of a direction that are on the device's own queue at most, where it has one.
    pub window_bytes: u64,
    /// Bytes of a copy that are put there at once.
    pub quantum_bytes: u64,
    /// How long a drop of the device waits.
    pub drop_timeout: Duration,
    /// The way that copies go, where a device has more than one; without, the one that it chooses.
    pub path: Option<CopyPath>,
}

impl Default for BedOptions {
    /// 16 slots of 64 KiB, and what devices have by default.
    fn default() -> Self {
        Self {
            num_slots: 16,
            slot_bytes: 64 << 10,
            is_poisoned: true,
            inflight_max: 64,
            window_bytes: 32 << 20,
            quantum_bytes: 8 << 20,
            drop_timeout: Duration::from_secs(10),
            path: None,
        }
    }
}

impl BedOptions {
    /// The host memory.
    pub(crate) fn host(&self) -> Arc<HostRegion> {
        let options = RegionOptions {
            huge_pages: false,
            prefault_threads: 0,
            ..RegionOptions::new(self.num_slots, self.slot_bytes)
        };
        let region = HostRegion::anonymous(&options).unwrap_or_else(|error| panic!("host memory: {error}"));
        for slot in (0..self.num_slots).filter(|_| self.is_poisoned).map(SlotId) {
            region
                .with_write(slot, &mut |bytes| bytes.fill(POISON))
                .unwrap_or_else(|error| panic!("a fresh slot: {error}"));
        }
        Arc::new(region)
    }
}

/// Makes beds of one kind, one after the other.
pub trait BedMaker {
    /// The kind of device, for reports.
    fn name(&self) -> String;

    /// Whether speed on it says nothing of any hardware.
    fn is_model(&self) -> bool;

    /// The ways that copies can be made to go, for [`BedOptions::path`]. `None` is the device's own choice.
    fn paths(&self) -> Vec<Option<CopyPath>> {
        vec![None]
    }

    /// How long a case waits for what has to happen, which is longer than anything takes that happens at all.
    fn patience(&self) -> Duration {
        LONG
    }

    /// A fresh device and a fresh engine.
    ///
    /// # Panics
    /// If there is none.
    fn make(&self, options: &BedOptions) -> Box<dyn TestBed>;

    /// As [`TestBed::complaints`], after the last bed is gone: what it has left behind too.
    fn complaints(&self) -> Vec<String> {
        Vec::new()
    }
}

/// A device under test, and what an engine has beside it. All memory is poisoned when it is fresh.
///
/// Streams run side by side, each in the order of the calls. What an engine lends lives as long as the bed, which ends
/// after its device. One thread at a time calls all of it.
///
/// # Panics
/// Every method, where the engine's side fails: that ends a case.
pub trait TestBed: Send {
    /// The device. Nothing of it is attached yet.
    fn device(&mut self) -> &mut dyn DeviceBackend;

    /// Its slots.
    fn host(&self) -> Arc<HostRegion>;

    /// Allocates memory of the device.
    fn allocate(&mut self, bytes: u64) -> DeviceSpan;

    /// Makes a stream.
    fn create_stream(&mut self) -> StreamHandle;

    /// Makes an event, which is behind nothing.
    fn create_event(&mut self) -> EventHandle;

    /// Records an event behind what is on the stream.
    fn record(&mut self, event: EventHandle, stream: StreamHandle);

    /// Puts compute on a stream that writes [`pattern`](crate::pattern) `seed` to `bytes` bytes of device memory.
    fn fill(&mut self, stream: StreamHandle, address: u64, bytes: u64, seed: u64);

    /// Puts compute on a stream that counts the bytes that are not of pattern `seed`.
    fn check(&mut self, stream: StreamHandle, address: u64, bytes: u64, seed: u64);

    /// Puts compute on a stream that ends when the hold is opened or dropped.
    fn hold(&mut self, stream: StreamHandle) -> Hold;

    /// Puts compute on a stream that breaks the device for good.
    fn fault(&mut self, stream: StreamHandle);

    /// Waits until all on a stream is over, and returns how many bytes its checks have found wrong so far.
    fn synchronize(&mut self, stream: StreamHandle) -> u64;

    /// Reads device memory past all streams.
    fn read(&mut self, address: u64, bytes: &mut [u8]);

    /// Writes device memory past all streams.
    fn write(&mut self, address: u64, bytes: &[u8]);

    /// What whoever watches the bed has seen since the last call that no program may do: races, bytes written outside
    /// of any memory. Empty where nobody watches.
    fn complaints(&mut self) -> Vec<String>;
}

/// Keeps a stream from going on until it is dropped.
pub struct Hold(#[expect(dead_code, reason = "to be dropped")] Box<dyn Any + Send>);

impl Hold {
    /// One that is opened by dropping `key`.
    pub fn new(key: impl Any + Send) -> Self {
        Self(Box::new(key))
    }

    /// Lets the stream go on.
    pub fn open(self) {}
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hold")
    }
}
