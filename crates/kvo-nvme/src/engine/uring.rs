//! One `io_uring` a device, each on a thread of its own, and threads for the checksums of all devices.
//!
//! ```text
//!   submit ── write ──▶ device's thread ──▶ checksum threads ──▶ device's thread ──▶ event
//!     └────── read ───▶ device's thread ──▶ checksum threads ──▶ event
//! ```
//!
//! A device's thread has writes prepared only a few ahead of the kernel; the others wait with it, and claim nothing. So
//! a device that is slow or hangs takes neither the checksum threads nor the host memory from the others.
//!
//! When intake stops, each device is told so; it ends what it has, waits for what is with the checksum threads, and lets
//! go of them. They end with the last device.

mod claims;
mod device;
mod doorbell;
mod probe;
#[expect(unsafe_code, reason = "it hands addresses of the host memory to the kernel")]
mod ring;
mod schedule;
mod sums;
mod ticket;

use std::{
    fs::File,
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    thread::{self, JoinHandle},
    time::Duration,
};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};
use kvo_core::StableMemory;

use self::{
    claims::Claims,
    device::{Device, Inbox, Intake, Parts, Work},
    doorbell::Doorbell,
    schedule::Limits,
    sums::{Sums, ToSums},
    ticket::{Reports, Ticket},
};
use super::{Action, Engine, Event, Op, PATIENCE, Stuck};
use crate::{EngineStats, NvmeOptions, OpenError, options::Geometry, stats::EngineCounters};

/// The threads, and the ways to them.
pub(crate) struct Uring {
    /// Empty once intake has stopped.
    devices: Vec<Intake>,
    reports: Arc<Reports>,
    geometry: Geometry,
    counters: Arc<EngineCounters>,
    threads: Vec<JoinHandle<()>>,
    /// Ends, without a message, when the last thread has.
    ended: Receiver<()>,
    has_registered_buffers: bool,
}

