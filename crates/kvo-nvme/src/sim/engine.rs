//! The engine: transfers that begin and end when the test says so, and are checked as they do.

use std::{sync::Arc, time::Duration};

use crossbeam_channel::Sender;
use hashbrown::HashMap;
use kvo_core::{BlockHash, GroupIdx, HostMemory, OffloadKey};

use super::{
    disk::{Disk, Shared, lock},
    faults::{Kind, Plan},
    memory::{Hold, SimMemory, content},
};
use crate::{
    checksum::checksum,
    engine::{Action, Engine, Event, Fault, Op, OpDone, Stuck},
    slots::Tenant,
    worker::Worker,
};

/// A defect that is put in on purpose, to see that it is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Plant {
    /// A wrong checksum is taken for a right one.
    ChecksumIgnored,
    /// A write is reported when it begins.
    ReportedEarly,
    /// Of two records of a key the older one is recovered.
    OlderRecovered,
    /// A sync does nothing.
    SyncsSkipped,
    /// A durable store that is opened takes for safe what a killed one had only told the system.
    OpenedUnsynced,
}

/// A transfer that has not ended.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) op: Op,
    pub(super) is_running: bool,
    /// It does not end before this step; never, if there is none.
    pub(super) not_before: Option<u64>,
    plan: Plan,
}

/// What was written under each generation of each key: by content, a version of chunk `n`.
pub(super) type Versions = HashMap<(OffloadKey, u64), u64>;

/// The transfers, and what is known of those that have ended.
pub(super) struct Transfers {
    pub(super) pending: Vec<Pending>,
    pub(super) versions: Versions,
    pub(super) step: u64,
    is_stopped: bool,
    /// Whether the process has ended under the transfers.
    is_dead: bool,
    /// Transfers that went well and reads whose bytes were compared.
    pub(super) tally: TransferTally,
    /// How the next transfer that begins goes, if that is not to be drawn.
    pub(super) next_plan: Option<Plan>,
    disk: Shared<Disk>,
    memory: Arc<SimMemory>,
    worker: Worker,
    events: Sender<Event>,
    plant: Option<Plant>,
    last_generation: u64,
}

/// How the transfers of one life of a store have ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct TransferTally {
    pub(super) written: u64,
    pub(super) read: u64,
    pub(super) failed_writes: u64,
    pub(super) failed_reads: u64,
}

pub(super) fn direction(op: &Op) -> Hold {
    match op.action {
        Action::Write => Hold::Reads,
        Action::Read { .. } => Hold::Writes,
    }
}

pub(super) fn key(n: u64) -> OffloadKey {
    OffloadKey::new(BlockHash::from_u64(n), GroupIdx(0))
}

/// The number of a chunk.
pub(super) fn number(key: &OffloadKey) -> u64 {
    u64::from_be_bytes(key.hash().0[24..].try_into().expect("eight of 32"))
}

impl Transfers {
    pub(super) fn new(
        disk: Shared<Disk>,
        memory: Arc<SimMemory>,
        worker: Worker,
        events: Sender<Event>,
        plant: Option<Plant>,
    ) -> Self {
        Self {
            pending: Vec::new(),
            versions: HashMap::new(),
            step: 0,
            is_stopped: false,
            is_dead: false,
            tally: TransferTally::default(),
            next_plan: None,
            disk,
            memory,
            worker,
            events,
            plant,
            last_generation: 0,
        }
    }

    fn take(&mut self, op: Op) {
        for other in &self.pending {
            let both_read = direction(&op) == Hold::Writes && direction(&other.op) == Hold::Writes;
            assert!(
                op.slot != other.op.slot || both_read && op.tenant == other.op.tenant,
                "{op:?} was begun in the slot of {:?}, which has not ended",
                other.op
            );
        }
        if direction(&op) == Hold::Reads {
            let Tenant { generation, .. } = op.tenant;
            assert!(generation > self.last_generation, "a generation comes again: {op:?}");
            self.last_generation = generation;
        }
        let mut disk = lock(&self.disk);
        let not_before = match () {
            () if disk.strikes(Kind::Stuck) => None,
            () if disk.strikes(Kind::Slow) => Some(self.step + disk.rng.below(80)),
            () => Some(0),
        };
        self.pending.push(Pending { op, is_running: false, not_before, plan: Plan::good() });
    }

    /// Begins a transfer: from now on the device may be at its bytes at any time.
    pub(super) fn begin(&mut self, place: usize) {
        let Pending { op, is_running, plan, .. } = &mut self.pending[place];
        *is_running = true;
        self.memory.hold(op.host, direction(op));
        let forced = self.next_plan.take();
        *plan = forced.unwrap_or_else(|| lock(&self.disk).draw_plan(direction(op) == Hold::Reads));
        if direction(op) == Hold::Reads {
            let (n, version) = self.memory.label(op.host).expect("a write is from a slot with a chunk in it");
            assert_eq!(n, number(&op.tenant.key), "another chunk is in the slot of {op:?}");
            self.versions.insert((op.tenant.key, op.tenant.generation), version);
            if self.plant == Some(Plant::ReportedEarly) {
                let sum = checksum(&op.tenant.key, op.tenant.generation, &self.memory.bytes(op.host));
                let done = OpDone { op: *op, result: Ok(sum) };
                let _ = self.events.send(Event::Moved(done));
            }
        }
    }

