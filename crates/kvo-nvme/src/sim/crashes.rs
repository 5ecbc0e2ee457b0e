//! Single facts about how a store ends, and what the next one finds.

use super::{
    Sim,
    facts::{options, sim},
    walk::{Decaying, Step},
};
use crate::{
    NvmeOptions,
    testing::{Call, End, Faults, Kind, Lie, Plan, Rng, life, lock},
};

fn durable(capacity: u32, seed: u64) -> Sim {
    let options = NvmeOptions { durable: true, ..options(capacity) };
    Sim::new(options, Faults::none(), Rng::new(seed), None)
}

impl Sim {
    /// Ends the transfers, and leaves the records where they are.
    fn run_transfers(&mut self) {
        lock(&self.transfers).finish();
        self.apply(&Step::Poll);
    }

    /// Ends the store, and opens it as it was opened.
    fn begin(&mut self, end: End) {
        self.apply(&Step::BeginAnew { end, durable: self.options.durable });
    }

    fn end_and_check(&mut self, end: End, resident: &[u64]) {
        self.begin(end);
        assert!(self.book.resident.iter().eq(resident), "{:?}, not {resident:?}", self.book.resident);
    }
}

#[test]
fn a_crash_loses_at_most_the_last_batch() {
    for end in [End::Killed, End::PowerLost] {
        let mut sim = sim(8);
        sim.put(&[1, 2, 3], Plan::good());
        if end == End::PowerLost {
            lock(&sim.disk).sync_data(0).unwrap();
            lock(&sim.disk).sync_index().unwrap();
        }
        sim.write(&[4, 5]);
        sim.run_transfers();
        assert_eq!(sim.book.resident.len(), 5);
        sim.begin(end);
        assert!([1, 2, 3].iter().all(|n| sim.book.resident.contains(n)), "{:?}", sim.book.resident);
        sim.read(&[1, 2, 3]);
        sim.finish();
        assert_eq!(sim.book.chunks_arrived, 3);
    }
}

#[test]
fn durable_writes_survive_any_crash() {
    for seed in 0..100 {
        let mut sim = durable(4, seed);
        sim.put(&[1, 2], Plan::good());
        sim.write(&[3, 4]);
        lock(&sim.transfers).begin(0);
        sim.end_and_check(End::PowerLost, &[1, 2]);
        sim.check_read(&[1, 2], Plan::good(), &[1, 2]);
        sim.end_and_check(End::Killed, &[1, 2]);
        sim.end_and_check(End::PowerLost, &[1, 2]);
        sim.check_read(&[2, 1], Plan::good(), &[1, 2]);
    }
}

/// B40: data, record, and only then its report.
#[test]
fn a_durable_write_is_reported_when_its_record_is_safe() {
    let mut sim = durable(2, 1);
    sim.write(&[1]);
    sim.run_transfers();
    assert_eq!((sim.book.jobs.len(), sim.book.resident.len()), (1, 0));
    sim.apply(&Step::Record);
    sim.apply(&Step::Poll);
    assert_eq!((sim.book.jobs.len(), sim.book.resident.len()), (0, 1));
}

#[test]
fn a_failed_sync_is_never_believed() {
    let options = NvmeOptions { durable: true, ..options(4) };
    let mut sim = Sim::new(options, Faults::of(&[(Kind::Sync, 1)]), Rng::new(1), None);
    sim.write(&[1, 2]);
    sim.finish();
    assert!(sim.book.jobs.is_empty() && sim.book.resident.is_empty());
    lock(&sim.disk).faults.stop();
    // The next sync would go well, and would say nothing.
    sim.apply(&Step::Pass(sim.options.breaker.pause * 2));
    sim.put(&[3], Plan::good());
    assert!(sim.book.resident.is_empty(), "{:?}", sim.book.resident);
    sim.begin(End::Closed);
    sim.put(&[4], Plan::good());
    assert!(sim.book.resident.contains(&4));
}

#[test]
fn what_a_killed_store_had_told_the_system_is_durable_before_it_is_called_so() {
    for seed in 0..20 {
        let mut sim = Sim::new(options(4), Faults::none(), Rng::new(seed), None);
        sim.put(&[1], Plan::good());
        sim.apply(&Step::BeginAnew { end: End::Killed, durable: true });
        // It is there, so it is not written again.
        sim.put(&[1], Plan::good());
        sim.end_and_check(End::PowerLost, &[1]);
        sim.check_read(&[1], Plan::good(), &[1]);
    }
}

/// B52: cut off at any sector.
#[test]
fn a_loss_of_power_in_a_write_is_a_miss_or_a_hit_and_never_a_mix() {
    let (mut hits, mut misses) = (0, 0);
    for seed in 0..200 {
        let options = options(1);
        let mut sim = Sim::new(options, Faults::none(), Rng::new(seed), None);
        sim.put(&[1], Plan::good());
        sim.put(&[2], Plan::good());
        sim.begin(End::PowerLost);
        let found: Vec<u64> = sim.book.resident.iter().copied().collect();
        assert!(found.len() <= 1, "{found:?}");
        for n in found {
            let before = sim.book.chunks_arrived;
            sim.read(&[n]);
            sim.finish();
            let hit = sim.book.chunks_arrived > before;
            (hits, misses) = (hits + u64::from(hit), misses + u64::from(!hit));
        }
    }
    assert!(hits > 10 && misses > 10, "{hits} hits, {misses} misses");
}

