//! kvbm-logical 1.6 as a subject, with its LRU backend: the fastest of its backends in the steady cycle.
//!
//! Its key is a 128-bit `PositionalLineageHash`, made here of the first eight bytes of a digest, those of its
//! parent's and the position, before the clock starts.

use std::time::Instant;

use dynamo_tokens::PositionalLineageHash;
use kvbm_logical::{
    BlockManager, BlockRegistry,
    blocks::{ImmutableBlock, MutableBlock},
};
use kvo_bench::micro::{CHAIN, Job, MicroError, Sample, Subject, Sweep, ThreadTime, shuffle};
use kvo_core::OffloadKey;

/// What it is called in tables.
pub(crate) const NAME: &str = "kvbm lru";

const BLOCK_TOKENS: usize = 16;
/// Requests that are made ready before a stretch that is timed.
const GROUP: usize = 8;

/// The marker of a tier.
#[derive(Clone, Debug, Default)]
struct Host;

/// Its block manager and registry.
pub(crate) struct Kvbm {
    manager: BlockManager<Host>,
    registry: BlockRegistry,
    victims: u64,
}

impl Kvbm {
    /// With `chunks` blocks.
    pub(crate) fn new(chunks: u32) -> Result<Self, MicroError> {
        let registry = BlockRegistry::builder().build();
        let manager = BlockManager::<Host>::builder()
            .block_count(chunks as usize)
            .block_size(BLOCK_TOKENS)
            .registry(registry.clone())
            .with_lru_backend()
            .build()
            .map_err(|error| MicroError::Build {
                subject: NAME.to_owned(),
                chunks,
                why: error.to_string(),
            })?;
        Ok(Self { manager, registry, victims: 0 })
    }

    /// Allocates, by evicting where it is full, stages and registers.
    fn store(
        &mut self,
        hashes: &[PositionalLineageHash],
        batch: usize,
    ) -> Result<Vec<ImmutableBlock<Host>>, MicroError> {
        let mut held = Vec::with_capacity(hashes.len());
        for part in hashes.chunks(batch) {
            let (blocks, evicted) = self
                .manager
                .allocate_blocks_with_evictions(part.len())
                .ok_or_else(|| unexpected("allocate_blocks found no room"))?;
            for hash in evicted {
                self.victims = fold(self.victims, hash.current_sequence_hash());
            }
            let staged: Result<Vec<_>, _> =
                blocks.into_iter().zip(part).map(|(block, hash)| block.stage(*hash, BLOCK_TOKENS)).collect();
            let staged = staged.map_err(|_| unexpected("stage was refused"))?;
            held.extend(self.manager.register_blocks(staged));
        }
        Ok(held)
    }

    fn cycle(&mut self, keys: &[OffloadKey], batch: usize) -> Result<Sample, MicroError> {
        let hashes = hashes(keys);
        let mut sample = Sample::default();
        for group in hashes.chunks(GROUP * CHAIN) {
            let started = ThreadTime::now();
            for chain in group.chunks(CHAIN) {
                drop_tail_first(self.store(chain, batch)?);
            }
            sample.add(started.elapsed_ns(), group.len());
        }
        Ok(sample)
    }

    fn find(&self, chain: &[PositionalLineageHash]) -> Result<Vec<ImmutableBlock<Host>>, MicroError> {
        let found = self.manager.match_blocks(chain);
        if found.len() == chain.len() { Ok(found) } else { Err(unexpected("match_blocks missed a block")) }
    }

    fn lookups(&self, keys: &[OffloadKey]) -> Result<Sample, MicroError> {
        let hashes = hashes(keys);
        let started = ThreadTime::now();
        for chain in hashes.chunks(CHAIN) {
            let found = self.registry.check_presence::<Host>(chain);
            // As a caller would that wants to know how long the prefix is.
            if found.iter().take_while(|(_, present)| *present).count() != chain.len() {
                return Err(unexpected("check_presence missed a block"));
            }
        }
        Ok(Sample::new(started.elapsed_ns(), keys.len()))
    }

    fn loads(&self, keys: &[OffloadKey], pinned: bool) -> Result<Sample, MicroError> {
        let hashes = hashes(keys);
        let mut sample = Sample::default();
        for group in hashes.chunks(GROUP * CHAIN) {
            let pins: Result<Vec<_>, _> =
                group.chunks(CHAIN).filter(|_| pinned).map(|chain| self.find(chain)).collect();
            let pins = pins?;
            let started = ThreadTime::now();
            for chain in group.chunks(CHAIN) {
                drop_tail_first(self.find(chain)?);
            }
            sample.add(started.elapsed_ns(), group.len());
            pins.into_iter().for_each(drop_tail_first);
        }
        Ok(sample)
    }

