//! Random layouts, and a map of their bytes that is made page by page and byte by byte.

use std::collections::VecDeque;

use kvo_core::{BlockId, ChunkLayout, GroupIdx, RegionId, SlotId};

use crate::{BlockLayout, ByteRun, CanonicalPage, ChunkBlocks, ChunkPlace, GroupSpec, LayerTensor, PageRef};

/// Calls `test` with `num` seeds, or only with that of the environment variable `KVO_CUDA_SEED`.
#[track_caller]
pub(crate) fn with_seeds(num: u64, mut test: impl FnMut(&mut Random)) {
    let given = std::env::var("KVO_CUDA_SEED").ok().map(|seed| seed.parse().expect("a seed is a number"));
    let seeds = given.map_or(1..num + 1, |seed: u64| seed..seed + 1);
    eprintln!("seeds {seeds:?}");
    for seed in seeds {
        let named = Named(seed);
        test(&mut Random::new(seed));
        drop(named);
    }
}

/// Says which seed it was that failed.
struct Named(u64);

impl Drop for Named {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("failed; replay with KVO_CUDA_SEED={}", self.0);
        }
    }
}

/// Choices: of a seed, by `SplitMix64`, or of a fuzzer's input.
pub(crate) struct Random {
    state: u64,
    /// What is left of an input.
    input: Option<VecDeque<u8>>,
}

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self { state: seed, input: None }
    }

    /// Choices that a fuzzer can lead: each is as few bytes of its input as it needs, and 0 behind the end.
    pub(crate) fn of_input(input: &[u8]) -> Self {
        Self { state: 0, input: Some(input.iter().copied().collect()) }
    }

    pub(crate) fn next(&mut self) -> u64 {
        if self.input.is_some() {
            return self.below(u64::MAX);
        }
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        let Some(input) = &mut self.input else { return self.next() % bound };
        let (mut value, mut most) = (0_u64, bound - 1);
        while most > 0 {
            value = value << 8 | u64::from(input.pop_front().unwrap_or(0));
            most >>= 8;
        }
        value % bound
    }

    /// A number from `least` to `most`.
    pub(crate) fn between(&mut self, least: u32, most: u32) -> u32 {
        least + u32::try_from(self.below(u64::from(most - least + 1))).unwrap()
    }

    /// True in one of `of` cases.
    pub(crate) fn one_in(&mut self, of: u64) -> bool {
        self.below(of) == 0
    }

    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for nth in (1..items.len()).rev() {
            items.swap(nth, usize::try_from(self.below(nth as u64 + 1)).unwrap());
        }
    }
}

/// A sound description.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) regions: Vec<(RegionId, u64)>,
    pub(crate) groups: Vec<GroupSpec>,
    /// Whether all pages are of one of the usual arrangements.
    pub(crate) usual: bool,
}

impl Case {
    pub(crate) fn random(random: &mut Random) -> Self {
        let mut case = Self { regions: Vec::new(), groups: Vec::new(), usual: true };
        for _ in 0..random.between(1, 2) {
            case.add_group(random);
        }
        // Slack behind the last page, which no copy may touch.
        case.regions.iter_mut().for_each(|(_, bytes)| *bytes += random.below(4));
        case.regions.reverse();
        case
    }

