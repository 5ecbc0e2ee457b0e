//! Chunks forgotten: those of memory, or whatever was computed by weights that are no more; and the end of it all.

use std::time::Duration;

use kvo_core::{LookupResult, Medium, OffloadManager, RequestId, ShutDown};

use super::{Connector, Pause};
use crate::{ConnectorError, request::Data};

/// What a reset has found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Flush {
    /// The epoch from now on.
    pub epoch: u64,
    /// Tiers all of whose chunks are dropped.
    pub tiers_cleared: Vec<String>,
    /// Tiers that keep what they have. In the same epoch it is found there; of another epoch it is not, until that one
    /// comes again, and goes as other chunks take its room.
    pub tiers_kept: Vec<String>,
    /// Requests with KV data of former weights, after a [change](Connector::reset_to) of those. They may go on, and load and
    /// store nothing before they were preempted.
    pub outdated: Vec<RequestId>,
    /// Requests whose loads are void: nothing of those has come, and their copies may write blocks until they are over. Each
    /// is to compute, or to match again when all copies are over, behind the tokens that it has still, or is
    /// [preempted](crate::StepInput::preempted). One that says that it has more is
    /// [refused](ConnectorError::Spoilt).
    pub loads_void: Vec<VoidLoad>,
    /// Copies that are still under way. Nothing is loaded or stored before they are over.
    pub copies_open: usize,
}

/// A load that a reset has met.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct VoidLoad {
    /// Whose load it was.
    pub request: RequestId,
    /// Tokens, from the first on, that need not be computed: as after a load that has
    /// [failed](crate::CopyOutcome::LoadFailed).
    pub computed: u32,
}

impl<M: OffloadManager> Connector<M> {
    /// Drops every chunk of the primary tier. Copies that are under way are void; until they are over nothing is loaded,
    /// stored, or brought up from lower tiers: a copy that a device never lets go of keeps offloading off, as its slot may
    /// be written at any time. Requests go on, and their blocks are offered again. Lower tiers keep their chunks, which are
    /// found there: for an engine whose memory is wanted for something else, not for one whose weights have changed.
    ///
    /// [Events](Self::take_events) that were not taken before tell of chunks that are gone.
    pub fn reset(&mut self) -> Flush {
        self.drop_all(false)
    }

    /// The weights have changed: as [`reset`](Self::reset), and from now on all chunks have other names, so that nothing that
    /// was computed before is found in any tier, what is still on its way to one included. It is to be called behind the last
    /// step that computes with the old weights and before the first one that computes with the new ones, by an engine that
    /// also forgets which blocks it has on the GPU.
    ///
    /// A request of which the engine has KV data then goes on with data of both, so nothing of it is stored, and it loads
    /// nothing, until it was [preempted](crate::StepInput::preempted) and begins anew. Others are served as if they came now.
    ///
    /// Epochs need not ascend: where the weights are again those of an earlier epoch, what lower tiers have of it is found
    /// again. An engine that starts anew says by its options which epoch its weights are.
    ///
    /// # Errors
    /// [`ConnectorError::SameEpoch`] if it is the epoch of now; then nothing has changed.
    pub fn reset_to(&mut self, epoch: u64) -> Result<Flush, ConnectorError> {
        if epoch == self.options.namespace.epoch {
            return Err(ConnectorError::SameEpoch { epoch });
        }
        self.options.namespace.epoch = epoch;
        Ok(self.drop_all(true))
    }

    /// Has requests go on without loads and stores, until [`go_on`](Self::go_on): for whoever does something to all slots, as
    /// to wipe them behind a [reset](Self::reset) (`HostRegion::wipe`), on a thread of its own. What is under way comes to its
    /// end; as soon as [`is_drained`](Self::is_drained) says so, nobody touches a slot.
    pub fn hold(&mut self) {
        if self.pause == Pause::None {
            self.pause = Pause::Held;
        }
    }

