//! Single facts, each with one thing that goes wrong.

use rustix::io::Errno;

use super::{
    Sim,
    walk::{Decaying, Step},
};
use crate::{
    NvmeOptions,
    testing::{Call, Faults, Lie, Plan, Rng, lock},
};

const CHUNK_BYTES: u64 = 2048;

pub(super) fn options(capacity: u32) -> NvmeOptions {
    NvmeOptions { record_events: true, ..NvmeOptions::new("unused", capacity, CHUNK_BYTES) }
}

pub(super) fn sim(capacity: u32) -> Sim {
    Sim::new(options(capacity), Faults::none(), Rng::new(1), None)
}

impl Sim {
    pub(super) fn write(&mut self, ns: &[u64]) {
        self.apply(&Step::Write { req: 0, ns: ns.to_vec(), positions: true });
    }

    pub(super) fn read(&mut self, ns: &[u64]) {
        self.apply(&Step::Read { req: 0, ns: ns.to_vec(), positions: true });
    }

    /// Everything ends, the next transfer as `plan` says.
    fn run(&mut self, plan: Plan) {
        lock(&self.transfers).next_plan = Some(plan);
        self.finish();
        assert!(self.book.jobs.is_empty());
    }

    pub(super) fn put(&mut self, ns: &[u64], plan: Plan) {
        self.write(ns);
        self.run(plan);
    }

    /// Reads chunks, the first as `plan` says; `arrived` come, and every byte of them is right.
    #[track_caller]
    pub(super) fn check_read(&mut self, ns: &[u64], plan: Plan, arrived: &[u64]) {
        let before = self.book.chunks_arrived;
        self.read(ns);
        self.run(plan);
        assert_eq!(self.book.chunks_arrived - before, arrived.len() as u64);
        assert!(self.book.resident.iter().eq(arrived), "{:?}, not {arrived:?}", self.book.resident);
    }
}

#[test]
fn a_torn_write_is_a_miss() {
    for sectors in 1..16 {
        let mut sim = sim(3);
        sim.put(&[1, 2, 3], Plan::lying(Lie::Torn(sectors)));
        sim.check_read(&[1, 2, 3], Plan::good(), &[2, 3]);
    }
}

#[test]
fn a_lost_write_is_a_miss_and_so_is_what_lies_there_instead() {
    let mut sim = sim(1);
    sim.put(&[1], Plan::good());
    // Into the slot of chunk 1, which is evicted: its bytes are intact.
    sim.put(&[4], Plan::lying(Lie::Lost));
    sim.check_read(&[1, 4], Plan::good(), &[]);
}

#[test]
fn a_misdirected_write_costs_the_two_chunks() {
    let mut sim = sim(3);
    sim.put(&[1, 2], Plan::good());
    sim.put(&[3], Plan::lying(Lie::Misdirected(1)));
    sim.check_read(&[1, 2, 3], Plan::good(), &[2]);
}

#[test]
fn a_bit_that_decays_costs_its_chunk() {
    for bit in [0, 1, 4095, 4096, CHUNK_BYTES * 8 - 1] {
        let mut sim = sim(2);
        sim.put(&[1, 2], Plan::good());
        sim.apply(&Step::Decay { of: Decaying::Chunk, nth: 1, bit });
        sim.check_read(&[1, 2], Plan::good(), &[1]);
    }
}

#[test]
fn a_bit_that_is_read_wrong_costs_its_chunk() {
    let mut sim = sim(2);
    sim.put(&[1, 2], Plan::good());
    sim.check_read(&[2, 1], Plan::lying(Lie::ReadFlip(77)), &[1]);
}

#[test]
fn a_stale_sector_costs_its_chunk() {
    let mut sim = sim(1);
    sim.put(&[1], Plan::good());
    lock(&sim.disk).data[0].sync();
    sim.put(&[2], Plan::good());
    sim.check_read(&[2], Plan::lying(Lie::Stale(0b100)), &[]);
}

/// B32: half of the bytes is no success.
#[test]
fn a_short_transfer_goes_on_to_its_end() {
    for bytes in (512..CHUNK_BYTES).step_by(512) {
        let short = || Plan::ending(Call::Short(usize::try_from(bytes).unwrap()));
        let mut sim = sim(1);
        sim.put(&[1], short());
        sim.check_read(&[1], short(), &[1]);
    }
}

#[test]
fn an_interrupted_transfer_goes_on() {
    let mut sim = sim(1);
    sim.put(&[1], Plan::ending(Call::Error(Errno::INTR)));
    sim.check_read(&[1], Plan::ending(Call::Error(Errno::INTR)), &[1]);
}

#[test]
fn a_slot_that_takes_nothing_is_left_alone() {
    let mut sim = sim(3);
    sim.put(&[1, 2], Plan::ending(Call::Short(0)));
    sim.check_read(&[1, 2], Plan::good(), &[1, 2]);
    assert_eq!(sim.store.counts().quarantined, 1);
}

#[test]
fn a_transfer_that_never_ends_is_reported_late_and_keeps_its_slots() {
    for direction in ["write", "read"] {
        let mut sim = sim(2);
        if direction == "read" {
            sim.put(&[1], Plan::good());
            sim.read(&[1]);
        } else {
            sim.write(&[1]);
        }
        lock(&sim.transfers).begin(0);
        sim.apply(&Step::Pass(sim.options.deadline));
        sim.apply(&Step::Poll);
        assert!(sim.book.jobs.is_empty(), "a {direction}");
        assert_eq!(sim.book.late.len(), 1);
        // One slot is left for two chunks.
        sim.write(&[2, 3]);
        let pending: Vec<u32> = lock(&sim.transfers).pending.iter().map(|pending| pending.op.slot).collect();
        assert!(pending.len() == 2 && pending[0] != pending[1], "{pending:?}");
        sim.finish();
        assert!(sim.book.late.is_empty());
        sim.check_read(&[1, 2], Plan::good(), &[1, 2]);
    }
}
