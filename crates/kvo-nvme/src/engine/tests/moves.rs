//! Bytes come back as they went, whatever runs beside them.

use std::collections::HashMap;

use super::*;

#[test]
fn a_chunk_goes_to_the_file_and_comes_back() {
    over_each(|kind| {
        let mut rig = Rig::new(kind, 1, 4);
        assert_eq!(
            (rig.info.kind, rig.info.direct_io, &rig.info.fallback),
            (kind.engine, kind.direct, &None)
        );
        let bytes = content(1, CHUNK_BYTES);
        rig.fill(0, &bytes);
        let sum = rig.write(0, 3, tenant(1));
        assert_eq!(sum, checksum(&tenant(1).key, 1, &bytes));
        assert_eq!(rig.run(5, 3, tenant(1), Action::Read { checksum: sum }).unwrap(), sum);
        assert_eq!(rig.bytes(5), bytes);
        rig.stop();
    });
}

#[test]
fn each_slot_is_where_the_geometry_says_on_each_device() {
    over_each(|kind| {
        let mut rig = Rig::new(kind, 3, 8);
        for slot in 0..8 {
            rig.fill(slot, &content(u64::from(slot), CHUNK_BYTES));
            rig.write(slot, slot, tenant(u64::from(slot)));
        }
        rig.stop();
        for slot in 0..8 {
            let place = rig.geometry.place(slot);
            let file = std::fs::read(rig.dir.path().join(place.device.to_string())).unwrap();
            let at = usize::try_from(place.offset).unwrap();
            let expected = content(u64::from(slot), CHUNK_BYTES);
            assert_eq!(file[at..at + CHUNK_BYTES], expected, "slot {slot}");
            let head = usize::try_from(DATA_START).unwrap();
            assert!(file[..head].iter().all(|&byte| byte == 0), "the head belongs to others");
        }
    });
}

#[test]
fn chunks_of_any_length_are_moved_through_the_page_cache() {
    for engine in [EngineKind::Threads, EngineKind::Uring] {
        let kind = Kind { engine, direct: false };
        if !works(kind) {
            continue;
        }
        for chunk_bytes in [1, 4095, 4097, 70_001] {
            let mut rig = Rig::try_new(kind, 1, 2, |options| options.chunk_bytes = chunk_bytes).unwrap();
            let bytes = content(chunk_bytes, usize::try_from(chunk_bytes).unwrap());
            rig.fill(0, &bytes);
            let sum = rig.write(0, 1, tenant(1));
            rig.run(3, 1, tenant(1), Action::Read { checksum: sum }).unwrap();
            assert_eq!(rig.bytes(3), bytes);
            rig.stop();
        }
    }
}

/// B38: chunks below, across and beyond where an offset fits 31 bits, and 32.
#[test]
fn bytes_beyond_4_gib_of_a_file_come_back() {
    over_each(|kind| {
        // Of 17 pages, so that one lies across each border.
        let chunk_bytes = 17 * 4096;
        let capacity = u32::try_from((5_u64 << 30) / chunk_bytes).unwrap();
        let mut rig = Rig::sized(kind, 1, capacity, 8, |options| options.chunk_bytes = chunk_bytes).unwrap();
        let slots = [1_u64 << 31, 1 << 32].into_iter().flat_map(|border| {
            let across = u32::try_from((border - DATA_START) / chunk_bytes).unwrap();
            let at = rig.geometry.place(across).offset;
            assert!(at < border && at + chunk_bytes > border);
            [across - 1, across, across + 1]
        });
        let slots: Vec<u32> = slots.collect();
        let bytes_of = |slot: u32| content(u64::from(slot), usize::try_from(chunk_bytes).unwrap());
        let mut sums = Vec::new();
        for &slot in &slots {
            rig.fill(0, &bytes_of(slot));
            sums.push(rig.write(0, slot, tenant(u64::from(slot))));
        }
        for (&slot, &checksum) in slots.iter().zip(&sums) {
            rig.run(1, slot, tenant(u64::from(slot)), Action::Read { checksum }).unwrap();
            assert_eq!(rig.bytes(1), bytes_of(slot), "slot {slot}");
        }
        rig.stop();
    });
}

