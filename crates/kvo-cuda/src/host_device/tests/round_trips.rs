//! Chunks that go from blocks to slots and back, through the planner.

use kvo_core::{BlockId, ChunkLayout, GroupIdx};
use proptest::prelude::*;

use super::*;
use crate::{BlockLayout, ChunkBlocks, CopyPlanner};

const NUM_BLOCKS: u32 = 40;

/// A device with a planner of one of three layouts, over 6 slots of 4 blocks of 2 layers of K and V.
fn planned(layout: usize) -> (HostDevice, CopyPlanner) {
    let chunk = ChunkLayout::new(2, 2, 24, 4).unwrap();
    let make =
        [BlockLayout::layer_first, BlockLayout::layer_first_interleaved, BlockLayout::block_first][layout];
    let device_bytes = u64::from(NUM_BLOCKS) * chunk.block_bytes();
    let planner =
        CopyPlanner::new(make(&chunk, NUM_BLOCKS, device_bytes).unwrap(), 6, chunk.chunk_bytes()).unwrap();
    let slots = TestSlots::shared(6, usize::try_from(chunk.chunk_bytes()).unwrap());
    let options = HostDeviceOptions { segment_bytes: 100, detect_races: true, ..options() };
    let mut device = HostDevice::new(options, slots).unwrap();
    let span = device.alloc(device_bytes).unwrap();
    device.attach(span).unwrap();
    (device, planner)
}

/// What byte `byte` of a page of `owner`'s content `version` is in a plane.
fn content(owner: u32, version: u32, plane: usize) -> Vec<u8> {
    let seed =
        owner.wrapping_mul(0x9E37_79B1) ^ version.wrapping_mul(0x85EB_CA6B) ^ u32::try_from(plane).unwrap();
    (0..24_u32)
        .map(|byte| (seed.wrapping_add(byte).wrapping_mul(0x27D4_EB2F) >> 24).to_le_bytes()[0])
        .collect()
}

/// Puts kernels on the compute stream that write a block.
fn compute(device: &HostDevice, planner: &CopyPlanner, block: BlockId, owner: u32, version: u32) {
    for plane in 0..planner.layout().groups()[0].planes().len() {
        let offset = planner.layout().page_offset(GroupIdx(0), plane, block).unwrap();
        device.compute().launch_write(FIRST_ADDRESS + offset, content(owner, version, plane)).unwrap();
    }
}

#[track_caller]
fn check_block(device: &HostDevice, planner: &CopyPlanner, block: BlockId, owner: u32, version: u32) {
    for plane in 0..planner.layout().groups()[0].planes().len() {
        let mut page = [0; 24];
        let offset = planner.layout().page_offset(GroupIdx(0), plane, block).unwrap();
        device.memory().read(FIRST_ADDRESS + offset, &mut page).unwrap();
        assert_eq!(page[..], content(owner, version, plane), "block {}, plane {plane}", block.0);
    }
}

fn submit(device: &mut HostDevice, class: TransferClass, ops: Vec<CopyOp>) -> Ticket {
    let after = fence(device);
    device.submit(Transfer::new(class, ops, after)).unwrap()
}

/// B41: four blocks a chunk, three chunks, every skip and every tail.
#[test]
fn a_load_may_begin_and_end_inside_a_chunk_and_touches_no_other_block() {
    let slots = [4, 0, 3].map(SlotId);
    let sources: Vec<_> = (0..12).map(|nth| BlockId(nth * 7 % 20)).collect();
    for layout in 0..3 {
        for (skip, tail) in (0..4).flat_map(|skip| (0..4).map(move |tail| (skip, tail))) {
            let (mut device, mut planner) = planned(layout);
            for (block, owner) in sources.iter().zip(0..) {
                compute(&device, &planner, *block, owner, 0);
            }
            let chunks: Vec<_> = planner.spread(GroupIdx(0), 0, &slots, &sources).unwrap().collect();
            let mut ops = Vec::new();
            planner.plan_store(&chunks, &mut ops).unwrap();
            submit(&mut device, TransferClass::Store, ops);
            all(&mut device);

            // Destinations are blocks 20 to 39, every one written with a canary first.
            for block in 20..40 {
                compute(&device, &planner, BlockId(block), block, 99);
            }
            let wanted = 12 - skip - tail;
            let destinations: Vec<_> = (0..wanted).map(|nth| BlockId(39 - nth * 3 % 20)).collect();
            let chunks: Vec<_> = planner.spread(GroupIdx(0), skip, &slots, &destinations).unwrap().collect();
            let mut ops = Vec::new();
            planner.plan_load(&chunks, &mut ops).unwrap();
            submit(&mut device, TransferClass::Demand, ops);
            let done = all(&mut device);
            assert!(done.iter().all(|completion| completion.result.is_ok()), "{done:?}");

            for (block, owner) in destinations.iter().zip(skip..) {
                check_block(&device, &planner, *block, owner, 0);
            }
            for block in (20..40).map(BlockId).filter(|block| !destinations.contains(block)) {
                check_block(&device, &planner, block, block.0, 99);
            }
        }
    }
}