    fn misses(&self, keys: &[OffloadKey]) -> Result<Sample, MicroError> {
        const REPEATS: usize = 64;
        let hashes = hashes(keys);
        let started = ThreadTime::now();
        for _ in 0..REPEATS {
            for chain in hashes.chunks(CHAIN) {
                if !self.manager.match_blocks(chain).is_empty() {
                    return Err(unexpected("match_blocks found an absent block"));
                }
            }
        }
        Ok(Sample::new(started.elapsed_ns(), REPEATS * keys.len() / CHAIN))
    }

    fn cold_cycle(&mut self, keys: &[OffloadKey], sweep: &mut Sweep) -> Result<Sample, MicroError> {
        let mut sample = Sample::default();
        for chain in keys.chunks(CHAIN) {
            let hashes = hashes(chain);
            let mut held = Vec::with_capacity(chain.len());
            for part in hashes.chunks(32) {
                sweep.run();
                let started = Instant::now();
                let blocks = self
                    .manager
                    .allocate_blocks(part.len())
                    .ok_or_else(|| unexpected("allocate_blocks found no room"))?;
                sample.add_wall(started, part.len());
                sweep.run();
                let started = Instant::now();
                let staged: Result<Vec<_>, _> = blocks
                    .into_iter()
                    .zip(part)
                    .map(|(block, hash)| block.stage(*hash, BLOCK_TOKENS))
                    .collect();
                let staged = staged.map_err(|_| unexpected("stage was refused"))?;
                held.extend(self.manager.register_blocks(staged));
                sample.add_wall(started, 0);
            }
            sweep.run();
            let started = Instant::now();
            drop_tail_first(held);
            sample.add_wall(started, 0);
        }
        Ok(sample)
    }

    fn cold_load(&self, keys: &[OffloadKey], sweep: &mut Sweep) -> Result<Sample, MicroError> {
        let mut sample = Sample::default();
        for chain in keys.chunks(CHAIN) {
            let hashes = hashes(chain);
            sweep.run();
            let started = Instant::now();
            let found = self.find(&hashes)?;
            sample.add_wall(started, chain.len());
            sweep.run();
            let started = Instant::now();
            drop_tail_first(found);
            sample.add_wall(started, 0);
        }
        Ok(sample)
    }
}

impl Subject for Kvbm {
    fn name(&self) -> &str {
        NAME
    }

    fn has(&self, job: Job) -> bool {
        !matches!(job, Job::FinishShared | Job::Context)
    }

    fn is_timed(&self, job: Job) -> bool {
        self.has(job) && job != Job::FinishOwn
    }

    fn scatter(&mut self) -> Result<(), MicroError> {
        let mut blocks: Vec<MutableBlock<Host>> = self
            .manager
            .allocate_blocks(self.manager.total_blocks())
            .ok_or_else(|| unexpected("an empty pool is full"))?;
        shuffle(&mut blocks, 0);
        drop(blocks);
        Ok(())
    }

    fn run(&mut self, job: Job, keys: &[OffloadKey], sweep: &mut Sweep) -> Result<Sample, MicroError> {
        match job {
            Job::Cycle32 | Job::FinishOwn => self.cycle(keys, 32),
            Job::Cycle1 => self.cycle(keys, 1),
            Job::Lookup => self.lookups(keys),
            Job::MatchPinned => self.loads(keys, true),
            Job::Load => self.loads(keys, false),
            Job::Miss => self.misses(keys),
            Job::ColdCycle => self.cold_cycle(keys, sweep),
            Job::ColdLoad => self.cold_load(keys, sweep),
            Job::FinishShared | Job::Context => Ok(Sample::default()),
        }
    }

    fn victims(&self) -> Option<u64> {
        Some(self.victims)
    }
}

fn unexpected(what: &str) -> MicroError {
    MicroError::Unexpected { subject: NAME.to_owned(), what: what.to_owned() }
}

/// Lets go of a request's blocks so that the tail is evicted before the head that it needs.
fn drop_tail_first(mut blocks: Vec<ImmutableBlock<Host>>) {
    while blocks.pop().is_some() {}
}

/// The keys of whole chains in its own form.
fn hashes(keys: &[OffloadKey]) -> Vec<PositionalLineageHash> {
    let of_chain = |chain: &[OffloadKey]| {
        let mut parent = None;
        let of_key = |(position, key): (u64, &OffloadKey)| {
            let hash = first_word(key);
            PositionalLineageHash::new(hash, parent.replace(hash), position)
        };
        (0..).zip(chain).map(of_key).collect::<Vec<_>>()
    };
    keys.chunks(CHAIN).flat_map(of_chain).collect()
}

fn first_word(key: &OffloadKey) -> u64 {
    let digest = key.hash().0;
    u64::from_le_bytes([
        digest[0], digest[1], digest[2], digest[3], digest[4], digest[5], digest[6], digest[7],
    ])
}

/// Takes a victim into the hash of all, in order, as kvo's subject does.
fn fold(victims: u64, word: u64) -> u64 {
    (victims.rotate_left(5) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}
