//! The engine on top: requests come, share prefixes, compute in pieces, are preempted, aborted, and finish. It computes no
//! model: whatever attends to a token compares its bytes first.

pub(crate) mod check;
mod end;
mod life;
mod pause;
pub(crate) mod request;
mod step;
mod trouble;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::{Arc, atomic::AtomicU64},
    time::Duration,
};

use kvo_connector::{BlockHasher, Connector, CopyId, GroupOptions, RequestParams};
use kvo_core::{
    BlockId, GroupIdx, ManualClock, Medium, OffloadKey, RequestId, SlotId, TierFilter, TransferClass,
};
use kvo_nvme::testing::SimDisk;

use crate::{
    canary::Plant,
    host::Joined,
    ledger::Ledger,
    ops::{Op, What},
    random::{Random, mix},
    rank::Rank,
    run::Tally,
    setup::{PARTS_MAX, Setup, Trouble},
    tier::{SharedTier, lock},
    watch::Watch,
};

use self::life::namespace;
use self::pause::Wipe;
use self::request::{Free, Prompt, Request};

/// Prompts that are remembered, to be asked for again at the end.
const PROMPTS_REMEMBERED: usize = 12;

const LOAD_CLASSES: [TransferClass; 3] =
    [TransferClass::Demand, TransferClass::Expedited, TransferClass::Prefetch];

pub(crate) struct Engine {
    pub(crate) setup: Setup,
    pub(crate) plant: Option<Plant>,
    /// For whatever is not of an operation.
    random: Random,
    clock: ManualClock,
    /// Steps in which the clock stands still.
    standstill: u64,
    disk: Option<SimDisk>,
    hasher: BlockHasher,
    hash_tokens: u32,
    next: u64,
    prompts: VecDeque<Prompt>,
    pub(crate) tally: Tally,
    /// What has happened in the operation that is under way, if anybody wants to know.
    pub(crate) notes: Option<Vec<String>>,

    // What ends with the process.
    connector: Connector<Watch>,
    /// Each computes all, in caches of its own.
    ranks: Vec<Rank>,
    host: Arc<Joined>,
    tiers: Vec<(&'static str, SharedTier)>,
    free: Free,
    requests: BTreeMap<u64, Request>,
    waiting: VecDeque<u64>,
    /// Blocks that are kept until no copy uses them.
    kept: BTreeMap<u64, Vec<(u32, BlockId)>>,
    /// Numbers of requests that have ended, with all their copies.
    settled: VecDeque<u64>,
    /// Requests whose blocks are taken in the next step.
    to_preempt: Vec<u64>,
    wrong: Arc<AtomicU64>,
    /// What compute behind the layers of a load has found wrong, which counts if the load succeeds.
    behind: BTreeMap<CopyId, Arc<AtomicU64>>,
    succeeded: Vec<Arc<AtomicU64>>,
    /// Slots that somebody had hold of while copies may have wanted them.
    spoilt: BTreeSet<SlotId>,
    /// That of all slots, if one is to be or under way.
    wipe: Option<Wipe>,
    /// After so many operations more the process ends.
    shut_down_left: Option<u64>,
    /// The worker whose device dies amid the next step.
    dies_in_step: Option<usize>,
    last_ended: Option<(CopyId, u32)>,
    ledger: Ledger,
}

impl Engine {
    pub(crate) fn apply(&mut self, op: &Op) {
        let mut random = Random::new(op.seed);
        self.go_on_behind_shut_down(&mut random);
        match op.what {
            What::Arrive => self.arrive(&mut random),
            What::Step => self.step(&mut random),
            What::Devices => self.some_time(&mut random),
            What::Tiers => self.some_work(&mut random),
            What::Pass => self.pass(Duration::from_millis(1 + random.below(8))),
            What::Trouble(trouble) => self.trouble(trouble, &mut random),
        }
        self.check(&mut random);
    }

    fn note(&mut self, note: impl FnOnce() -> String) {
        if let Some(notes) = &mut self.notes {
            notes.push(note());
        }
    }

    fn now(&self) -> Duration {
        kvo_core::Clock::now(&self.clock)
    }

    fn pass(&mut self, time: Duration) {
        self.clock.advance(time);
        let now = self.now();
        self.ranks.iter_mut().for_each(|rank| rank.advance_to(now));
    }

    fn count(&mut self, trouble: Trouble) {
        *self.tally.struck.entry(trouble).or_default() += 1;
    }

    /// The devices get on with it, each at its own pace.
    fn some_time(&mut self, random: &mut Random) {
        for rank in &mut self.ranks {
            for _ in 0..random.below(60) {
                rank.step();
            }
        }
    }

    /// The tiers do.
    fn some_work(&mut self, random: &mut Random) {
        for (_, tier) in &self.tiers {
            let mut tier = lock(tier);
            tier.random = Random::new(random.next());
            tier.work(random.below(20));
        }
    }

