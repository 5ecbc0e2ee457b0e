//! The engine: transfers that begin and end when the test says so, and are checked as they do.

use std::{fmt, time::Duration};

use crossbeam_channel::Sender;
use hashbrown::HashMap;
use kvo_core::{OffloadKey, SlotId};

use super::{
    disk::{Disk, Shared, lock},
    faults::{Kind, Plan},
};
use crate::{
    checksum::checksum,
    engine::{Action, Engine, Event, Fault, Op, OpDone, Stuck},
    slots::Tenant,
    worker::Worker,
};

/// A defect that is put in on purpose, to see that it is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plant {
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

/// Which way the bytes of a host slot go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hold {
    Reads,
    Writes,
}

/// The host memory as transfers see it: who holds which slot, and what is in it. What a write has written has a number,
/// by which the bytes are known again.
pub(crate) trait Host: Send {
    /// Holds a slot for a transfer that begins. Panics if somebody else has it.
    fn hold(&mut self, slot: SlotId, how: Hold);

    fn let_go(&mut self, slot: SlotId, how: Hold);

    fn bytes(&self, slot: SlotId) -> Vec<u8>;

    /// The number of what a write that begins is to write.
    fn version(&mut self, op: &Op) -> u64;

    /// A write has ended: its slot still has what it had.
    fn check_written(&self, op: &Op, version: u64);

    /// A read has ended well, of what a write had written.
    fn check_read(&mut self, op: &Op, version: u64);

    /// Whether these are the bytes of a version of a key.
    fn is_content(&self, key: &OffloadKey, version: u64, bytes: &[u8]) -> bool;
}

/// A transfer that has not ended.
#[derive(Debug)]
pub(crate) struct Pending {
    pub(crate) op: Op,
    pub(crate) is_running: bool,
    /// It does not end before this step; never, if there is none.
    pub(crate) not_before: Option<u64>,
    plan: Plan,
}

/// What was written under each generation of each key: by content, a version of chunk `n`.
pub(crate) type Versions = HashMap<(OffloadKey, u64), u64>;

/// The transfers, and what is known of those that have ended.
pub(crate) struct Transfers {
    pub(crate) pending: Vec<Pending>,
    pub(crate) versions: Versions,
    pub(crate) step: u64,
    is_stopped: bool,
    /// Whether the process has ended under the transfers.
    is_dead: bool,
    /// Transfers that went well and reads whose bytes were compared.
    pub(crate) tally: TransferTally,
    /// How the next transfer that begins goes, if that is not to be drawn.
    pub(crate) next_plan: Option<Plan>,
    pub(crate) host: Box<dyn Host>,
    disk: Shared<Disk>,
    worker: Worker,
    events: Sender<Event>,
    plant: Option<Plant>,
    last_generation: u64,
}

/// How the transfers of one life of a store have ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TransferTally {
    pub(crate) written: u64,
    pub(crate) read: u64,
    pub(crate) failed_writes: u64,
    pub(crate) failed_reads: u64,
}

pub(crate) fn direction(op: &Op) -> Hold {
    match op.action {
        Action::Write => Hold::Reads,
        Action::Read { .. } => Hold::Writes,
    }
}

impl Transfers {
    pub(crate) fn new(
        disk: Shared<Disk>,
        host: Box<dyn Host>,
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
            host,
            disk,
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
    pub(crate) fn begin(&mut self, place: usize) {
        let Pending { op, is_running, plan, .. } = &mut self.pending[place];
        *is_running = true;
        self.host.hold(op.host, direction(op));
        let forced = self.next_plan.take();
        *plan = forced.unwrap_or_else(|| lock(&self.disk).draw_plan(direction(op) == Hold::Reads));
        if direction(op) == Hold::Reads {
            let version = self.host.version(op);
            self.versions.insert((op.tenant.key, op.tenant.generation), version);
            if self.plant == Some(Plant::ReportedEarly) {
                let sum = checksum(&op.tenant.key, op.tenant.generation, &self.host.bytes(op.host));
                let done = OpDone { op: *op, result: Ok(sum) };
                let _ = self.events.send(Event::Moved(done));
            }
        }
    }

    /// Ends a transfer that has begun.
    pub(crate) fn end(&mut self, place: usize) {
        let Pending { op, is_running, plan, .. } = self.pending.swap_remove(place);
        assert!(is_running, "only what has begun can end");
        self.host.let_go(op.host, direction(&op));
        lock(&self.disk).set_plan(plan);
        let mut done = self.worker.run(op);
        lock(&self.disk).set_plan(Plan::good());
        assert!(
            !matches!(done.result, Err(Fault::Engine(_) | Fault::Ended(_) | Fault::Memory(_))),
            "{done:?}"
        );
        if let (Some(Plant::ChecksumIgnored), Err(Fault::Checksum { written, .. })) =
            (self.plant, &done.result)
        {
            done.result = Ok(*written);
        }
        match op.action {
            Action::Write => {
                let version = self.versions[&(op.tenant.key, op.tenant.generation)];
                self.host.check_written(&op, version);
            }
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
        let version = self.versions.get(&(key, generation));
        let version = *version.unwrap_or_else(|| panic!("nobody has written what {op:?} has read"));
        let bytes = self.host.bytes(op.host);
        assert!(
            self.host.is_content(&key, version, &bytes),
            "{op:?} has other bytes than version {version}: {:?}..",
            &bytes[..bytes.len().min(24)]
        );
        self.host.check_read(op, version);
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
    pub(crate) fn ready(&self, running: bool) -> impl Iterator<Item = usize> {
        let step = self.step;
        let is_ready = move |pending: &Pending| {
            pending.is_running == running
                && (!running || pending.not_before.is_some_and(|not_before| not_before <= step))
        };
        (0..).zip(&self.pending).filter(move |(_, pending)| is_ready(pending)).map(|(place, _)| place)
    }

    /// The process ends. Of the writes that have begun, any sectors may be there.
    pub(crate) fn be_killed(&mut self) {
        self.is_dead = true;
        for Pending { op, .. } in self.pending.iter().filter(|pending| pending.is_running) {
            if direction(op) == Hold::Reads {
                lock(&self.disk).write_in_part(op.slot, &self.host.bytes(op.host));
            }
        }
    }

    /// Takes over what must be known of the transfers of earlier stores.
    pub(crate) fn inherit(&mut self, other: &mut Self) {
        self.versions = std::mem::take(&mut other.versions);
        (self.last_generation, self.step) = (other.last_generation, other.step);
    }

    /// Everything that was stuck or slow may go on.
    pub(crate) fn unstick(&mut self) {
        for pending in &mut self.pending {
            pending.not_before = Some(0);
        }
    }

    /// Whether nothing is left but what is stuck.
    pub(crate) fn is_idle(&self) -> bool {
        self.pending.iter().all(|pending| pending.is_running && pending.not_before.is_none())
    }

    /// Ends all that can end, in order of submission; returns how many are stuck.
    pub(crate) fn finish(&mut self) -> usize {
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
pub(crate) struct SimEngine(pub(crate) Shared<Transfers>);

impl fmt::Debug for Transfers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transfers").field("pending", &self.pending).finish_non_exhaustive()
    }
}

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
