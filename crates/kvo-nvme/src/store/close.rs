//! The end of a store.

use std::time::Duration;

use rustix::fs::{FlockOperation, flock};

use super::{Life, NvmeStore};
use crate::CloseError;

/// How long a store that is dropped waits for what is under way.
const PATIENCE: Duration = Duration::from_mins(1);

impl NvmeStore {
    /// Ends the store: waits up to `timeout` for what is under way, and writes down which chunks there are and in
    /// which order they would have been evicted, which a device that hangs has two minutes for. Jobs that were not
    /// polled by then never will be.
    ///
    /// Dropping the store does the same, with a minute of patience, and can only log what went wrong.
    ///
    /// # Errors
    /// [`CloseError`]: then the next opening finds the store as after a crash, which costs the order and perhaps some
    /// chunks. Nothing is unmapped under I/O that has not ended: that memory stays for as long as the process lives.
    pub fn close(mut self, timeout: Duration) -> Result<(), CloseError> {
        self.end(timeout)
    }

    /// In this order: no job is taken, the engine ends what it has and its threads, the journal writes what is left and
    /// ends, the locks go. What cannot be waited for any more is reported as failed, and keeps its memory.
    pub(super) fn end(&mut self, timeout: Duration) -> Result<(), CloseError> {
        if self.life == Life::Ended {
            return Ok(());
        }
        self.life = Life::Closed;
        let stopped = self.engine.stop(timeout);
        self.take_in_all();
        if let Err(stuck) = stopped {
            self.give_up_all();
            return Err(CloseError::Stuck { transfers: stuck.0, waited: timeout });
        }
        self.life = Life::Ended;
        let order = self.catalog.take_eviction_order();
        let closed = self.journal.close(&order, self.written_in_life());
        // In a durable store chunks were still waiting for their records.
        self.take_in_all();
        self.give_up_all();
        // The kernel lets go of a ring, and with it of the files, when it finds the time.
        for file in &self.files {
            let _ = flock(&**file, FlockOperation::Unlock);
        }
        closed.map_err(CloseError::Index)
    }

    fn take_in_all(&mut self) {
        while let Ok(event) = self.events.try_recv() {
            self.take_in(event);
        }
    }
}

impl Drop for NvmeStore {
    fn drop(&mut self) {
        if self.life == Life::Open
            && let Err(error) = self.end(PATIENCE)
        {
            tracing::error!(tier = &*self.name, %error, "dropped, and not closed");
        }
    }
}