/// What a device's thread says once its ring is up, or not.
type Outcome = Result<bool, (&'static str, io::Error)>;

impl Uring {
    /// Starts a ring for each of `files`, tries each of them, and returns when all of them work.
    ///
    /// # Errors
    /// [`OpenError::Uring`] if one does not, [`OpenError::Thread`]; then no thread is left.
    pub(crate) fn start(
        options: &NvmeOptions,
        geometry: Geometry,
        files: &[Arc<File>],
        memory: &Arc<dyn StableMemory>,
        events: &Sender<Event>,
    ) -> Result<Self, OpenError> {
        let (alive, ended) = crossbeam_channel::bounded(0);
        let mut uring = Self {
            devices: Vec::with_capacity(files.len()),
            reports: Reports::new(events.clone()),
            geometry,
            counters: Arc::default(),
            threads: Vec::new(),
            ended,
            has_registered_buffers: true,
        };
        let claims = Claims { memory: Arc::clone(memory), geometry, kind: options.checksum };
        match uring.start_threads(options, files, &claims, alive) {
            Ok(()) => Ok(uring),
            Err(error) => {
                // They have nothing to end but themselves.
                let _ = uring.stop(PATIENCE);
                Err(error)
            }
        }
    }

    fn start_threads(
        &mut self,
        options: &NvmeOptions,
        files: &[Arc<File>],
        claims: &Claims,
        alive: Sender<()>,
    ) -> Result<(), OpenError> {
        let (to_sums, sums) = Sums::new(claims.clone());
        let to_sums = (!options.checksum.is_off()).then_some(to_sums);
        self.start_devices(options, files, claims, to_sums.as_ref(), &alive)?;
        if to_sums.is_some() {
            for index in 0..options.checksum_threads {
                let sums = sums.clone();
                self.spawn(&format!("kvo-nvme-sum-{index}"), &alive, move || sums.run())?;
            }
        }
        // Only threads keep it now.
        drop(alive);
        Ok(())
    }

    /// Whether the kernel knows the host memory beforehand.
    pub(crate) fn has_registered_buffers(&self) -> bool {
        self.has_registered_buffers
    }

    fn start_devices(
        &mut self,
        options: &NvmeOptions,
        files: &[Arc<File>],
        claims: &Claims,
        sums: Option<&ToSums>,
        alive: &Sender<()>,
    ) -> Result<(), OpenError> {
        let limits = Limits::new(
            self.geometry.chunk_bytes,
            options.reads_inflight_max,
            options.write_bytes_max,
            options.write_bytes_while_reading_max,
        );
        let mut outcomes = Vec::with_capacity(files.len());
        for (index, file) in files.iter().enumerate() {
            let doorbell = Doorbell::new().map_err(|source| refused("make an eventfd", source))?;
            let doorbell = Arc::new(doorbell);
            let (sender, inbox) = crossbeam_channel::unbounded();
            let home = Inbox::new(sender, Arc::clone(&doorbell));
            self.devices.push(Intake(home.clone()));
            let parts = Parts {
                file: Arc::clone(file),
                doorbell,
                inbox,
                home,
                sums: sums.cloned(),
                claims: claims.clone(),
                limits,
                counters: Arc::clone(&self.counters),
            };
            let (tell, outcome) = crossbeam_channel::bounded(1);
            outcomes.push(outcome);
            self.spawn(&format!("kvo-nvme-ring-{index}"), alive, move || run_device(index, parts, &tell))?;
        }
        for outcome in outcomes {
            let outcome: Outcome =
                outcome.recv().unwrap_or(Err(("set up a ring", io::ErrorKind::Other.into())));
            self.has_registered_buffers &= outcome.map_err(|(step, source)| refused(step, source))?;
        }
        Ok(())
    }

    fn spawn(
        &mut self,
        name: &str,
        alive: &Sender<()>,
        work: impl FnOnce() + Send + 'static,
    ) -> Result<(), OpenError> {
        let (index, alive) = (self.threads.len(), alive.clone());
        let thread = thread::Builder::new().name(name.to_owned()).spawn(move || {
            if catch_unwind(AssertUnwindSafe(work)).is_err() {
                tracing::error!(name = thread::current().name(), "a thread panicked: what it had fails");
            }
            drop(alive);
        });
        let thread = thread.map_err(|source| OpenError::Thread { index, num_threads: index + 1, source })?;
        self.threads.push(thread);
        Ok(())
    }

    fn take(&self, ticket: Ticket) {
        let op = *ticket.op();
        let Intake(device) = &self.devices[self.geometry.place(op.slot).device as usize];
        device.put(match op.action {
            Action::Read { checksum } => Work::Read { ticket, written: checksum },
            Action::Write => Work::Write(ticket),
        });
    }
}

impl Engine for Uring {
    fn submit(&mut self, op: Op) -> Result<(), Op> {
        if self.devices.is_empty() {
            return Err(op);
        }
        self.take(Ticket::new(op, &self.reports));
        Ok(())
    }

    fn stop(&mut self, timeout: Duration) -> Result<(), Stuck> {
        self.devices.clear();
        match self.ended.recv_timeout(timeout) {
            Ok(()) | Err(RecvTimeoutError::Disconnected) => {
                for thread in self.threads.drain(..) {
                    // A panic of a thread was logged, and reported by the ops that it had.
                    let _ = thread.join();
                }
                // Ops whose thread could not wait for its ring any more.
                match self.reports.num_open() {
                    0 => Ok(()),
                    open => Err(Stuck(open)),
                }
            }
            Err(RecvTimeoutError::Timeout) => {
                let open = self.reports.num_open();
                tracing::error!(
                    open,
                    ?timeout,
                    "io_uring has not ended; its threads and memory are left to it"
                );
                if open == 0 { Ok(()) } else { Err(Stuck(open)) }
            }
        }
    }

    fn stats(&self) -> EngineStats {
        self.counters.snapshot()
    }

    #[cfg(test)]
    fn break_device(&self, device: usize) {
        self.devices[device].0.put(Work::Panic);
    }
}

impl Drop for Uring {
    /// For one that was not stopped: of a store that could not be opened.
    fn drop(&mut self) {
        if !self.devices.is_empty() {
            let _ = self.stop(PATIENCE);
        }
    }
}

/// The whole life of a device's thread.
fn run_device(index: usize, parts: Parts, tell: &Sender<Outcome>) {
    match Device::new(parts) {
        Ok(device) => {
            let registered = device.ring().has_registered_buffers();
            tracing::debug!(device = index, setup = device.ring().setup(), registered, "an io_uring is up");
            let _ = tell.send(Ok(registered));
            device.run();
        }
        Err(refusal) => {
            let _ = tell.send(Err(refusal));
        }
    }
}

fn refused(step: &'static str, source: io::Error) -> OpenError {
    OpenError::Uring { step, source }
}
