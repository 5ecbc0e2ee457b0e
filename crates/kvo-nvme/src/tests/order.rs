//! Who goes first when the store is full.

use kvo_core::{RequestId, SecondaryTier};
use kvo_policies::{GhostHits, PolicyKind};

use super::{CHUNK_BYTES, Rig, key};
use crate::NvmeOptions;

/// Runs each way of finishing a request that writes chunks 1 to 4 in two jobs, whose transfers end in every order.
fn for_all_orders(mut check: impl FnMut(Rig, &str)) {
    let orders = (0..24).map(|n| {
        let mut left = vec![0, 1, 2, 3];
        let mut picks = [n / 6, n % 6 / 2, n % 2, 0].into_iter();
        std::iter::from_fn(|| picks.next().map(|pick| left.remove(pick))).collect::<Vec<usize>>()
    });
    for order in orders {
        for finish_after in 0..=4 {
            let mut rig = Rig::new(4);
            rig.announce(1);
            rig.write(1, &[1, 2]);
            rig.write(1, &[3, 4]);
            let ops: Vec<_> = std::iter::from_fn(|| rig.next_op()).collect();
            for (count, &which) in order.iter().enumerate() {
                if count == finish_after {
                    rig.store.on_request_finished(RequestId(1));
                }
                rig.run(ops[which], super::Trouble::None);
                rig.poll();
            }
            if finish_after == 4 {
                rig.store.on_request_finished(RequestId(1));
            }
            check(rig, &format!("order {order:?}, finished after {finish_after}"));
        }
    }
}

/// B01, in this tier.
#[test]
fn the_tail_is_evicted_before_the_head_in_whatever_order_transfers_end() {
    for_all_orders(|mut rig, what| {
        println!("{what}");
        for (new, left) in [(11, &[1, 2, 3][..]), (12, &[1, 2]), (13, &[1]), (14, &[])] {
            rig.put(2, &[new]);
            rig.check_resident(1..10, left);
        }
    });
}

#[test]
fn what_a_request_has_read_outlives_what_was_only_written() {
    let mut rig = Rig::new(4);
    for (req, n) in [(1, 1), (2, 2), (3, 3), (4, 4)] {
        rig.announce(req);
        rig.put(req, &[n]);
        rig.store.on_request_finished(RequestId(req));
    }
    rig.announce(5);
    rig.get(5, &[1, 2], &[]);
    rig.store.on_request_finished(RequestId(5));
    rig.put(6, &[5, 6]);
    rig.check_resident(1..10, &[1, 2, 5, 6]);
}

/// B04: those that were read longest ago go first.
#[test]
fn a_chunk_just_written_is_not_the_next_to_go() {
    let mut rig = Rig::new(3);
    rig.put(1, &[1, 2, 3]);
    rig.get(1, &[1, 2, 3], &[]);
    rig.put(1, &[4]);
    rig.put(1, &[5]);
    rig.check_resident(1..10, &[1, 4, 5]);
}

/// B04, for chunks that are written and read one by one, without a request.
#[test]
fn a_chunk_written_alone_is_not_the_next_to_go() {
    let mut rig = Rig::new(3);
    let mut bytes = [0; CHUNK_BYTES];
    for n in 1..=3 {
        rig.store.write_chunk(key(n), &bytes).unwrap();
    }
    for n in [2, 3, 1] {
        assert!(rig.store.read_chunk(&key(n), &mut bytes).unwrap());
    }
    for (n, left) in [(4, [1, 3, 4]), (5, [1, 4, 5])] {
        rig.store.write_chunk(key(n), &bytes).unwrap();
        rig.check_resident(1..10, &left);
    }
}

#[test]
fn a_lookup_is_no_access() {
    let mut rig = Rig::new(2);
    rig.put(1, &[1]);
    rig.put(2, &[2]);
    for _ in 0..10 {
        rig.check_resident(1..3, &[1, 2]);
    }
    rig.put(3, &[3]);
    rig.check_resident(1..5, &[2, 3]);
}

#[test]
fn meeting_a_chunk_that_is_still_being_written_is_no_access() {
    let mut rig = Rig::new(2);
    (1..=3).for_each(|req| rig.announce(req));
    rig.write(1, &[1]);
    rig.write(2, &[1]);
    rig.run_all(&[]);
    rig.poll();
    rig.store.on_request_finished(RequestId(1));
    rig.put(3, &[3]);
    rig.store.on_request_finished(RequestId(3));
    rig.store.on_request_finished(RequestId(2));
    rig.put(4, &[4]);
    rig.check_resident(1..9, &[3, 4]);
}

fn arc_of_two() -> Rig {
    let policy = PolicyKind::Arc(GhostHits::T1);
    Rig::with_options(NvmeOptions { policy, ..NvmeOptions::new("unused", 2, CHUNK_BYTES as u64) })
}

#[test]
fn a_chunk_that_its_reader_wrote_anew_stays_a_reuse() {
    let mut rig = arc_of_two();
    rig.put(9, &[1]);
    rig.announce(1);
    rig.get(1, &[1], &[]);
    rig.put(9, &[2, 3]);
    rig.put(1, &[1]);
    rig.store.on_request_finished(RequestId(1));
    // Its request met it ready before, so it is in T2 and a scan does not push it out.
    for n in 10..13 {
        rig.put(n, &[n]);
    }
    rig.check_resident(1..30, &[1, 12]);
}

#[test]
fn what_a_running_request_meets_is_spared_before_it_finishes() {
    for meet in [Rig::put as fn(&mut Rig, u64, &[u64]), |rig, req, ns| rig.get(req, ns, &[])] {
        let mut rig = Rig::new(2);
        rig.put(1, &[1]);
        rig.put(2, &[2]);
        rig.announce(3);
        meet(&mut rig, 3, &[1]);
        rig.put(4, &[3]);
        rig.check_resident(1..9, &[1, 3]);
    }
}

#[test]
fn the_policy_is_told_of_chunks_that_come_back() {
    let mut rig = arc_of_two();
    for req in 1..=2 {
        rig.announce(req);
        rig.put(req, &[1]);
        rig.store.on_request_finished(RequestId(req));
    }
    // Two ghosts come back, which tells ARC to give room to what was met once.
    for n in [2, 3, 2, 3] {
        rig.put(9, &[n]);
    }
    rig.check_resident(1..9, &[2, 3]);
}

#[test]
fn the_policy_of_the_options_decides() {
    let mut rig = arc_of_two();
    for req in 1..=2 {
        rig.announce(req);
        rig.put(req, &[1]);
        rig.store.on_request_finished(RequestId(req));
    }
    // Chunk 1 was met by two requests; a scan of single chunks does not push it out, as it would under LRU.
    for n in 10..20 {
        rig.announce(n);
        rig.put(n, &[n]);
        rig.store.on_request_finished(RequestId(n));
    }
    rig.check_resident(1..30, &[1, 19]);
}
