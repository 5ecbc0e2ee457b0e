//! What becomes of the files of a store: bits, fields, records and whole files.

use std::ops::Range;

use super::{
    image::{Image, NUM_DEVICES, NUM_SLOTS},
    input::Input,
};
use crate::format::{
    BLOCK_BYTES, EPOCH_MAX, RECORD_BYTES, StoreState, Superblock, order_start, order_sum, reseal_block,
    reseal_record,
};

/// Where the sum of the payload is in a record.
const CHECKSUM: Range<usize> = 56..64;

/// The files, and what they lack.
pub(super) struct Damaged {
    pub(super) image: Image,
    /// The index, then the data files: bytes that each is too long, or too short.
    pub(super) longer: [i64; 3],
    pub(super) missing: [bool; 3],
}

impl Damaged {
    /// A store to which the input does what it says, step by step.
    pub(super) fn of(input: &mut Input<'_>) -> Self {
        let states = [StoreState::Clean, StoreState::Open, StoreState::Creating];
        let image = Image::new(states[input.below(3)]);
        let mut damaged = Self { image, longer: [0; 3], missing: [false; 3] };
        let mut steps = 0;
        while !input.is_at_end() && steps < 16 {
            damaged.step(input);
            steps += 1;
        }
        damaged
    }

    fn step(&mut self, input: &mut Input<'_>) {
        match input.below(12) {
            0 => self.change_superblock(input),
            1 | 2 => self.change_record(input),
            3 => self.change_header(input),
            4 => {
                let (from, to) = (any_slot(input), any_slot(input));
                self.copy_record(from, to, input.flag());
            }
            5 => {
                let slot = any_slot(input);
                input.patch(self.image.payload(slot));
            }
            6 => {
                let (from, to) = (any_slot(input), any_slot(input));
                let bytes = self.image.payload(from).to_vec();
                self.image.payload(to).copy_from_slice(&bytes);
            }
            7 => self.change_superblocks(input),
            8 => self.change_order(input),
            9 => self.change_file(input),
            10 => self.move_chunk(input),
            _ => self.set_number(input),
        }
    }

    fn block(&mut self, block: usize) -> &mut [u8; BLOCK_BYTES] {
        let block = self.image.index[block * BLOCK_BYTES..].first_chunk_mut();
        block.expect("an index has two superblocks")
    }

    fn change_superblock(&mut self, input: &mut Input<'_>) {
        let block = self.block(input.below(2));
        change_block(input, block);
    }

    /// A number of a superblock that may be as large as it likes, near to the largest; sealed.
    fn set_number(&mut self, input: &mut Input<'_>) {
        let (block, field, less) = (input.below(2), input.below(5), u64::from(input.u8() % 8));
        let Ok(mut superblock) = Superblock::decode(self.block(block)) else { return };
        match field {
            0 => superblock.sequence = u64::MAX - less,
            1 => superblock.epoch = EPOCH_MAX - less,
            2 => superblock.written_bytes = u64::MAX - less,
            3 => superblock.num_slots = input.u32(),
            _ => superblock.created_s = u64::MAX - less,
        }
        *self.block(block) = superblock.encode();
    }

    fn change_header(&mut self, input: &mut Input<'_>) {
        let header = &mut self.image.data[input.below(2)].header;
        change_block(input, header.first_chunk_mut().expect("a header is a block"));
    }

    /// Anything but the sum of the payload: the fuzzer sees what that is compared to, and would forge it.
    fn change_record(&mut self, input: &mut Input<'_>) {
        let slot = any_slot(input);
        let record = self.image.record(slot);
        let sum = record[CHECKSUM].to_vec();
        input.patch(record);
        record[CHECKSUM].copy_from_slice(&sum);
        if input.flag() {
            self.reseal_record(slot);
        }
    }

    fn copy_record(&mut self, from: u32, to: u32, is_resealed: bool) {
        let bytes = self.image.record(from).to_vec();
        self.image.record(to).copy_from_slice(&bytes);
        if is_resealed {
            self.reseal_record(to);
        }
    }

    fn reseal_record(&mut self, slot: u32) {
        let id = super::image::superblock().id;
        let record: &mut [u8; RECORD_BYTES] =
            self.image.record(slot).as_mut_array().expect("a record is as long as one");
        reseal_record(record, id, slot);
    }

    /// A chunk with its record, in another slot.
    fn move_chunk(&mut self, input: &mut Input<'_>) {
        let (from, to) = (any_slot(input), any_slot(input));
        self.copy_record(from, to, true);
        let bytes = self.image.payload(from).to_vec();
        self.image.payload(to).copy_from_slice(&bytes);
    }

    /// The one is the other, both have changed places, or one is empty.
    fn change_superblocks(&mut self, input: &mut Input<'_>) {
        let [a, b] = [0, 1].map(|block| *self.block(block));
        let [a, b] = match input.below(5) {
            0 => [b, a],
            1 => [a, a],
            2 => [b, b],
            3 => [a, [0; BLOCK_BYTES]],
            _ => [[0; BLOCK_BYTES], b],
        };
        *self.block(0) = a;
        *self.block(1) = b;
    }

    /// Other bytes of the eviction order; the first superblock says that they are right, if the input wants that.
    fn change_order(&mut self, input: &mut Input<'_>) {
        let start = super::image::usize_of(order_start(NUM_SLOTS));
        let num_bytes = input.below(NUM_SLOTS as usize + 1) * 4;
        if num_bytes > 0 {
            input.patches(&mut self.image.index[start..start + num_bytes]);
        }
        let sum = order_sum(&self.image.index[start..start + num_bytes]);
        if input.flag()
            && let Ok(superblock) = Superblock::decode(self.block(0))
        {
            let order_slots = u32::try_from(num_bytes / 4).expect("the order is short");
            *self.block(0) = Superblock { order_slots, order_sum: sum, ..superblock }.encode();
        }
    }

    fn change_file(&mut self, input: &mut Input<'_>) {
        let (file, how) = (input.below(3), input.below(4));
        match how {
            0 => self.missing[file] = true,
            1 => self.image.data.swap(0, 1),
            2 => self.longer[file] = i64::from(input.u16() % 8192),
            _ => self.longer[file] = -i64::from(input.u16()),
        }
    }
}

fn change_block(input: &mut Input<'_>, block: &mut [u8; BLOCK_BYTES]) {
    // Most of a block is reserved, so that most of the places are where its fields are.
    if input.flag() {
        input.patch(block);
    } else {
        input.patch(&mut block[..192]);
    }
    if input.flag() {
        reseal_block(block);
    }
}

fn any_slot(input: &mut Input<'_>) -> u32 {
    u32::from(input.u8()) % NUM_SLOTS
}

const _: () = assert!(NUM_DEVICES == 2, "there is room for what two data files lack");
