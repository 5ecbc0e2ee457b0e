//! What an engine of a random run is connected to, and what changes while it runs.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use kvo_core::{HostMemory, SecondaryTier};
use kvo_cpu::HostRegion;
use kvo_cuda::LinkModel;
use kvo_mini_engine::{Engine, EngineOptions, Model, SplitMix64};
use kvo_nvme::{NvmeOptions, NvmeStore};

use crate::{
    connected::{Kvo, Parts, connect, plain},
    moody::{Busy, Moody},
};

const MINUTE: Duration = Duration::from_mins(1);

/// All choices follow from a seed.
pub(crate) struct Weather {
    seed: u64,
    random: SplitMix64,
    /// Of a real store, which goes after the engine.
    dir: tempfile::TempDir,
    held_before: usize,
}

impl Weather {
    pub(crate) fn new(seed: u64) -> Self {
        let random = SplitMix64::stream(seed, 79);
        Self { seed, random, dir: tempfile::tempdir().unwrap(), held_before: 0 }
    }

    fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[usize::try_from(self.random.below(choices.len() as u64)).unwrap()]
    }

    pub(crate) fn engine(&mut self, model: &Arc<Model>, options: &EngineOptions) -> Engine<Kvo> {
        // So slow that stores are often not over when their blocks are given out again, or as fast as it goes.
        let is_slow = self.pick(&[true, false, false]);
        let slow = LinkModel { transfer_us: 300.0, ..LinkModel::new(1.0) };
        let options = EngineOptions { link: is_slow.then_some(slow), ..options.clone() };
        // One that often cannot be kept: before the copies have begun, or within them.
        let deadlines = [None, Some(Duration::from_micros(350)), Some(Duration::from_millis(1))];
        let deadline = if is_slow { self.pick(&deadlines) } else { None };
        let cpu_chunks = self.pick(&[12, 60, 200, 400, 2000]);
        let policy = self.pick(&["lru", "arc", "ylru", "s3fifo"]);
        let blocks_per_chunk = self.pick(&[1, 1, 2, 4]);
        let lookup_patience = Duration::from_millis(self.pick(&[0, 3, 1000, 1000]));
        let copy_patience = self.pick(&[Duration::from_micros(500), MINUTE, MINUTE, MINUTE]);
        let busy = self.pick(&[0, 0, 0, 200, 2000]);
        let num_moody = self.pick(&[0, 1, 1, 1]);
        let moody_chunks = self.pick(&[30, 3000]);
        // A real one takes its time to open.
        let has_store = self.pick(&[true, false, false, false, false, false, false, false]);
        let load_chunks_max = self.pick(&[usize::MAX, usize::MAX, 1, 3]);
        let seed = self.seed;
        let wrap = move |region: Arc<HostRegion>| -> Arc<dyn HostMemory> {
            let inner = plain(region);
            if busy == 0 {
                return inner;
            }
            Arc::new(Busy { inner, odds: busy, random: Mutex::new(SplitMix64::stream(seed, 80)) })
        };
        let path = self.dir.path().to_owned();
        let mut tiers = |host: Arc<dyn HostMemory>| {
            let mut tiers: Vec<Box<dyn SecondaryTier>> = Vec::new();
            if num_moody > 0 {
                tiers.push(Box::new(Moody::new(moody_chunks, Arc::clone(&host), seed)));
            }
            if has_store {
                let options = NvmeOptions::new(&path, 300, host.slot_bytes() as u64);
                tiers.push(Box::new(NvmeStore::open(options, host).unwrap()));
            }
            tiers
        };
        let parts = Parts {
            policy,
            cpu_chunks,
            blocks_per_chunk,
            load_chunks_max,
            deadline,
            lookup_patience,
            copy_patience,
            wrap: &wrap,
            tiers: &mut tiers,
        };
        connect(model, options, parts)
    }

    /// Changes what may change between steps. Returns the copies that the device has begun to hold.
    pub(crate) fn change(&mut self, engine: &mut Engine<Kvo>) -> u64 {
        let held = engine.device().stats().held;
        let more = held.saturating_sub(self.held_before);
        self.held_before = held;
        engine.offload_mut().by_layer = self.random.below(2) == 0;
        engine.offload_mut().keep_until_settled = self.random.below(3) == 0;
        more as u64
    }
}
