//! A worker's device, its caches, and what is in them: the bytes of a token are a function of it, of all before it, and of
//! the worker.

use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use kvo_connector::GroupOptions;
use kvo_core::{BlockId, ChunkLayout, DeviceBackend, DeviceSpan, HostMemory, RegionId, WrapsDevice};
use kvo_cuda::{
    Accesses, BlockLayout, DeviceMemory, GroupSpec, HostDeviceOptions, LayerTensor, SteppedDevice,
};

use crate::{random::mix, setup::Setup};

pub(crate) const LAYERS: u32 = 2;

/// A stepped device as a backend: the worker owns it, and the engine steps it.
#[derive(Debug)]
pub(crate) struct Stepping(pub(crate) SteppedDevice);

impl WrapsDevice for Stepping {
    fn wrapped(&self) -> &dyn DeviceBackend {
        self.0.device()
    }

    fn wrapped_mut(&mut self) -> &mut dyn DeviceBackend {
        self.0.device_mut()
    }
}

/// Where the tokens of each group are: layers one after the other, `[layer][block][token]`.
#[derive(Clone, Debug)]
pub(crate) struct Caches {
    /// Which worker's they are.
    rank: u32,
    groups: Vec<GroupOptions>,
    token_bytes: usize,
    num_blocks: u32,
    /// By group.
    bases: Vec<u64>,
}

/// What a worker is made of.
pub(crate) struct Parts {
    pub(crate) caches: Caches,
    pub(crate) device: Stepping,
    pub(crate) spans: Vec<DeviceSpan>,
    pub(crate) layout: BlockLayout,
}

fn chunk(group: &GroupOptions, token_bytes: usize) -> ChunkLayout {
    let page_bytes = token_bytes as u64 * u64::from(group.block_tokens);
    ChunkLayout::new(LAYERS, 1, page_bytes, group.blocks_per_chunk).expect("it is small")
}

/// Bytes of the longest chunk.
pub(crate) fn slot_bytes(groups: &[GroupOptions], token_bytes: usize) -> u64 {
    groups.iter().map(|group| chunk(group, token_bytes).chunk_bytes()).max().expect("there is a group")
}

impl Caches {
    /// Fresh caches of a worker, on a device over `host`.
    pub(crate) fn make(rank: u32, setup: &Setup, host: Arc<dyn HostMemory>, seed: u64) -> Parts {
        let Setup { groups, token_bytes, num_blocks, .. } = setup;
        let (token_bytes, num_blocks) = (*token_bytes, *num_blocks);
        let options =
            HostDeviceOptions { inflight_max: 5, quantum_bytes: 67, ..HostDeviceOptions::default() };
        let device = SteppedDevice::new(options, host, seed).expect("no option is zero");
        let (mut spans, mut regions, mut specs) = (Vec::new(), Vec::new(), Vec::new());
        for (group, nth) in groups.iter().zip(0..) {
            let chunk = chunk(group, token_bytes);
            let layer_bytes = chunk.page_bytes() * u64::from(num_blocks);
            let span = device.device().alloc(layer_bytes * u64::from(LAYERS)).expect("it is little memory");
            let region = RegionId(nth);
            let tensors: Vec<_> = (0..LAYERS)
                .map(|layer| LayerTensor { layer, region, offset: u64::from(layer) * layer_bytes })
                .collect();
            regions.push((region, span.bytes()));
            specs.push(GroupSpec::layer_first(&chunk, num_blocks, &tensors));
            spans.push(span);
        }
        let layout = BlockLayout::new(&regions, &specs).expect("layers lie side by side");
        let bases = spans.iter().map(DeviceSpan::address).collect();
        let caches = Self { rank, groups: groups.clone(), token_bytes, num_blocks, bases };
        Parts { caches, device: Stepping(device), spans, layout }
    }

    fn address(&self, place: &Place, layer: u32) -> u64 {
        let tokens = u64::from(self.groups[place.group].block_tokens);
        let block = u64::from(layer) * u64::from(self.num_blocks) + u64::from(place.block.0);
        self.bases[place.group] + (block * tokens + u64::from(place.token) % tokens) * self.token_bytes as u64
    }

    fn bytes_of(&self, place: &Place, layer: u32) -> Vec<u8> {
        let of = u64::from(self.rank) << 16 | u64::from(layer) << 8 | place.group as u64;
        let value = mix(place.prefix ^ mix(of));
        value.to_le_bytes().into_iter().cycle().take(self.token_bytes).collect()
    }

    /// Puts one request's compute of some layers on a stream: it reads some tokens, and writes others.
    pub(crate) fn compute(
        &self,
        device: &Stepping,
        (reads, writes): (Vec<Place>, Vec<Place>),
        layers: Range<u32>,
        wrong: &Arc<AtomicU64>,
    ) {
        let ranges = |places: &[Place]| -> Vec<_> {
            let of = |(place, layer): (&Place, u32)| {
                let start = self.address(place, layer);
                start..start + self.token_bytes as u64
            };
            places.iter().flat_map(|place| layers.clone().map(move |layer| (place, layer))).map(of).collect()
        };
        let accesses = Accesses { reads: ranges(&reads), writes: ranges(&writes) };
        let (caches, wrong) = (self.clone(), Arc::clone(wrong));
        let kernel = move |memory: &DeviceMemory| {
            // What is computed of wrong bytes is wrong.
            let mut spoilt = 0;
            let mut found = vec![0; caches.token_bytes];
            for layer in layers {
                for place in &reads {
                    let is_read = memory.read(caches.address(place, layer), &mut found).is_ok();
                    if !is_read || found != caches.bytes_of(place, layer) {
                        wrong.fetch_add(1, Ordering::Relaxed);
                        spoilt = 0xff;
                    }
                }
                for place in &writes {
                    let mut bytes = caches.bytes_of(place, layer);
                    for byte in &mut bytes {
                        *byte ^= spoilt;
                    }
                    if memory.write(caches.address(place, layer), &bytes).is_err() {
                        wrong.fetch_add(1, Ordering::Relaxed);
                    }
                }
            }
        };
        // A device that is dead computes nothing, and its requests begin anew.
        let _ = device.0.device().compute().launch_with(accesses, kernel);
    }
}

/// One token in a group's cache.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) group: usize,
    pub(crate) block: BlockId,
    /// Its number in its request.
    pub(crate) token: u32,
    /// What it and all tokens before it come to.
    pub(crate) prefix: u64,
}
