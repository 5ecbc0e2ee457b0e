//! What one seed runs: sizes, policies, and how often what goes wrong.

use std::time::Duration;

use kvo_connector::{Economy, EventDetail, GroupKind, GroupOptions};
use kvo_nvme::{Admission, AdmissionRule, BreakerOptions, NvmeOptions, testing::Faults};
use kvo_policies::{GhostHits, PolicyKind, S3FifoOptions};
use kvo_tiering::{PressureOptions, Watermarks};

use crate::{caches::slot_bytes, random::Random};

/// What can go wrong, or is done to the engine from outside. A seed has some of it, each as often as it draws.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Trouble {
    /// A request is aborted, at any time.
    Abort,
    /// A request is preempted though there is room.
    Preempt,
    /// The primary tier is reset.
    Reset,
    /// Other weights compute from now on, or from the next process on; at times those of before again.
    Weights,
    /// All slots are wiped behind a reset, with requests held off meanwhile.
    Wipe,
    /// The engine shuts down, and its requests go on for a while without their caches.
    ShutDown,
    /// The process ends: it is killed, its machine loses its power, or it closes its store. Another begins.
    Crash,
    /// A device dies, between steps or in one.
    DeviceDies,
    /// Somebody else has hold of a slot that a copy needs.
    SlotSpoilt,
    /// A worker's report is told late.
    ReportSlow,
    /// Nothing is heard of a worker, for a while or as long as anything goes wrong.
    WorkerSilent,
    /// The clock jumps forwards, by up to hours.
    Jump,
    /// The clock stands still for a while.
    Standstill,
    /// Calls that must be refused.
    Misuse,
    /// A tier reports late, and so in another order.
    TierSlow,
    /// A tier says of some chunks that they have failed.
    TierPartial,
    /// A tier says of a job that it has failed.
    TierFailed,
    /// A tier reports a job twice.
    TierDoubled,
    /// A tier reports a job that it does not have, names a key that is none of the job's, has copied more than there is, or
    /// lets go of what it does not hold.
    TierUnknown,
    /// A tier does not report a job as long as anything goes wrong.
    TierNever,
    /// A tier gives a job up while its transfers go on.
    TierHeld,
    /// A tier has no room for a job.
    TierFull,
    /// A tier refuses a job for any other reason.
    TierRefuses,
    /// A tier is still looking for a chunk, for some steps or for ever.
    TierLooking,
    /// A tier answers nothing and reports nothing for a while.
    TierDead,
    /// The worker of the tier in memory ends, with every byte.
    TierLost,
    /// The disk under the store fails and lies in every way that it can.
    Disk,
}

impl Trouble {
    /// All of it.
    pub const ALL: [Self; 27] = [
        Self::Abort,
        Self::Preempt,
        Self::Reset,
        Self::Weights,
        Self::Wipe,
        Self::ShutDown,
        Self::Crash,
        Self::DeviceDies,
        Self::SlotSpoilt,
        Self::ReportSlow,
        Self::WorkerSilent,
        Self::Jump,
        Self::Standstill,
        Self::Misuse,
        Self::TierSlow,
        Self::TierPartial,
        Self::TierFailed,
        Self::TierDoubled,
        Self::TierUnknown,
        Self::TierNever,
        Self::TierHeld,
        Self::TierFull,
        Self::TierRefuses,
        Self::TierLooking,
        Self::TierDead,
        Self::TierLost,
        Self::Disk,
    ];
}

/// How often each kind of trouble happens: once in so many times, or never, which is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rates([u64; Trouble::ALL.len()]);

impl Rates {
    pub(crate) const NONE: Self = Self([0; Trouble::ALL.len()]);

    fn draw(random: &mut Random) -> Self {
        let mut rates = Self::NONE;
        // So that there are some seeds in which all goes well.
        let is_perfect = random.one_in(8);
        for trouble in Trouble::ALL {
            let is_on = random.one_in(3);
            // What happens within a step happens often; an operation, eight times less.
            let rate = random.pick(&[2, 5, 15, 50]);
            // These are many kinds in one.
            let is_many = matches!(trouble, Trouble::Disk | Trouble::Crash);
            let is_on = is_on || is_many && random.one_in(3);
            if is_on && !is_perfect {
                rates.0[trouble as usize] = rate;
            }
        }
        rates
    }

    pub(crate) fn of(&self, trouble: Trouble) -> u64 {
        self.0[trouble as usize]
    }

    pub(crate) fn switch_off(&mut self, trouble: Trouble) {
        self.0[trouble as usize] = 0;
    }

    pub(crate) fn strikes(&self, trouble: Trouble, random: &mut Random) -> bool {
        random.one_in(self.of(trouble))
    }
}

