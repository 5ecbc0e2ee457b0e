//! Ops that were taken and are to be reported, each exactly once.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use crossbeam_channel::Sender;

use crate::engine::{Event, Fault, Op, OpDone};

/// Where ops are reported to, and how many are still to be.
#[derive(Debug)]
pub(super) struct Reports {
    events: Sender<Event>,
    open: AtomicUsize,
}

impl Reports {
    pub(super) fn new(events: Sender<Event>) -> Arc<Self> {
        Arc::new(Self { events, open: AtomicUsize::new(0) })
    }

    /// Ops that were taken and not reported yet.
    pub(super) fn num_open(&self) -> usize {
        self.open.load(Ordering::Acquire)
    }
}

/// An op that was taken: whoever holds this owes the report. One that is dropped, because a thread panicked or ended
/// early, reports a fault.
#[derive(Debug)]
pub(super) struct Ticket {
    op: Op,
    /// `None` once it is reported.
    reports: Option<Arc<Reports>>,
}

impl Ticket {
    pub(super) fn new(op: Op, reports: &Arc<Reports>) -> Self {
        reports.open.fetch_add(1, Ordering::Relaxed);
        Self { op, reports: Some(Arc::clone(reports)) }
    }

    pub(super) fn op(&self) -> &Op {
        &self.op
    }

    /// Reports what became of the op. Its claim on the host memory has been given back before.
    pub(super) fn report(mut self, result: Result<u64, Fault>) {
        self.send(result);
    }

    fn send(&mut self, result: Result<u64, Fault>) {
        if let Some(reports) = self.reports.take() {
            // A store that is being dropped still receives; if not, nobody is left who would want to know.
            let _ = reports.events.send(Event::Moved(OpDone { op: self.op, result }));
            reports.open.fetch_sub(1, Ordering::Release);
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.send(Err(Fault::Engine("the I/O thread gave up")));
    }
}