    pub(crate) fn layout(&self) -> BlockLayout {
        BlockLayout::new(&self.regions, &self.groups).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    fn add_group(&mut self, random: &mut Random) {
        let sizes = [random.between(1, 4), random.between(1, 2), random.between(1, 4)];
        let [layers, planes, blocks_per_chunk] = sizes;
        let chunk = ChunkLayout::new(layers, planes, 1 + random.below(6), blocks_per_chunk).unwrap();
        let num_blocks = random.between(1, 12);
        let tensor_bytes = u64::from(num_blocks) * chunk.page_bytes() * u64::from(planes);
        let group = match random.below(6) {
            0 | 1 => {
                let tensors: Vec<_> =
                    (0..layers).map(|layer| self.tensor(layer, tensor_bytes, random)).collect();
                let make = if random.one_in(2) { GroupSpec::layer_first } else { GroupSpec::interleaved };
                make(&chunk, num_blocks, &tensors)
            }
            2 => {
                let tensor = self.tensor(0, tensor_bytes * u64::from(layers), random);
                GroupSpec::block_first(&chunk, num_blocks, tensor)
            }
            3 => {
                let tensor = self.tensor(0, tensor_bytes * u64::from(layers), random);
                GroupSpec::cross_layer(chunk.block_bytes(), num_blocks, blocks_per_chunk, tensor)
            }
            4 => return self.add_overlaid_groups(&chunk, num_blocks, random),
            _ => {
                self.usual = false;
                let pages = (0..layers).map(|layer| self.odd_page(layer, num_blocks, random)).collect();
                GroupSpec::new(num_blocks, blocks_per_chunk, pages)
            }
        };
        let group = if random.one_in(3) { self.with_places(group, random) } else { group };
        self.groups.push(group);
    }

    /// Two groups whose blocks are the same bytes: a block is either's.
    fn add_overlaid_groups(&mut self, chunk: &ChunkLayout, num_blocks: u32, random: &mut Random) {
        let block_bytes = chunk.page_bytes() * u64::from(chunk.planes());
        let tensors: Vec<_> = (0..chunk.layers())
            .map(|layer| self.tensor(layer, u64::from(num_blocks) * block_bytes, random))
            .collect();
        let one = GroupSpec::interleaved(chunk, num_blocks, &tensors).with_pool(7);
        let page_bytes = 1 + random.below(block_bytes);
        let pages = tensors.iter().map(|tensor| {
            PageRef::new(tensor.layer + 1, tensor.region, tensor.offset, page_bytes)
                .with_block_stride(block_bytes)
        });
        let other = GroupSpec::new(num_blocks, random.between(1, 3), pages.collect()).with_pool(7);
        self.usual = false;
        // The pool is one pair's.
        if self.groups.iter().all(|group| group.pool.is_none()) {
            self.groups.extend([one, other]);
        } else {
            self.groups.push(GroupSpec { pool: None, ..one });
        }
    }

    /// Padded pages, some of them parts of canonical ones, planes any way apart.
    fn odd_page(&mut self, layer: u32, num_blocks: u32, random: &mut Random) -> PageRef {
        let (rows, part_bytes) = (random.between(1, 3), 1 + random.below(3));
        let (parts, first, behind) = (random.between(1, 2), random.between(0, 2), random.between(0, 2));
        let page_bytes = u64::from(rows * parts) * part_bytes;
        let planes = random.between(1, 2);
        let (pad, plane_pad) = (random.below(3), random.below(3));
        let (block_stride, plane_stride, bytes) = if random.one_in(2) {
            let block_stride = page_bytes + pad;
            let plane_stride = block_stride * u64::from(num_blocks) + plane_pad;
            (block_stride, plane_stride, plane_stride * u64::from(planes))
        } else {
            let plane_stride = page_bytes + plane_pad;
            let block_stride = plane_stride * u64::from(planes) + pad;
            (block_stride, plane_stride, block_stride * u64::from(num_blocks))
        };
        let tensor = self.tensor(layer, bytes, random);
        let page = PageRef::new(tensor.layer, tensor.region, tensor.offset, page_bytes)
            .with_block_stride(block_stride)
            .with_planes(planes, plane_stride);
        match random.below(3) {
            0 => page,
            1 => {
                let all = first + parts + behind;
                page.with_canonical(CanonicalPage::of_parts(rows, all, first, parts, part_bytes))
            }
            _ => page.with_canonical(backwards(page_bytes)),
        }
    }

    /// Room for a layer's tensor: behind what a region has, or in a new one.
    fn tensor(&mut self, layer: u32, bytes: u64, random: &mut Random) -> LayerTensor {
        if self.regions.is_empty() || random.one_in(3) {
            let id = u32::try_from(3 * self.regions.len() + 2).unwrap();
            self.regions.push((RegionId(id), random.below(3)));
        }
        let nth = self.regions.len() - 1;
        let (region, end) = &mut self.regions[nth];
        let offset = *end + if random.one_in(2) { random.below(4) } else { 0 };
        *end = offset + bytes;
        LayerTensor { layer: 2 * layer, region: *region, offset }
    }

    /// The pages at given places: shuffled with gaps, or block by block.
    fn with_places(&mut self, mut group: GroupSpec, random: &mut Random) -> GroupSpec {
        self.usual = false;
        let blocks = u64::from(group.blocks_per_chunk);
        let bytes_of =
            |page: &PageRef| page.canonical.as_ref().map_or(page.page_bytes, |page| page.page_bytes);
        let block_bytes: u64 = group.pages.iter().map(|page| u64::from(page.planes) * bytes_of(page)).sum();
        let by_block = random.one_in(2);
        let mut order: Vec<_> = (0..group.pages.len()).collect();
        if random.one_in(2) {
            random.shuffle(&mut order);
        }
        let mut offset = random.below(3);
        for nth in order {
            let page = &mut group.pages[nth];
            let (page_bytes, planes) = (bytes_of(page), u64::from(page.planes));
            let place = if by_block {
                ChunkPlace { offset, plane_stride: page_bytes, block_stride: block_bytes }
            } else {
                let pad = random.below(2);
                let block_stride = page_bytes + pad;
                ChunkPlace { offset, plane_stride: block_stride * blocks, block_stride }
            };
            offset += if by_block { planes * page_bytes } else { planes * place.plane_stride };
            page.place = Some(place);
        }
        let end = if by_block { offset + (blocks - 1) * block_bytes } else { offset };
        group.with_chunk_bytes(end + random.below(3))
    }

    /// The bytes of a block as a sub-block: pairs of a place on the device and one in the chunk.
    pub(crate) fn block_map(&self, group: usize, block: u32, sub: u32) -> Vec<((u32, u64), u64)> {
        let spec = &self.groups[group];
        let (mut map, mut computed) = (Vec::new(), 0);
        for page in &spec.pages {
            let whole = page.canonical.as_ref().map_or(page.page_bytes, |page| page.page_bytes);
            let place = page.place.unwrap_or(ChunkPlace {
                offset: computed,
                plane_stride: whole * u64::from(spec.blocks_per_chunk),
                block_stride: whole,
            });
            if page.place.is_none() {
                computed += whole * u64::from(spec.blocks_per_chunk) * u64::from(page.planes);
            }
            for plane in 0..u64::from(page.planes) {
                let device =
                    page.base_offset + u64::from(block) * page.block_stride + plane * page.plane_stride;
                let chunk = place.offset + u64::from(sub) * place.block_stride + plane * place.plane_stride;
                map.extend(
                    bytes_of_page(page)
                        .into_iter()
                        .map(|(local, canonical)| ((page.region.0, device + local), chunk + canonical)),
                );
            }
        }
        map
    }

    /// The bytes that belong together: where on the device, and where in which slot.
    pub(crate) fn byte_map(&self, chunks: &[ChunkBlocks<'_>]) -> Vec<((u32, u64), (u32, u64))> {
        let mut map = Vec::new();
        for chunk in chunks {
            for (sub, block) in (chunk.skip..).zip(chunk.blocks) {
                let of_block = self.block_map(chunk.group.0 as usize, block.0, sub);
                map.extend(of_block.into_iter().map(|(device, offset)| (device, (chunk.slot.0, offset))));
            }
        }
        map
    }
}

/// A canonical page with the device's bytes in reverse order, one by one, and one byte of others between them.
fn backwards(page_bytes: u64) -> CanonicalPage {
    let run = |nth: u64| ByteRun {
        local_offset: nth,
        chunk_offset: 2 * (page_bytes - 1 - nth),
        bytes: 1,
        count: 1,
        local_stride: 0,
        chunk_stride: 0,
    };
    CanonicalPage { page_bytes: 2 * page_bytes, runs: (0..page_bytes).map(run).collect() }
}

/// Where each byte of a page goes in the chunk's page.
fn bytes_of_page(page: &PageRef) -> Vec<(u64, u64)> {
    let Some(canonical) = &page.canonical else {
        return (0..page.page_bytes).map(|byte| (byte, byte)).collect();
    };
    let mut bytes = Vec::new();
    for run in &canonical.runs {
        for nth in 0..u64::from(run.count) {
            for byte in 0..run.bytes {
                let local = run.local_offset + nth * run.local_stride + byte;
                bytes.push((local, run.chunk_offset + nth * run.chunk_stride + byte));
            }
        }
    }
    bytes
}

/// A chunk of a plan, with blocks of its own.
#[derive(Clone, Debug)]
pub(crate) struct Chunk {
    pub(crate) group: GroupIdx,
    pub(crate) slot: SlotId,
    pub(crate) skip: u32,
    pub(crate) blocks: Vec<BlockId>,
}

impl Chunk {
    pub(crate) fn as_blocks(&self) -> ChunkBlocks<'_> {
        ChunkBlocks { group: self.group, slot: self.slot, skip: self.skip, blocks: &self.blocks }
    }
}
