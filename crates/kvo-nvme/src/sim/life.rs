//! How a store begins anew: ended in some way, opened again, and compared with what must be there.

use std::{
    ops::{Deref, DerefMut},
    sync::Arc,
};

use super::{Sim, memory::number};
use crate::{
    NvmeStore,
    testing::{
        End,
        life::{self, Life, View},
        lock,
    },
};

/// The store, until it is closed.
pub(super) struct Live(pub(super) Option<NvmeStore>);

impl Deref for Live {
    type Target = NvmeStore;

    fn deref(&self) -> &NvmeStore {
        self.0.as_ref().expect("a store that is closed is opened again at once")
    }
}

impl DerefMut for Live {
    fn deref_mut(&mut self) -> &mut NvmeStore {
        self.0.as_mut().expect("a store that is closed is opened again at once")
    }
}

impl Sim {
    /// Ends the store in some way, and opens it again.
    pub(super) fn begin_anew(&mut self, end: End, durable: bool) {
        let is_quiet = end == End::Closed && lock(&self.disk).rng.one_in(2);
        if is_quiet {
            self.finish();
        }
        let store = self.store.0.take().expect("it is open");
        let (transfers, records) = (Arc::clone(&self.transfers), Arc::clone(&self.records));
        let life = Life { store, transfers, records };
        let left = life::end(&self.disk, life, (end, is_quiet), self.options.durable);
        self.options.durable = durable;
        self.open_again();
        self.lives.chunks_recovered += left.check(self.view());
        self.lives.ends[left.end as usize] += 1;
    }

    pub(super) fn view(&self) -> View<'_> {
        let Self { store, transfers, records, disk, .. } = self;
        View { store, transfers, records, disk }
    }

    fn open_again(&mut self) {
        self.memory.let_go_of_all();
        let host = (Arc::clone(&self.memory) as _, Box::new(Arc::clone(&self.memory)) as _);
        let Life { store, transfers, records } =
            life::open(&self.options, &self.disk, host, &self.clock, self.plant);
        lock(&transfers).inherit(&mut lock(&self.transfers));
        (self.store, self.transfers, self.records) = (Live(Some(store)), transfers, records);
        let resident = self.view().resident();
        self.book.begin_anew(resident.iter().map(|(_, tenant)| number(&tenant.key)));
    }
}