    /// Ends a transfer that has begun.
    pub(super) fn end(&mut self, place: usize) {
        let Pending { op, is_running, plan, .. } = self.pending.swap_remove(place);
        assert!(is_running, "only what has begun can end");
        self.memory.let_go(op.host, direction(&op));
        let before = self.memory.label(op.host);
        lock(&self.disk).set_plan(plan);
        let mut done = self.worker.run(op);
        lock(&self.disk).set_plan(Plan::good());
        assert!(!matches!(done.result, Err(Fault::Engine(_) | Fault::Memory(_))), "{done:?}");
        if let (Some(Plant::ChecksumIgnored), Err(Fault::Checksum { written, .. })) =
            (self.plant, &done.result)
        {
            done.result = Ok(*written);
        }
        match op.action {
            Action::Write => assert_eq!(self.memory.label(op.host), before),
            Action::Read { .. } if done.result.is_ok() => self.check_read(&op),
            Action::Read { .. } => {}
        }
        self.count(&done);
        if self.plant != Some(Plant::ReportedEarly) || direction(&op) == Hold::Writes {
            // A store that is gone does not want to know.
            let _ = self.events.send(Event::Moved(done));
        }
    }

    fn check_read(&mut self, op: &Op) {
        let Tenant { key, generation } = op.tenant;
        let n = number(&key);
        let version = self.versions.get(&(key, generation));
        let version = *version.unwrap_or_else(|| panic!("nobody has written what {op:?} has read"));
        let bytes = self.memory.bytes(op.host);
        assert!(
            bytes == content(n, version, self.memory.slot_bytes()),
            "{op:?} has other bytes than version {version}: {:?}..",
            &bytes[..bytes.len().min(24)]
        );
        self.memory.arrived(op.host, n, version);
    }

    fn count(&mut self, done: &OpDone) {
        let tally = &mut self.tally;
        match (&done.result, done.op.action) {
            (Ok(_), Action::Write) => tally.written += 1,
            (Ok(_), Action::Read { .. }) => tally.read += 1,
            (Err(_), Action::Write) => tally.failed_writes += 1,
            (Err(_), Action::Read { .. }) => tally.failed_reads += 1,
        }
    }

    /// Places of the transfers that have not begun, or those of the running ones that may end.
    pub(super) fn ready(&self, running: bool) -> impl Iterator<Item = usize> {
        let step = self.step;
        let is_ready = move |pending: &Pending| {
            pending.is_running == running
                && (!running || pending.not_before.is_some_and(|not_before| not_before <= step))
        };
        (0..).zip(&self.pending).filter(move |(_, pending)| is_ready(pending)).map(|(place, _)| place)
    }

    /// The process ends. Of the writes that have begun, any sectors may be there.
    pub(super) fn be_killed(&mut self) {
        self.is_dead = true;
        for Pending { op, .. } in self.pending.iter().filter(|pending| pending.is_running) {
            if direction(op) == Hold::Reads {
                lock(&self.disk).write_in_part(op.slot, &self.memory.bytes(op.host));
            }
        }
    }

    /// Takes over what must be known of the transfers of earlier stores.
    pub(super) fn inherit(&mut self, other: &mut Self) {
        self.versions = std::mem::take(&mut other.versions);
        (self.last_generation, self.step) = (other.last_generation, other.step);
    }

    /// Everything that was stuck or slow may go on.
    pub(super) fn unstick(&mut self) {
        for pending in &mut self.pending {
            pending.not_before = Some(0);
        }
    }

    /// Whether nothing is left but what is stuck.
    pub(super) fn is_idle(&self) -> bool {
        self.pending.iter().all(|pending| pending.is_running && pending.not_before.is_none())
    }

    /// Ends all that can end, in order of submission; returns how many are stuck.
    pub(super) fn finish(&mut self) -> usize {
        let mut place = 0;
        while place < self.pending.len() {
            if !self.pending[place].is_running {
                self.begin(place);
            }
            if self.pending[place].not_before.is_some() {
                self.end(place);
            } else {
                place += 1;
            }
        }
        place
    }
}

/// The store's end of [`Transfers`].
pub(super) struct SimEngine(pub(super) Shared<Transfers>);

impl Engine for SimEngine {
    fn submit(&mut self, op: Op) -> Result<(), Op> {
        let mut transfers = lock(&self.0);
        if transfers.is_stopped {
            return Err(op);
        }
        transfers.take(op);
        Ok(())
    }

    fn stop(&mut self, _: Duration) -> Result<(), Stuck> {
        let mut transfers = lock(&self.0);
        transfers.is_stopped = true;
        if transfers.is_dead || std::thread::panicking() {
            return Err(Stuck(transfers.pending.len()));
        }
        match transfers.finish() {
            0 => Ok(()),
            stuck => Err(Stuck(stuck)),
        }
    }
}