/// What an engine does in one step of the random test.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// Compute writes new content into four blocks.
    Compute { group: u32 },
    /// Four blocks are stored into a slot.
    Store { group: u32, slot: u32 },
    /// A slot is loaded into four blocks, less some at either end.
    Load { slot: u32, group: u32, skip: u32, tail: u32 },
    /// The engine looks for completions.
    Poll,
}

fn step() -> impl Strategy<Value = Step> {
    let (group, slot) = (0..NUM_BLOCKS / 4, 0..6_u32);
    prop_oneof![
        3 => group.clone().prop_map(|group| Step::Compute { group }),
        3 => (group.clone(), slot.clone()).prop_map(|(group, slot)| Step::Store { group, slot }),
        3 => (slot, group, 0..3_u32, 0..2_u32)
            .prop_map(|(slot, group, skip, tail)| Step::Load { slot, group, skip, tail }),
        1 => Just(Step::Poll),
    ]
}

/// An engine that keeps the rules: fences for every copy, no block or slot used before the copies of it ended.
struct Engine {
    device: HostDevice,
    planner: CopyPlanner,
    /// The owner and version of each block's and each slot's content; `None` if never written.
    blocks: Vec<Option<(u32, u32)>>,
    slots: [[Option<(u32, u32)>; 4]; 6],
    /// The group and slot of each transfer in flight.
    inflight: Vec<(Ticket, u32, u32)>,
    version: u32,
}

impl Engine {
    fn step(&mut self, step: Step) {
        match step {
            Step::Compute { group } => {
                self.settle(|_, busy, _| busy == group);
                self.version += 1;
                for block in group * 4..group * 4 + 4 {
                    compute(&self.device, &self.planner, BlockId(block), block, self.version);
                    self.blocks[block as usize] = Some((block, self.version));
                }
            }
            Step::Store { group, slot } => {
                self.settle(|_, busy_group, busy_slot| busy_group == group || busy_slot == slot);
                // Descending, so that blocks and sub-blocks do not agree.
                let blocks: Vec<_> = (group * 4..group * 4 + 4).rev().map(BlockId).collect();
                let chunk = ChunkBlocks { group: GroupIdx(0), slot: SlotId(slot), skip: 0, blocks: &blocks };
                let mut ops = Vec::new();
                self.planner.plan_store(&[chunk], &mut ops).unwrap();
                let ticket = submit(&mut self.device, TransferClass::Store, ops);
                for (content, block) in self.slots[slot as usize].iter_mut().zip(&blocks) {
                    *content = self.blocks[block.0 as usize];
                }
                self.inflight.push((ticket, group, slot));
            }
            Step::Load { slot, group, skip, tail } => {
                self.settle(|_, busy_group, busy_slot| busy_group == group || busy_slot == slot);
                if self.slots[slot as usize].contains(&None) {
                    return;
                }
                let blocks: Vec<_> = (group * 4..group * 4 + 4 - skip - tail).map(BlockId).collect();
                let chunk = ChunkBlocks { group: GroupIdx(0), slot: SlotId(slot), skip, blocks: &blocks };
                let mut ops = Vec::new();
                self.planner.plan_load(&[chunk], &mut ops).unwrap();
                let ticket = submit(&mut self.device, TransferClass::Demand, ops);
                for (block, content) in blocks.iter().zip(&self.slots[slot as usize][skip as usize..]) {
                    self.blocks[block.0 as usize] = *content;
                }
                self.inflight.push((ticket, group, slot));
            }
            Step::Poll => self.settle(|_, _, _| false),
        }
    }

    /// Polls until no transfer in flight is in the way.
    fn settle(&mut self, in_the_way: impl Fn(Ticket, u32, u32) -> bool) {
        let mut done = Vec::new();
        self.device.poll(&mut done);
        loop {
            for completion in done.drain(..) {
                completion.result.unwrap();
                let of_ticket = |&(ticket, ..): &(Ticket, u32, u32)| ticket == completion.ticket;
                let nth = self.inflight.iter().position(of_ticket).expect("completes once");
                self.inflight.swap_remove(nth);
            }
            if !self.inflight.iter().any(|&(ticket, group, slot)| in_the_way(ticket, group, slot)) {
                return;
            }
            self.device.wait(LONG, &mut done);
            assert!(!done.is_empty(), "a transfer was lost");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn an_engine_that_keeps_the_rules_finds_every_block_as_it_should_be(
        layout in 0..3_usize,
        steps in proptest::collection::vec(step(), 1..120),
    ) {
        let (device, planner) = planned(layout);
        let blocks = vec![None; NUM_BLOCKS as usize];
        let mut engine =
            Engine { device, planner, blocks, slots: [[None; 4]; 6], inflight: Vec::new(), version: 0 };
        for step in steps {
            engine.step(step);
        }
        engine.settle(|_, _, _| true);
        engine.device.compute().synchronize(LONG).unwrap();
        assert_eq!(engine.device.take_races(), []);
        for (block, content) in (0..).map(BlockId).zip(&engine.blocks) {
            if let Some((owner, version)) = *content {
                check_block(&engine.device, &engine.planner, block, owner, version);
            }
        }
    }
}
