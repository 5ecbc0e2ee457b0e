//! An engine's side of a GPU.

use std::{collections::BTreeMap, ffi::CString, time::Duration};

use crossbeam_channel::bounded;
use kvo_cuda::{Probe, probe};

use super::{
    raw::{self, Context, EngineError},
    staging::Staging,
};
use crate::bed::{Hold, LONG};

/// The kernels. `cargo xtask ptx` makes them of `kernels/engine.cu`.
const PTX: &str = include_str!("../../kernels/engine.ptx");

const THREADS: u32 = 128;

/// CTAs of a kernel that works on memory: enough for the whole of a large GPU.
const CTAS_MAX: u32 = 1024;

/// Bytes for a CTA, so that little work is done by few threads.
const CTA_BYTES: u64 = 8 * THREADS as u64;

/// One of an engine's streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct StreamId(usize);

/// One of an engine's events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventId(usize);

/// Memory, streams, events and kernels on a GPU: what an engine has, and lends to a device of kvo's. It shares the
/// device's primary context, as engines do.
///
/// Kernels that fill and check make and know the [pattern](crate::pattern). One thread calls all of it; every call makes
/// the context that thread's. What it lends lives as long as itself, memory until it is freed.
///
/// # Errors
/// Every call gives [`EngineError`]; then it has done nothing. On a broken device every call fails.
#[derive(Debug)]
pub struct CudaEngine {
    ordinal: u32,
    /// Lengths by address.
    allocations: BTreeMap<u64, u64>,
    streams: Vec<Stream>,
    /// What uploads on a stream are read from, where there were any.
    pub(super) stagings: BTreeMap<StreamId, Staging>,
    events: Vec<raw::Event>,
    fill: raw::Function,
    check: raw::Function,
    spin: raw::Function,
    // Released after everything in it.
    context: Context,
}

#[derive(Debug)]
struct Stream {
    stream: raw::Stream,
    /// Where its checks count: a word for each thread of a grid.
    counts: u64,
}

const COUNTS: usize = (THREADS * CTAS_MAX) as usize;

impl CudaEngine {
    /// An engine on the device with that ordinal.
    ///
    /// # Errors
    /// [`EngineError::Unavailable`] if there is none.
    pub fn new(ordinal: u32) -> Result<Self, EngineError> {
        match probe() {
            Probe::Devices(found) if (ordinal as usize) < found.devices.len() => {}
            other => return Err(EngineError::Unavailable { ordinal, reason: other.to_string() }),
        }
        let context = Context::retain(ordinal)?;
        context.enter()?;
        let ptx = CString::new(PTX).expect("a text of a compiler has no zero");
        let names = [c"kvo_engine_fill", c"kvo_engine_check", c"kvo_engine_spin"];
        let [fill, check, spin] = raw::load(&ptx, names)?;
        let (streams, events) = (Vec::new(), Vec::new());
        let (allocations, stagings) = (BTreeMap::new(), BTreeMap::new());
        Ok(Self { ordinal, allocations, streams, stagings, events, fill, check, spin, context })
    }

    /// Which device it is on.
    pub fn ordinal(&self) -> u32 {
        self.ordinal
    }

    /// Allocates memory, full of `0xa5`.
    pub fn allocate(&mut self, bytes: u64) -> Result<u64, EngineError> {
        self.context.enter()?;
        let address = raw::allocate(bytes)?;
        self.allocations.insert(address, bytes);
        Ok(address)
    }

    /// Frees an allocation, after all work that is on any stream.
    pub fn free(&mut self, address: u64) -> Result<(), EngineError> {
        self.context.enter()?;
        let unknown = EngineError::NotAllocated { address, bytes: 0 };
        self.allocations.remove(&address).ok_or(unknown)?;
        raw::free(address)
    }

    /// Writes bytes, past all streams, and returns when they are there.
    pub fn upload(&mut self, address: u64, bytes: &[u8]) -> Result<(), EngineError> {
        self.own(address, bytes.len() as u64)?;
        raw::upload(address, bytes)
    }

    /// Reads bytes, past all streams.
    pub fn download(&mut self, address: u64, bytes: &mut [u8]) -> Result<(), EngineError> {
        self.own(address, bytes.len() as u64)?;
        raw::download(address, bytes)
    }

    /// Makes a stream that is ordered against no other.
    pub fn create_stream(&mut self) -> Result<StreamId, EngineError> {
        let counts = self.allocate(8 * COUNTS as u64)?;
        raw::upload(counts, &vec![0; 8 * COUNTS])?;
        self.streams.push(Stream { stream: raw::create_stream()?, counts });
        Ok(StreamId(self.streams.len() - 1))
    }

    /// Makes an event, which is behind nothing.
    pub fn create_event(&mut self) -> Result<EventId, EngineError> {
        self.context.enter()?;
        self.events.push(raw::create_event()?);
        Ok(EventId(self.events.len() - 1))
    }

    /// The driver's handle of a stream.
    pub fn raw_stream(&self, stream: StreamId) -> u64 {
        self.streams[stream.0].stream.expose_provenance() as u64
    }

    /// The driver's handle of an event.
    pub fn raw_event(&self, event: EventId) -> u64 {
        self.events[event.0].expose_provenance() as u64
    }