/// B38: what is longer than one transfer may be goes in several, and comes whole.
#[test]
fn chunks_around_the_length_of_one_transfer_come_whole() {
    const LIMIT: u64 = 8192;
    over_each(|kind| {
        for chunk_bytes in [LIMIT - 1, LIMIT, LIMIT + 1, 3 * LIMIT, 3 * LIMIT + 1] {
            if kind.direct && !chunk_bytes.is_multiple_of(4096) {
                continue;
            }
            let change = |options: &mut NvmeOptions| {
                options.chunk_bytes = chunk_bytes;
                options.write_bytes_max = LIMIT;
                options.write_bytes_while_reading_max = LIMIT;
            };
            let mut rig = Rig::try_new(kind, 1, 2, change).unwrap();
            let bytes = content(chunk_bytes, usize::try_from(chunk_bytes).unwrap());
            rig.fill(0, &bytes);
            let sum = rig.write(0, 1, tenant(1));
            rig.run(3, 1, tenant(1), Action::Read { checksum: sum }).unwrap();
            assert_eq!(rig.bytes(3), bytes, "{chunk_bytes} bytes");
            rig.stop();
        }
    });
}

/// Slots of a file and what is in them: the number of the content, and its checksum.
type Written = HashMap<u32, (u64, u64)>;

/// A random walk over the slots of some devices: writes and reads at once, each slot with one op at a time.
struct Walk {
    rig: Rig,
    random: Rng,
    written: Written,
    /// Host slots that are free, and slots of the files.
    hosts: Vec<u32>,
    slots: Vec<u32>,
    next_content: u64,
    num_reads: u32,
}

impl Walk {
    fn begin_one(&mut self) {
        let host = self.hosts.swap_remove(self.random.index(self.hosts.len()));
        let slot = self.slots.swap_remove(self.random.index(self.slots.len()));
        if let Some(&(n, checksum)) = self.written.get(&slot)
            && self.random.below(10) < 6
        {
            self.num_reads += 1;
            self.rig.submit(host, slot, tenant(n), Action::Read { checksum });
        } else {
            self.next_content += 1;
            self.rig.fill(host, &content(self.next_content, CHUNK_BYTES));
            self.rig.submit(host, slot, tenant(self.next_content), Action::Write);
        }
    }

    fn end_one(&mut self) {
        let OpDone { op, result } = self.rig.next_done();
        let sum = result.unwrap_or_else(|fault| panic!("{op:?}: {fault}"));
        let n = op.tenant.generation;
        match op.action {
            Action::Write => assert!(self.written.insert(op.slot, (n, sum)).is_none_or(|(old, _)| old < n)),
            Action::Read { .. } => {
                assert_eq!(self.rig.bytes(op.host.0), content(n, CHUNK_BYTES), "{op:?}");
            }
        }
        self.hosts.push(op.host.0);
        self.slots.push(op.slot);
    }
}

#[test]
fn many_ops_in_random_order_each_move_their_own_bytes() {
    let random = Rng::for_test();
    over_each(|kind| {
        let mut walk = Walk {
            rig: Rig::new(kind, 3, 40),
            random: random.clone(),
            written: HashMap::new(),
            hosts: (0..80).collect(),
            slots: (0..40).collect(),
            next_content: 0,
            num_reads: 0,
        };
        let mut inflight = 0;
        for _ in 0..3000 {
            if !walk.slots.is_empty() && (inflight == 0 || walk.random.below(100) < 55) {
                walk.begin_one();
                inflight += 1;
            } else {
                walk.end_one();
                inflight -= 1;
            }
        }
        (0..inflight).for_each(|_| walk.end_one());
        walk.rig.stop();
        assert!(walk.num_reads > 100 && walk.next_content > 100, "{} reads", walk.num_reads);
        let stats = walk.rig.engine.stats();
        assert_eq!((stats.strange_completions, stats.copied_bytes), (0, 0), "{stats:?}");
    });
}