    /// Whether no slot has a chunk, and none is used by a copy or by a tier.
    pub fn is_drained(&self) -> bool {
        let counts = self.manager.counts();
        counts.free == counts.capacity && self.copies.len() == 0 && self.loads.is_empty()
    }

    /// The end of a [`hold`](Self::hold).
    pub fn go_on(&mut self) {
        if self.pause == Pause::Held {
            self.pause = Pause::None;
        }
    }

    /// Ends all tiers, and waits up to `timeout` for them; [what is left](ShutDown) is said. From then on nothing is stored
    /// or found; requests go on, or are finished as ever, and what a [reset](Self::reset) would say of them is said too.
    ///
    /// Copies are the workers' to end: an engine that wants its last chunks kept has them
    /// [shut down](crate::Worker::shut_down) before, and tells of what they report. It may be called again, and tries again
    /// what has not ended.
    pub fn shut_down(&mut self, timeout: Duration) -> (Flush, ShutDown) {
        self.pause = Pause::ShutDown;
        let flush = self.drop_all(false);
        (flush, self.manager.shut_down(timeout))
    }

    fn drop_all(&mut self, is_renamed: bool) -> Flush {
        self.manager.reset_cache();
        // Also those of what tiers have reported on the way: it is gone by now.
        self.collect_events();
        if let Some(directory) = &mut self.directory {
            directory.are_leaving(self.manager.cascading());
            directory.emptied(self.manager.primary_name(), Medium::Memory);
            if is_renamed {
                directory.retire();
            }
        }
        for copy in self.copies.all_mut() {
            copy.is_void = true;
        }
        let mut loads_void = Vec::new();
        for (id, request) in &mut self.requests {
            request.matched = None;
            request.waits_for = None;
            request.asks_since = None;
            request.stores_behind = None;
            if request.give_up_load() {
                // Nobody will say whether what it brings is there.
                request.take_back(request.load_from, &self.options);
                loads_void.push(VoidLoad { request: *id, computed: request.load_from });
            }
            for group in &mut request.groups {
                group.next_store = 0;
            }
        }
        for plan in std::mem::take(&mut self.loads) {
            self.end(plan.copy);
        }
        self.matched.clear();
        self.num_stale = self.copies.len();
        self.is_flushing = true;
        self.go_on_if_flushed();
        loads_void.sort_unstable();
        Flush {
            epoch: self.options.namespace.epoch,
            tiers_cleared: vec![self.manager.primary_name().to_owned()],
            tiers_kept: self.manager.secondary_names().iter().map(|&name| name.to_owned()).collect(),
            outdated: if is_renamed { self.rename_all() } else { Vec::new() },
            loads_void,
            copies_open: self.num_stale,
        }
    }

    /// Names the chunks of all requests anew; the requests with KV data of another namespace.
    fn rename_all(&mut self) -> Vec<RequestId> {
        let mut outdated = Vec::new();
        for (id, request) in &mut self.requests {
            if let Some(directory) = &mut self.directory {
                directory.forget(request.names(), |key| self.manager.peek(key) == LookupResult::HitPending);
            }
            request.rename(&self.options);
            if request.data == Data::Outdated {
                outdated.push(*id);
            }
        }
        self.name_all();
        outdated.sort_unstable();
        outdated
    }

    /// Takes the chunks of all requests into the directory, under new names.
    fn name_all(&mut self) {
        let Some(directory) = &mut self.directory else { return };
        for request in self.requests.values() {
            for (nth, group) in self.options.groups.iter().enumerate() {
                for (chunk, key) in request.groups[nth].keys.iter().enumerate() {
                    directory.name(*key, || request.detail(nth, chunk, group));
                }
            }
        }
    }

    pub(super) fn go_on_if_flushed(&mut self) {
        if self.is_flushing && self.num_stale == 0 {
            self.is_flushing = false;
            self.manager.on_reset_flushed();
        }
    }
}
