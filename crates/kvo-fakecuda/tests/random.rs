//! Random copies and fills on many streams: ordered by events they end as their order says, and without events they do not.

mod support;

use std::time::{Instant, SystemTime};

use kvo_fakecuda::Hold;

use self::support::{Bound, bound, raw};

const SLOT_BYTES: usize = 512;
/// Of the device, and as many of the host.
const NUM_SLOTS: usize = 24;
const NUM_OPS: usize = 3000;

/// `SplitMix64`.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        usize::try_from((mixed ^ (mixed >> 31)) % end as u64).expect("small")
    }
}

/// The seed of `KVO_SEED`, or one of this moment.
fn seed() -> u64 {
    let given = std::env::var("KVO_SEED").ok().and_then(|seed| seed.parse().ok());
    let now =
        || SystemTime::UNIX_EPOCH.elapsed().map_or(1, |time| time.as_secs() ^ u64::from(time.subsec_nanos()));
    let seed = given.unwrap_or_else(now);
    eprintln!("KVO_SEED={seed}");
    seed
}

/// Slots of the device, then of the host, and what is in each by the order of submission.
struct Slots {
    addresses: Vec<u64>,
    model: Vec<Vec<u8>>,
    /// The event behind the last write of each, and those behind the reads since.
    written: Vec<Option<u64>>,
    read: Vec<Vec<u64>>,
}

impl Slots {
    fn new(cuda: &Bound) -> Self {
        let bytes = NUM_SLOTS * SLOT_BYTES;
        let (device, host) = (cuda.alloc(bytes), cuda.host(bytes));
        cuda.put_pattern(device, bytes, 1);
        let contents = [support::pattern(1, bytes), vec![0; bytes]].concat();
        let addresses = [device, host].into_iter();
        Self {
            addresses: addresses
                .flat_map(|base| (0..NUM_SLOTS).map(move |slot| base + (slot * SLOT_BYTES) as u64))
                .collect(),
            model: contents.chunks(SLOT_BYTES).map(<[u8]>::to_vec).collect(),
            written: vec![None; 2 * NUM_SLOTS],
            read: vec![Vec::new(); 2 * NUM_SLOTS],
        }
    }

    /// Submits a copy behind all that it depends on, or behind nothing.
    fn copy(&mut self, from: usize, to: usize, stream: u64, event: u64, is_ordered: bool) {
        let source = self.written[from];
        self.wait_for(source.into_iter(), to, stream, is_ordered);
        raw::copy(self.addresses[to], self.addresses[from], SLOT_BYTES, stream).expect("copy");
        raw::event_record(event, stream).expect("record");
        let bytes = self.model[from].clone();
        self.model[to] = bytes;
        self.written[to] = Some(event);
        self.read[from].push(event);
    }

    /// Submits a fill of a device's slot. Without it all slots would become the same.
    fn fill(&mut self, to: usize, value: u8, stream: u64, event: u64, is_ordered: bool) {
        self.wait_for(std::iter::empty(), to, stream, is_ordered);
        raw::fill(self.addresses[to], value, SLOT_BYTES, stream).expect("fill");
        raw::event_record(event, stream).expect("record");
        self.model[to] = vec![value; SLOT_BYTES];
        self.written[to] = Some(event);
    }

    fn wait_for(&mut self, sources: impl Iterator<Item = u64>, to: usize, stream: u64, is_ordered: bool) {
        let users = self.written[to].into_iter().chain(self.read[to].drain(..));
        for event in sources.chain(users).filter(|_| is_ordered) {
            raw::stream_wait(stream, event).expect("wait");
        }
    }

    fn is_as_modelled(&self, cuda: &Bound) -> bool {
        self.addresses.iter().zip(&self.model).enumerate().all(|(slot, (address, model))| {
            let seen = if slot < NUM_SLOTS {
                cuda.on_device(*address, SLOT_BYTES)
            } else {
                raw::see(*address, SLOT_BYTES)
            };
            seen == *model
        })
    }
}

/// Whether everything ends as its order of submission says.
fn run(seed: u64, is_ordered: bool) -> bool {
    let cuda = bound();
    let mut random = Random(seed);
    let streams: Vec<u64> = (0..4).map(|_| cuda.stream()).collect();
    let events: Vec<u64> = (0..NUM_OPS).map(|_| cuda.event()).collect();
    let mut slots = Slots::new(&cuda);
    // What is on the first stream is done last, unless others wait for it.
    cuda.fake.hold(Hold::Stream(streams[0]));
    let start = Instant::now();
    for event in &events {
        let stream = streams[random.below(streams.len())];
        match random.below(20) {
            0 => cuda.fake.hold(Hold::Stream(stream)),
            1 if stream != streams[0] => cuda.fake.release(Hold::Stream(stream)),
            _ => {}
        }
        let from = random.below(2 * NUM_SLOTS);
        let to = (from + 1 + random.below(2 * NUM_SLOTS - 1)) % (2 * NUM_SLOTS);
        if to < NUM_SLOTS && random.below(3) == 0 {
            let value = u8::try_from(random.below(256)).expect("small");
            slots.fill(to, value, stream, *event, is_ordered);
        } else {
            slots.copy(from, to, stream, *event, is_ordered);
        }
    }
    cuda.fake.release(Hold::All);
    raw::synchronize().expect("synchronize");
    let us = start.elapsed().as_micros() / NUM_OPS as u128;
    eprintln!("model: {us} us an operation with its events");
    assert_eq!(cuda.fake.violations(), []);
    slots.is_as_modelled(&cuda)
}

#[test]
fn copies_that_wait_for_one_another_end_as_their_order_says() {
    let seed = seed();
    assert!(run(seed, true), "KVO_SEED={seed}");
}

#[test]
fn copies_that_do_not_wait_do_not() {
    let seed = seed();
    assert!(!run(seed, false), "KVO_SEED={seed}: the fake driver is too kind");
}