    fn arrive(&mut self, random: &mut Random) {
        if self.requests.len() >= self.setup.requests_max {
            return;
        }
        let prompt = self.draw_prompt(random);
        self.ask(prompt);
    }

    /// One of a few documents, some of it, and something of its own behind.
    fn draw_prompt(&mut self, random: &mut Random) -> Prompt {
        let [shared_max, own_max, put_out_max] = PARTS_MAX;
        let document = random.below(self.setup.num_documents);
        let shared = random.index(shared_max);
        let own = 1 + random.index(own_max - 1);
        let small = |value: u64, of: u64| u32::try_from(value % of).expect("it is small");
        let of_document = |nth: usize| small(mix(document << 32 | nth as u64), 1000);
        let mut tokens: Vec<u32> = (0..shared).map(of_document).collect();
        let next = self.next;
        tokens.extend((0..own).map(|nth| 2000 + small(next * 100 + nth as u64, 10_000)));
        if random.one_in(4) {
            tokens.truncate(shared.max(1));
        }
        let params = RequestParams {
            adapter: random.one_in(8).then(|| [random.pick(&[5, 6]); 32]),
            salt: random.one_in(8).then(|| [random.pick(&[7, 8]); 32]),
            load_tokens_max: random.one_in(8).then(|| random.small(30)),
            store_tokens_max: random.one_in(8).then(|| random.small(60)),
            prompt_only: random.one_in(6),
            skip_reading: random.one_in(12),
            load_class: random.pick(&LOAD_CLASSES),
            tier_filter: if random.one_in(10) {
                TierFilter::all().only_media([Medium::Memory])
            } else {
                TierFilter::all()
            },
        };
        Prompt { wanted: tokens.len() + random.index(put_out_max), tokens, params }
    }

    /// A prompt is to be answered.
    fn ask(&mut self, prompt: Prompt) {
        let num_tokens = u32::try_from(prompt.tokens.len()).expect("tokens are few");
        let mut params = prompt.params.clone();
        if self.plant == Some(Plant::SaltsShared) {
            params.salt = params.salt.and(Some([7; 32]));
        }
        // Numbers are used again; but not while a tier is still to get something of the last request that had it.
        let again = self.settled.pop_front().filter(|again| {
            self.connector.new_request(RequestId(*again), num_tokens, params.clone()).is_ok()
        });
        let id = again.unwrap_or(self.next);
        if again.is_none() {
            self.next += 1;
            self.connector
                .new_request(RequestId(id), num_tokens, params)
                .expect("no request had that number");
        }
        if self.prompts.len() == PROMPTS_REMEMBERED {
            self.prompts.pop_front();
        }
        self.prompts.push_back(prompt.clone());
        self.requests.insert(id, Request::new(prompt, self.setup.groups.len()));
        self.tally.asked += 1;
        self.tell_hashes(id);
        self.waiting.push_back(id);
    }

    fn tell_hashes(&mut self, id: u64) {
        let request = self.requests.get_mut(&id).expect("it runs");
        let mut tokens = request.tokens.clone();
        if self.plant == Some(Plant::HashesShared) {
            tokens
                .iter_mut()
                .skip(self.hash_tokens as usize - 1)
                .step_by(self.hash_tokens as usize)
                .for_each(|last| *last = 0);
        }
        self.connector.add_tokens(RequestId(id), &request.tokens[request.num_told..]).expect("it runs");
        request.num_told = request.tokens.len();
        let hashes = self.hasher.blocks(self.hash_tokens as usize, &tokens);
        let new = &hashes[request.num_hashes..];
        self.connector.add_hashes(RequestId(id), request.num_tokens(), new).expect("it runs");
        request.num_hashes = hashes.len();
        if self.ledger.epoch.is_some() {
            let names = self.names(&self.requests[&id]);
            self.ledger.name(names);
        }
    }

    /// The chunks that a request names.
    fn names(&self, request: &Request) -> Vec<OffloadKey> {
        let RequestParams { adapter, salt, .. } = &request.prompt.params;
        let names = namespace(&self.setup).names(adapter.as_ref(), salt.as_ref());
        let hashes = self.hasher.blocks(self.hash_tokens as usize, &request.tokens);
        let of = |(group, index): (&GroupOptions, u32)| -> Vec<OffloadKey> {
            let hashes_per_chunk = (group.chunk_tokens() / self.hash_tokens) as usize;
            let last = hashes.iter().skip(hashes_per_chunk - 1).step_by(hashes_per_chunk);
            last.map(|hash| OffloadKey::new(names.name(*hash), GroupIdx(index))).collect()
        };
        self.setup.groups.iter().zip(0..).flat_map(of).collect()
    }

    fn give_back(&mut self, blocks: impl IntoIterator<Item = (u32, BlockId)>) {
        for (pool, block) in blocks {
            self.free.get_mut(&pool).expect("every pool is there").push(block);
        }
    }
}
