//! Ops that were taken and are to be reported, each exactly once.

use std::sync::Arc;

use crossbeam_channel::Sender;

use crate::{
    engine::{Event, Fault, Op, OpDone},
    sync::{AtomicUsize, Ordering},
};

/// How many ops were taken and not reported yet. Whoever finds so many finds the reports of all others where they were
/// put before.
#[derive(Debug, Default)]
struct Open(AtomicUsize);

impl Open {
    fn taken(&self) {
        // Whoever reports it has it from whoever took it.
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn reported(&self) {
        self.0.fetch_sub(1, Ordering::Release);
    }

    fn count(&self) -> usize {
        self.0.load(Ordering::Acquire)
    }
}

/// Where ops are reported to, and how many are still to be.
#[derive(Debug)]
pub(super) struct Reports {
    events: Sender<Event>,
    open: Open,
}

impl Reports {
    pub(super) fn new(events: Sender<Event>) -> Arc<Self> {
        Arc::new(Self { events, open: Open::default() })
    }

    /// Ops that were taken and not reported yet.
    pub(super) fn num_open(&self) -> usize {
        self.open.count()
    }
}

/// An op that was taken: whoever holds this owes the report. One that is dropped, because a thread panicked or ended
/// early, reports that it has.
#[derive(Debug)]
pub(super) struct Ticket {
    op: Op,
    /// `None` once it is reported.
    reports: Option<Arc<Reports>>,
}

impl Ticket {
    pub(super) fn new(op: Op, reports: &Arc<Reports>) -> Self {
        reports.open.taken();
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
            reports.open.reported();
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.send(Err(Fault::Ended("the I/O thread has ended")));
    }
}

#[cfg(all(test, kvo_loom))]
mod interleavings {
    use loom::{
        sync::{
            Arc,
            atomic::{AtomicUsize, Ordering},
        },
        thread,
    };

    use super::Open;

    /// Threads report an op each while the store asks how many are open.
    fn check(num_ops: usize) {
        loom::model(move || {
            let (open, channel) = (Arc::new(Open::default()), Arc::new(AtomicUsize::new(0)));
            (0..num_ops).for_each(|_| open.taken());
            let threads: Vec<_> = (0..num_ops)
                .map(|_| {
                    let (open, channel) = (open.clone(), channel.clone());
                    thread::spawn(move || {
                        channel.fetch_add(1, Ordering::Relaxed);
                        open.reported();
                    })
                })
                .collect();
            let left = open.count();
            let reported = channel.load(Ordering::Relaxed);
            assert!(
                reported + left >= num_ops,
                "{left} of {num_ops} are open, and {reported} reports are there"
            );
            threads.into_iter().for_each(|thread| thread.join().unwrap());
            assert_eq!((open.count(), channel.load(Ordering::Relaxed)), (0, num_ops));
        });
    }

    #[test]
    fn an_op_that_is_not_open_has_been_reported() {
        check(1);
        check(2);
    }
}
