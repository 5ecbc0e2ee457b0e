//! A device that dies takes its transfers with it, and nothing else.

mod support;

use std::sync::{
    Arc, Mutex,
    mpsc::{Receiver, Sender, channel},
};

use kvo_core::{DeviceBackend, DeviceHealth, HostMemory, OffloadManager, SlotAccessError, SlotId};
use kvo_policies::Lru;
use support::{
    Completion, Engine, LONG, NotLoaded, Offered, OverNvme, Setup, check_resident, keys, prompt, push_down,
};

/// Host memory from outside: once, it stops in the middle of a copy, says so, and goes on when it may.
struct Interrupted {
    memory: Arc<dyn HostMemory>,
    stop: Mutex<Option<(Sender<()>, Receiver<()>)>>,
}

impl HostMemory for Interrupted {
    fn num_slots(&self) -> u32 {
        self.memory.num_slots()
    }

    fn slot_bytes(&self) -> usize {
        self.memory.slot_bytes()
    }

    fn with_read(&self, slot: SlotId, read: &mut dyn FnMut(&[u8])) -> Result<(), SlotAccessError> {
        self.memory.with_read(slot, read)
    }

    fn with_write(&self, slot: SlotId, write: &mut dyn FnMut(&mut [u8])) -> Result<(), SlotAccessError> {
        self.memory.with_write(slot, &mut |bytes| {
            write(bytes);
            if let Some((stopped, go_on)) = self.stop.lock().unwrap().take() {
                stopped.send(()).unwrap();
                let _ = go_on.recv();
            }
        })
    }
}

#[test]
fn a_device_that_dies_fails_its_jobs_and_the_tiers_live_on() {
    let OverNvme { mut engine, nvme, .. } = OverNvme::new(Setup::new(8));
    let [below, resident, lost] = [(1, 4), (2, 3), (3, 3)].map(|(n, len)| prompt(n, len));
    engine.serve(&below, 0);
    push_down(&mut engine, &keys(&below, 0), &[&prompt(4, 4), &prompt(5, 4)]);
    engine.serve(&resident, 0);

    // A store and a load wait for the compute when the device dies.
    let gate = engine.hold_compute();
    let mut loads = engine.begin(&resident);
    assert_eq!(engine.look(&mut loads), (3, false));
    engine.load(&mut loads, 3, 1).unwrap();
    let mut stores = engine.begin(&lost);
    engine.compute(&mut stores, 0..3);
    assert!(matches!(engine.offer(&mut stores, 0..2), Offered::Running(_)));
    engine.device.fail(700);
    drop(gate);
    let completions: Vec<Completion> = engine.complete_all();
    assert_eq!(completions.len(), 2, "each transfer fails once");
    assert!(completions.iter().all(|completion| !completion.arrived && completion.void.is_none()));
    assert_eq!(engine.device.health(), DeviceHealth::Dead { code: 700 });
    check_resident(&engine, &keys(&resident, 0), true);
    check_resident(&engine, &keys(&lost, 0), false);
    assert_eq!((engine.manager().counts().pinned, engine.manager().counts().pending), (0, 0));

    // It takes no more, and no job stays open for that.
    assert_eq!(engine.offer(&mut stores, 2..3), Offered::NotTaken);
    assert_eq!(engine.load(&mut loads, 3, 0), Err(NotLoaded::NotTaken));
    engine.finish(&mut stores);
    // Promotions go on without a device.
    let mut promotes = engine.begin(&below);
    assert_eq!(engine.look_until_decided(&mut promotes), 4);
    engine.finish(&mut promotes);
    engine.finish(&mut loads);
    engine.settle();
    assert_eq!(nvme.finishes(stores.id()), 1);
    let stats = engine.manager().stats();
    assert_eq!((stats.primary.counts.pinned, stats.primary.counts.pending), (0, 0));
    assert_eq!((stats.open_requests, stats.primary.open_jobs), (0, 0));

    // Another device goes on where the dead one stopped.
    engine.replace_device();
    engine.check_quiet();
    assert_eq!(engine.serve(&below, 1), 4);
    assert_eq!(engine.serve(&lost, 0), 0, "what was never stored is recomputed");
    assert_eq!(engine.serve(&resident, 0), 3);
    assert_eq!(engine.serve(&lost, 1), 3);
}

#[test]
fn cascades_end_although_the_device_is_dead() {
    let OverNvme { mut engine, nvme, .. } = OverNvme::new(Setup::new(4));
    nvme.look().script.hold_jobs = true;
    let chunks = prompt(1, 4);
    let mut req = engine.begin(&chunks);
    engine.compute(&mut req, 0..4);
    assert!(matches!(engine.offer(&mut req, 0..4), Offered::Running(_)));
    engine.complete_all();
    engine.finish(&mut req);
    engine.device.fail(719);
    assert_eq!(engine.manager().counts().pinned, 4);
    nvme.open();
    engine.settle();
    assert_eq!(engine.manager().counts().pinned, 0);
    engine.replace_device();
    push_down(&mut engine, &keys(&chunks, 0), &[&prompt(2, 4)]);
    assert_eq!(engine.serve(&chunks, 1), 4);
}

#[test]
fn a_copy_that_ends_after_its_device_has_died_counts_as_failed() {
    let setup = Setup::new(4);
    let (stopped, when_stopped) = channel();
    let (go_on, may_go_on) = channel();
    let stop = Mutex::new(Some((stopped, may_go_on)));
    let region: Arc<dyn HostMemory> = Arc::new(Interrupted { memory: setup.region(), stop });
    let dir = tempfile::tempdir().unwrap();
    let nvme = setup.nvme(dir.path(), 16, &region);
    let mut engine = Engine::new(setup, region, Box::new(Lru::new(4)), vec![]);
    engine.add_tier(nvme);

    let chunks = prompt(1, 1);
    let mut req = engine.begin(&chunks);
    engine.compute(&mut req, 0..1);
    assert!(matches!(engine.offer(&mut req, 0..1), Offered::Running(_)));
    when_stopped.recv_timeout(LONG).expect("the copy has begun");
    engine.device.fail(700);
    drop(go_on);
    assert!(!engine.complete_all()[0].arrived, "nobody knows what a dead device has copied");
    assert_eq!(engine.manager().counts().free, 4);
    engine.finish(&mut req);
    engine.settle();
    engine.replace_device();
    assert_eq!(engine.serve(&chunks, 0), 0);
    assert_eq!(engine.serve(&chunks, 0), 1);
}