/// A tier in memory below the primary.
#[derive(Clone, Debug)]
pub(crate) struct MemorySetup {
    pub(crate) capacity_chunks: u32,
    pub(crate) policy: PolicyKind,
    /// Whether it wants all chunks of a request.
    pub(crate) wants_all: bool,
}

/// A store below the primary.
#[derive(Clone, Debug)]
pub(crate) struct NvmeSetup {
    pub(crate) options: NvmeOptions,
    pub(crate) faults: Faults,
    /// Of the openings, so many quarters are durable.
    pub(crate) durable_quarters: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) groups: Vec<GroupOptions>,
    /// Bytes of a token in one layer.
    pub(crate) token_bytes: usize,
    pub(crate) num_slots: u32,
    pub(crate) num_blocks: u32,
    pub(crate) num_workers: u32,
    /// Which weights compute.
    pub(crate) epoch: u64,
    pub(crate) policy: PolicyKind,
    pub(crate) store_threshold: u32,
    pub(crate) memory: Option<MemorySetup>,
    pub(crate) nvme: Option<NvmeSetup>,
    /// Whether the store is asked before the tier in memory.
    pub(crate) nvme_first: bool,
    pub(crate) offer_chunks_max: usize,
    pub(crate) load_chunks_max: usize,
    pub(crate) inflight_cascades_max: u32,
    pub(crate) retry_failed_jobs: bool,
    pub(crate) pressure: PressureOptions,
    pub(crate) lookup_patience: Duration,
    pub(crate) copy_patience: Duration,
    pub(crate) copy_deadline: Option<Duration>,
    pub(crate) economy: Option<Economy>,
    /// Whether what is followed are block events.
    pub(crate) events: Option<EventDetail>,
    pub(crate) drafts: bool,
    /// How many requests run at once.
    pub(crate) requests_max: usize,
    /// Prompts begin with one of so many documents.
    pub(crate) num_documents: u64,
    pub(crate) rates: Rates,
}

/// Tokens that a request has at most.
const TOKENS_MAX: u32 = 72;
/// Of them, those of a document, those of the prompt behind it, and those that are put out.
pub(crate) const PARTS_MAX: [usize; 3] = [40, 12, 20];

fn draw_groups(random: &mut Random) -> Vec<GroupOptions> {
    let per_chunk = |random: &mut Random| 1 + random.small(3);
    let full = GroupOptions::full(4).with_blocks_per_chunk(per_chunk(random));
    let window = GroupOptions { pool: 1, ..GroupOptions::window(4, 9) };
    let state = GroupOptions { kind: GroupKind::State, pool: 3, ..GroupOptions::full(4) };
    match random.below(9) {
        0..3 => vec![full],
        7 => vec![full, state.with_blocks_per_chunk(per_chunk(random))],
        8 => vec![GroupOptions { block_tokens: 8, ..state }, window],
        3 => vec![window.with_blocks_per_chunk(per_chunk(random))],
        4 => vec![full, window],
        5 => vec![GroupOptions { block_tokens: 8, ..full }, GroupOptions { block_tokens: 4, ..window }],
        _ => vec![full, window, GroupOptions { pool: 2, ..GroupOptions::full(2) }],
    }
}

fn draw_policy(random: &mut Random) -> PolicyKind {
    match random.below(9) {
        0..2 => PolicyKind::Lru,
        2 => PolicyKind::Arc(GhostHits::T1),
        3 => PolicyKind::Arc(GhostHits::T2),
        4 => PolicyKind::Slru { protected_pct: 20 },
        5 => PolicyKind::Aslru,
        6 => PolicyKind::S3Fifo(S3FifoOptions::default()),
        7 => PolicyKind::Fifo,
        _ => PolicyKind::Ylru,
    }
}

fn draw_nvme(random: &mut Random, chunk_bytes: u64, rates: &Rates) -> NvmeSetup {
    let num_devices = random.pick(&[1, 1, 1, 2, 3]);
    let capacity = (num_devices + random.small(60)).min(60);
    let dirs = (0..num_devices).map(|device| format!("device-{device}").into()).collect();
    let rule = if random.one_in(8) {
        AdmissionRule::SecondOffer { keys_max: random.pick(&[4, 64]) }
    } else {
        AdmissionRule::Always
    };
    let admission = Admission {
        rule,
        bytes_per_day_max: random.one_in(16).then_some(1 << 30),
        skip_while_reads_wait: random.one_in(8),
    };
    let options = NvmeOptions {
        dirs,
        policy: draw_policy(random),
        queue_chunks_max: 1 + random.index(40),
        deadline: random.pick(&[
            Duration::from_millis(15),
            Duration::from_millis(200),
            Duration::from_secs(30),
        ]),
        breaker: BreakerOptions {
            errors: random.pick(&[2, 8, 8, 1000]),
            pause: random.pick(&[Duration::from_millis(20), Duration::from_secs(10)]),
            ..BreakerOptions::default()
        },
        admission,
        record_events: true,
        ..NvmeOptions::new("unused", capacity, chunk_bytes)
    };
    let seed = random.next();
    let faults = if rates.of(Trouble::Disk) > 0 { Faults::drawn(seed) } else { Faults::none() };
    NvmeSetup { options, faults, durable_quarters: random.pick(&[0, 2, 2, 4]) }
}

