//! What overtakes what.

use kvo_core::TransferClass::{self, Demand, Expedited, Prefetch, Store};

use super::rig::{Ground, SLOT};
use crate::bed::BedOptions;

pub(super) fn an_urgent_load_overtakes_those_that_are_queued(ground: &Ground<'_>) {
    const WINDOW: usize = 2;
    let window_bytes = WINDOW as u64 * SLOT;
    let mut rig = ground.rig_with(&BedOptions { window_bytes, quantum_bytes: SLOT, ..ground.options() });
    let hold = rig.hold();
    let behind = rig.fence();
    let mut start = |class, slots: std::ops::Range<u32>| -> Vec<_> {
        slots.map(|slot| rig.start(class, u64::from(slot), slot, behind)).collect()
    };
    let (prefetches, expedited, demand) =
        (start(Prefetch, 0..6), start(Expedited, 6..7), start(Demand, 7..8));
    rig.nothing_ends();
    hold.open();
    let order = rig.succeed(&[&prefetches[..], &expedited, &demand].concat());
    let place = |ticket| order.iter().position(|ended| *ended == ticket).expect("it has ended");
    let what = format!("{order:?}, of which {:?} and {:?} are urgent", demand[0], expedited[0]);
    assert!(place(demand[0]) <= WINDOW, "no more than a window goes before a demand load: {what}");
    assert!(place(expedited[0]) <= WINDOW + 1, "nor before one that is next: {what}");
}

pub(super) fn loads_of_a_class_start_in_the_order_of_submission(ground: &Ground<'_>) {
    for class in [Demand, Expedited, Prefetch, Store] {
        let mut rig = ground.rig();
        let passed = rig.fence();
        let hold = rig.hold();
        let behind = rig.fence();
        let first = rig.start(class, 0, 0, behind);
        let second = rig.start(class, 1, 1, passed);
        rig.nothing_ends();
        hold.open();
        assert_eq!(rig.succeed(&[first, second]), [first, second], "{class:?}");
    }
}

pub(super) fn stores_and_loads_do_not_wait_for_one_another(ground: &Ground<'_>) {
    let pairs = [(Store, Demand), (Store, Expedited), (Store, Prefetch)];
    for (held, free) in pairs.into_iter().flat_map(|(one, other)| [(one, other), (other, one)]) {
        check_free(ground, held, free);
    }
}

pub(super) fn a_class_that_waits_holds_up_none_that_is_more_urgent(ground: &Ground<'_>) {
    for (held, free) in [(Prefetch, Expedited), (Prefetch, Demand), (Expedited, Demand)] {
        check_free(ground, held, free);
    }
}

/// One of class `free` ends though one of class `held` was submitted before and waits.
fn check_free(ground: &Ground<'_>, held: TransferClass, free: TransferClass) {
    let mut rig = ground.rig();
    let passed = rig.fence();
    let hold = rig.hold();
    let behind = rig.fence();
    let waits = rig.start(held, 0, 0, behind);
    let goes = rig.start(free, 1, 1, passed);
    let what = format!("{free:?} waits for {held:?}");
    assert_eq!(rig.succeed(&[goes]), [goes], "{what}");
    rig.nothing_ends();
    hold.open();
    rig.succeed(&[waits]);
}