/// B31 and B52: a slot that is used again, and whose record still names the one before.
#[test]
fn a_write_that_is_killed_costs_the_chunk_that_lay_there() {
    let mut gone = 0;
    for seed in 0..50 {
        let mut sim = Sim::new(options(1), Faults::none(), Rng::new(seed), None);
        sim.put(&[1], Plan::good());
        sim.write(&[2]);
        lock(&sim.transfers).begin(0);
        // Its record still says that chunk 1 is there.
        sim.end_and_check(End::Killed, &[1]);
        let before = sim.book.chunks_arrived;
        sim.read(&[1]);
        sim.finish();
        gone += 1 - (sim.book.chunks_arrived - before);
    }
    assert!(gone > 20, "{gone} of 50");
}

/// B52: of two writes of a key the later one counts.
#[test]
fn the_newest_generation_wins() {
    for end in [End::Closed, End::Killed] {
        let mut sim = sim(3);
        sim.put(&[1], Plan::good());
        // Dropped, as a read of it fails, and written again, into another slot.
        let slot = sim.place(1).unwrap().0;
        sim.check_read(&[1], Plan::lying(Lie::ReadFlip(5)), &[]);
        sim.put(&[1], Plan::good());
        let again = sim.place(1).unwrap();
        assert_ne!(again.0, slot);
        sim.begin(end);
        assert_eq!(sim.place(1), Some(again));
        sim.check_read(&[1], Plan::good(), &[1]);
    }
}

#[test]
fn a_record_that_decays_costs_its_chunk() {
    for bit in [0, 70, 500, 1023] {
        let mut sim = sim(6);
        sim.put(&[1, 2, 3, 4, 5], Plan::good());
        sim.apply(&Step::Decay { of: Decaying::Record, nth: 2, bit });
        sim.end_and_check(End::Killed, &[1, 2, 4, 5]);
        sim.check_read(&[5, 4, 2, 1], Plan::good(), &[1, 2, 4, 5]);
    }
}

#[test]
fn a_store_that_is_closed_comes_back_whole() {
    let mut sim = sim(3);
    sim.put(&[1, 2, 3], Plan::good());
    sim.write(&[4]);
    // What is under way when it is closed is still written, in the place of the tail.
    sim.end_and_check(End::Closed, &[1, 2, 4]);
    sim.end_and_check(End::PowerLost, &[1, 2, 4]);
    sim.check_read(&[1, 2, 4], Plan::good(), &[1, 2, 4]);
}

#[test]
fn a_slot_that_failed_is_left_alone_by_the_next_store() {
    let mut sim = sim(3);
    sim.put(&[1], Plan::ending(Call::Short(0)));
    assert_eq!(sim.store.counts().quarantined, 1);
    sim.end_and_check(End::Killed, &[1]);
    assert_eq!(sim.store.counts().quarantined, 1);
}

#[test]
fn a_superblock_that_decays_costs_nothing() {
    let mut sim = sim(4);
    sim.put(&[1, 2], Plan::good());
    for n in [3, 4] {
        sim.begin(End::Killed);
        sim.put(&[n], Plan::good());
        // Each time the newest, which says in which epoch that was written.
        lock(&sim.disk).decay_superblock(true, 8 * n);
    }
    sim.end_and_check(End::Killed, &[1, 2, 3, 4]);
    sim.check_read(&[1, 2, 3, 4], Plan::good(), &[1, 2, 3, 4]);
}

#[test]
fn openings_that_are_cut_off_leave_the_store_as_it_was() {
    for (seed, calls) in (0..200).zip((0..5).cycle()) {
        let mut sim = Sim::new(options(4), Faults::none(), Rng::new(seed), None);
        sim.put(&[1, 2], Plan::good());
        lock(&sim.disk).decay_superblock(false, seed);
        sim.end_and_check(End::Closed, &[1, 2]);
        // Killed, and then without power.
        for calls in [calls, seed % 3] {
            lock(&sim.disk).light_fuse(calls);
            let _ = life::begin(&sim.disk);
            lock(&sim.disk).put_out_fuse();
        }
        lock(&sim.disk).lose_power();
        sim.end_and_check(End::Killed, &[1, 2]);
        sim.check_read(&[1, 2], Plan::good(), &[1, 2]);
    }
}

#[test]
fn a_close_whose_sync_fails_and_openings_that_are_cut_off_leave_a_superblock() {
    for seed in 0..2000 {
        let faults = Faults::of(&[(Kind::Sync, 4), (Kind::CutOff, 2)]);
        let mut sim = Sim::new(options(2), faults, Rng::new(seed), None);
        for _ in 0..3 {
            sim.begin(End::Closed);
        }
    }
}