fn draw_economy(random: &mut Random) -> Economy {
    Economy {
        prefill_tokens_per_s: random.pick(&[1e3, 1e5]),
        context_tokens: random.pick(&[20.0, f64::INFINITY]),
        load_tokens_per_s: random.pick(&[1e3, 1e5]),
        promote_tokens_per_s: random.pick(&[1e3, 1e5]),
        load_latency: Duration::from_micros(random.pick(&[0, 50])),
    }
}

/// None, the usual ones, or some that bite.
fn draw_pressure(random: &mut Random) -> PressureOptions {
    let ms = Duration::from_millis;
    match random.below(4) {
        0 => PressureOptions::NONE,
        1 => PressureOptions::default(),
        _ => PressureOptions {
            promotion_share: random.pick(&[None, Some(10), Some(30), Some(100)]),
            unread_max: random.pick(&[ms(5), ms(50), ms(2000)]),
            cascade_share: random.pick(&[None, Some(10), Some(50)]),
            writes: random.one_in(2).then_some(Watermarks { low: ms(2), high: ms(6) }),
            reads: random.one_in(2).then_some(Watermarks { low: ms(2), high: ms(6) }),
            job_deadline: random.pick(&[None, Some(ms(15)), Some(ms(250)), Some(ms(60_000))]),
            failures_max: random.pick(&[None, Some(1), Some(3)]),
            pause: random.pick(&[ms(3), ms(100)]),
            pause_max: random.pick(&[ms(100), ms(5000)]),
            lookup_deadline: random.pick(&[None, Some(ms(10)), Some(ms(80))]),
        },
    }
}

impl Setup {
    pub(crate) fn draw(random: &mut Random) -> Self {
        let rates = Rates::draw(random);
        let groups = draw_groups(random);
        let token_bytes = random.pick(&[5, 5, 40]);
        let num_workers = random.pick(&[1, 1, 1, 2, 3]);
        let block_tokens = groups.iter().map(|group| group.block_tokens).min().expect("there is a group");
        let chunk_bytes = slot_bytes(&groups, token_bytes) * u64::from(num_workers);
        // A state that a draft has changed is no more.
        let has_states = groups.iter().any(|group| group.kind == GroupKind::State);
        let memory = random.one_in(2).then(|| MemorySetup {
            capacity_chunks: 4 + random.small(100),
            policy: draw_policy(random),
            wants_all: random.one_in(6),
        });
        let has_nvme = random.below(3) > 0;
        let nvme = has_nvme.then(|| draw_nvme(random, chunk_bytes, &rates));
        let deadline = random.one_in(2).then_some(Duration::from_millis(3));
        Self {
            groups,
            token_bytes,
            num_slots: 4 + random.small(40),
            // One request has room at any rate.
            num_blocks: TOKENS_MAX.div_ceil(block_tokens) + 2 + random.small(40),
            num_workers,
            epoch: 0,
            policy: draw_policy(random),
            store_threshold: random.pick(&[1, 1, 1, 2]),
            memory,
            nvme,
            nvme_first: random.one_in(3),
            offer_chunks_max: 1 + random.index(8),
            load_chunks_max: if random.one_in(2) { 1 + random.index(3) } else { usize::MAX },
            inflight_cascades_max: random.pick(&[1, 3, 256]),
            retry_failed_jobs: random.one_in(4),
            pressure: draw_pressure(random),
            lookup_patience: random.pick(&[Duration::from_millis(20), Duration::from_millis(100)]),
            copy_patience: random.pick(&[Duration::from_millis(6), Duration::from_mins(1)]),
            copy_deadline: deadline,
            economy: random.one_in(4).then(|| draw_economy(random)),
            events: random.pick(&[None, None, Some(EventDetail::Parents), Some(EventDetail::Tokens)]),
            drafts: random.one_in(3) && !has_states,
            requests_max: 2 + random.index(7),
            num_documents: 1 + random.below(6),
            rates,
        }
    }

    /// Switches a kind of trouble off.
    pub(crate) fn switch_off(&mut self, trouble: Trouble) {
        self.rates.switch_off(trouble);
        if let (Trouble::Disk, Some(nvme)) = (trouble, &mut self.nvme) {
            nvme.faults = Faults::none();
        }
    }
}
