//! The engine's device, its caches, and what is in them.

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

use crate::random::mix;

/// Bytes of a token in one layer.
const TOKEN_BYTES: u64 = 5;
pub(crate) const LAYERS: u32 = 2;

/// A stepped device as a backend: the worker owns it, and the engine steps it.
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
#[derive(Clone)]
pub(crate) struct Caches {
    groups: Vec<GroupOptions>,
    num_blocks: u32,
    /// By group.
    bases: Vec<u64>,
}

impl Caches {
    pub(crate) fn chunk(group: &GroupOptions) -> ChunkLayout {
        let page_bytes = TOKEN_BYTES * u64::from(group.block_tokens);
        ChunkLayout::new(LAYERS, 1, page_bytes, group.blocks_per_chunk).unwrap()
    }

    pub(crate) fn slot_bytes(groups: &[GroupOptions]) -> u64 {
        groups.iter().map(|group| Self::chunk(group).chunk_bytes()).max().unwrap()
    }

    /// Fresh caches on a device over `host`.
    pub(crate) fn new(
        groups: &[GroupOptions],
        num_blocks: u32,
        host: Arc<dyn HostMemory>,
        seed: u64,
    ) -> (Self, Stepping, Vec<DeviceSpan>, BlockLayout) {
        let options =
            HostDeviceOptions { inflight_max: 5, quantum_bytes: 17, ..HostDeviceOptions::default() };
        let device = SteppedDevice::new(options, host, seed).unwrap();
        let (mut spans, mut regions, mut specs) = (Vec::new(), Vec::new(), Vec::new());
        for (group, nth) in groups.iter().zip(0..) {
            let chunk = Self::chunk(group);
            let layer_bytes = chunk.page_bytes() * u64::from(num_blocks);
            let span = device.device().alloc(layer_bytes * u64::from(LAYERS)).unwrap();
            let region = RegionId(nth);
            let tensors: Vec<_> = (0..LAYERS)
                .map(|layer| LayerTensor { layer, region, offset: u64::from(layer) * layer_bytes })
                .collect();
            regions.push((region, span.bytes()));
            specs.push(GroupSpec::layer_first(&chunk, num_blocks, &tensors));
            spans.push(span);
        }
        let layout = BlockLayout::new(&regions, &specs).unwrap();
        let bases = spans.iter().map(DeviceSpan::address).collect();
        (Self { groups: groups.to_vec(), num_blocks, bases }, Stepping(device), spans, layout)
    }

    fn address(&self, group: usize, layer: u32, block: BlockId, token: u32) -> u64 {
        let tokens = u64::from(self.groups[group].block_tokens);
        let block = u64::from(layer) * u64::from(self.num_blocks) + u64::from(block.0);
        self.bases[group] + (block * tokens + u64::from(token) % tokens) * TOKEN_BYTES
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
    pub(crate) value: u64,
}

fn bytes_of(place: &Place, layer: u32) -> [u8; 5] {
    let value = mix(place.value ^ mix(u64::from(layer) << 8 | place.group as u64));
    value.to_le_bytes()[..5].try_into().unwrap()
}

/// Puts one request's compute of some layers on a stream: it reads some tokens, and writes others.
pub(crate) fn compute(
    device: &Stepping,
    caches: &Caches,
    reads: Vec<Place>,
    writes: Vec<Place>,
    layers: Range<u32>,
    wrong: &Arc<AtomicU64>,
) {
    let ranges = |places: &[Place]| -> Vec<_> {
        let of = |(place, layer): (&Place, u32)| {
            let start = caches.address(place.group, layer, place.block, place.token);
            start..start + TOKEN_BYTES
        };
        places.iter().flat_map(|place| layers.clone().map(move |layer| (place, layer))).map(of).collect()
    };
    let accesses = Accesses { reads: ranges(&reads), writes: ranges(&writes) };
    let (caches, wrong) = (caches.clone(), Arc::clone(wrong));
    let kernel = move |memory: &DeviceMemory| {
        // What is computed of wrong bytes is wrong.
        let mut spoilt = 0;
        for layer in layers {
            for place in &reads {
                let mut found = [0; 5];
                memory
                    .read(caches.address(place.group, layer, place.block, place.token), &mut found)
                    .unwrap();
                if found != bytes_of(place, layer) {
                    wrong.fetch_add(1, Ordering::Relaxed);
                    spoilt = 0xff;
                }
            }
            for place in &writes {
                let address = caches.address(place.group, layer, place.block, place.token);
                memory.write(address, &bytes_of(place, layer).map(|byte| byte ^ spoilt)).unwrap();
            }
        }
    };
    device.0.device().compute().launch_with(accesses, kernel).unwrap();
}