    /// The stream with that handle.
    ///
    /// # Panics
    /// If there is none.
    pub fn stream_of(&self, raw: u64) -> StreamId {
        let is_it = |stream: &Stream| stream.stream.addr() as u64 == raw;
        StreamId(
            self.streams
                .iter()
                .position(is_it)
                .unwrap_or_else(|| panic!("{raw:#x} is no stream of the engine")),
        )
    }

    /// The event with that handle.
    ///
    /// # Panics
    /// If there is none.
    pub fn event_of(&self, raw: u64) -> EventId {
        let is_it = |event: &raw::Event| event.addr() as u64 == raw;
        EventId(
            self.events
                .iter()
                .position(is_it)
                .unwrap_or_else(|| panic!("{raw:#x} is no event of the engine")),
        )
    }

    /// Records an event behind what is on a stream.
    pub fn record(&mut self, event: EventId, stream: StreamId) -> Result<(), EngineError> {
        self.context.enter()?;
        raw::record(self.events[event.0], self.streams[stream.0].stream)
    }

    /// Makes a stream wait for what an event was last recorded behind.
    pub fn wait_for(&mut self, stream: StreamId, event: EventId) -> Result<(), EngineError> {
        self.context.enter()?;
        raw::wait_for(self.streams[stream.0].stream, self.events[event.0])
    }

    /// Writes pattern `seed`, by a kernel.
    pub fn fill(&mut self, stream: StreamId, address: u64, bytes: u64, seed: u64) -> Result<(), EngineError> {
        self.own(address, bytes)?;
        raw::launch(self.fill, shape(bytes), self.streams[stream.0].stream, [address, bytes, seed])
    }

    /// Counts bytes that are not of pattern `seed`, by a kernel.
    pub fn check(
        &mut self,
        stream: StreamId,
        address: u64,
        bytes: u64,
        seed: u64,
    ) -> Result<(), EngineError> {
        self.own(address, bytes)?;
        let Stream { stream, counts } = self.streams[stream.0];
        raw::launch(self.check, shape(bytes), stream, [address, bytes, seed, counts])
    }

    /// How many bytes the checks on a stream have found wrong that are over.
    pub fn mismatches(&mut self, stream: StreamId) -> Result<u64, EngineError> {
        self.context.enter()?;
        let mut counts = vec![0; 8 * COUNTS];
        raw::download(self.streams[stream.0].counts, &mut counts)?;
        let words = counts.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().expect("8 bytes")));
        Ok(words.sum())
    }

    /// Keeps `ctas` CTAs of 512 threads busy with arithmetic, for so many rounds.
    pub fn spin(&mut self, stream: StreamId, ctas: u32, rounds: u64) -> Result<(), EngineError> {
        self.context.enter()?;
        let Stream { stream, counts } = self.streams[stream.0];
        raw::launch(self.spin, [ctas, 512], stream, [rounds, counts])
    }

    /// Holds a stream up until the hold is opened or dropped, for a minute at most.
    pub fn hold(&mut self, stream: StreamId) -> Result<Hold, EngineError> {
        let (key, opened) = bounded::<()>(0);
        self.context.enter()?;
        raw::call(self.streams[stream.0].stream, move || _ = opened.recv_timeout(LONG))?;
        Ok(Hold::new(key))
    }

    /// Holds a stream up for a while.
    pub fn delay(&mut self, stream: StreamId, delay: Duration) -> Result<(), EngineError> {
        self.context.enter()?;
        raw::call(self.streams[stream.0].stream, move || std::thread::sleep(delay))
    }

    /// Puts a kernel on a stream that writes where nothing is, which breaks the context.
    pub fn fault(&mut self, stream: StreamId) -> Result<(), EngineError> {
        const NOWHERE: u64 = 8;
        self.context.enter()?;
        raw::launch(self.fill, shape(8), self.streams[stream.0].stream, [NOWHERE, 8, 0])
    }

    /// Waits until all on a stream is over.
    pub fn synchronize(&mut self, stream: StreamId) -> Result<(), EngineError> {
        self.context.enter()?;
        raw::synchronize(self.streams[stream.0].stream)
    }

    pub(super) fn stream(&self, stream: StreamId) -> raw::Stream {
        self.streams[stream.0].stream
    }

    /// That the bytes are of one allocation. The context is the thread's then.
    pub(super) fn own(&self, address: u64, bytes: u64) -> Result<(), EngineError> {
        self.context.enter()?;
        let below = self.allocations.range(..=address).next_back();
        let is_inside = |(start, length): (&u64, &u64)| bytes <= length.saturating_sub(address - start);
        if below.is_some_and(is_inside) { Ok(()) } else { Err(EngineError::NotAllocated { address, bytes }) }
    }
}

impl Drop for CudaEngine {
    /// Waits until all work of the engine is over, unless the device is broken.
    fn drop(&mut self) {
        if self.context.enter().is_err() {
            return;
        }
        for Stream { stream, .. } in self.streams.drain(..) {
            let _ = raw::synchronize(stream);
            raw::destroy_stream(stream);
        }
        std::mem::take(&mut self.stagings).into_values().for_each(Staging::release);
        self.events.drain(..).for_each(raw::destroy_event);
        for address in self.allocations.keys() {
            let _ = raw::free(*address);
        }
    }
}

/// The grid for that many bytes.
fn shape(bytes: u64) -> [u32; 2] {
    [u32::try_from(bytes.div_ceil(CTA_BYTES)).unwrap_or(u32::MAX).clamp(1, CTAS_MAX), THREADS]
}
