//! Making a store, whole or not, and opening it again.

use std::{cell::Cell, time::Instant};

use super::*;

/// Kills the creation before its `steps`th step.
struct Killed {
    steps: Cell<u32>,
}

impl System for Killed {
    fn before_step(&self) {
        let steps = self.steps.get();
        assert!(steps > 0, "this panic belongs to the test");
        self.steps.set(steps - 1);
    }
}

/// Opens, and is killed before a step; whether it came so far.
fn kill(rig: &Rig, steps: u32) -> bool {
    let system = Killed { steps: Cell::new(steps) };
    catch_unwind(AssertUnwindSafe(|| rig.open_on(&system).map(drop))).is_err()
}

#[test]
fn a_store_is_made_of_real_blocks() {
    for num_devices in [1, 2, 3] {
        let rig = Rig::new(num_devices);
        let files = rig.open().unwrap();
        check_whole(&files);
        assert_eq!(files.geometry, rig.geometry());
        assert_eq!(files.data.len(), num_devices);
        let superblock = &files.index.superblock;
        assert_eq!((superblock.epoch, superblock.num_slots, superblock.asked_slots), (1, 7, 7));
        assert_eq!((superblock.state, superblock.fingerprint), (StoreState::Open, [3; 32]));
        assert_eq!(rig.files().len(), num_devices + 1);
    }
}

#[test]
fn each_opening_has_an_epoch_of_its_own() {
    let rig = Rig::new(2);
    let first = rig.open().unwrap().index.superblock;
    for epoch in 2..6 {
        let files = rig.open().unwrap();
        assert_eq!((files.index.superblock.epoch, files.index.superblock.id), (epoch, first.id));
        assert!(!files.recovered.report.superblock_damaged && !files.recovered.report.clean);
    }
}

#[test]
fn two_stores_have_two_names() {
    let name = |rig: Rig| rig.open().unwrap().index.superblock.id;
    assert_ne!(name(Rig::new(1)), name(Rig::new(1)));
}

#[test]
fn chunks_and_broken_slots_are_there_again() {
    let rig = Rig::new(2);
    let files = rig.open().unwrap();
    write_record(&files, 5, record(&files, 1));
    write_record(&files, 0, record(&files, 2));
    write_record(&files, 3, RecordState::Quarantined);
    let expected = [5, 0].map(|slot| (slot, record(&files, if slot == 5 { 1 } else { 2 })));
    drop(files);
    let files = rig.open().unwrap();
    let chunks: Vec<_> = files.recovered.chunks.iter().map(|entry| (entry.slot, entry.state)).collect();
    // One run, without positions: the newest goes first.
    assert_eq!(chunks, [expected[1], expected[0]]);
    assert_eq!(files.recovered.quarantined, [3]);
}

/// `KVO_SLOTS=1000000`, in the release profile, says how long a large store takes.
#[test]
fn a_full_table_is_read_in_one_pass() {
    let num_slots = std::env::var("KVO_SLOTS").map_or(50_000, |slots| slots.parse().unwrap());
    let mut rig = Rig::new(1);
    rig.options = NvmeOptions { capacity_chunks: num_slots, chunk_bytes: CHUNK_BYTES, ..rig.options };
    let files = rig.open().unwrap();
    // Requests of 32 chunks each, in slots that are anywhere.
    let mut table = vec![0; num_slots as usize * 128];
    for n in 0..num_slots {
        let slot = u32::try_from(u64::from(n) * 7919 % u64::from(num_slots)).unwrap();
        let RecordState::Chunk(record) = record(&files, n.into()) else { panic!("it is a chunk") };
        let record = Record { run: u64::from(n / 32), end_token: Some(n % 32 * 16), ..record };
        let bytes = RecordState::Chunk(record).encode(files.index.superblock.id, slot);
        table[slot as usize * 128..][..128].copy_from_slice(&bytes);
    }
    files.index.file.write_all_at(&table, record_start(0)).unwrap();
    // Else the first opening waits for all of it to reach the device.
    files.index.file.sync_all().unwrap();
    drop(files);
    let open = |how: &str| {
        let start = Instant::now();
        let files = rig.open().unwrap();
        eprintln!("{num_slots} slots, {how}: {:?}", start.elapsed());
        assert_eq!(files.recovered.report.chunks, num_slots);
        files
    };
    let files = open("killed");
    let order = slots(&files);
    assert_eq!(order.len(), num_slots as usize);
    close(&files, &order);
    drop(files);
    assert_eq!(slots(&open("closed")), order);
}

#[test]
fn the_order_of_a_clean_close_is_there_once() {
    let rig = Rig::new(1);
    let files = rig.open().unwrap();
    for slot in 0..4 {
        write_record(&files, slot, record(&files, slot.into()));
    }
    close(&files, &[2, 0, 3, 1]);
    drop(files);
    let files = rig.open().unwrap();
    assert!(files.recovered.report.clean);
    assert_eq!(slots(&files), [2, 0, 3, 1]);
    drop(files);
    // That opening was not closed.
    let files = rig.open().unwrap();
    assert!(!files.recovered.report.clean);
    assert_eq!(slots(&files), [3, 2, 1, 0]);
}

#[test]
fn a_store_may_move_to_other_directories() {
    let rig = Rig::made(2);
    let id = rig.open().unwrap().index.superblock.id;
    let elsewhere = Rig::new(2);
    for device in [0, 1] {
        fs::rename(rig.data(device), elsewhere.data(device)).unwrap();
    }
    fs::copy(rig.index(), elsewhere.index()).unwrap();
    fs::remove_file(rig.index()).unwrap();
    let files = elsewhere.open().unwrap();
    assert_eq!((files.index.superblock.id, files.index.superblock.epoch), (id, 3));
}

/// B47: giving blocks changes no byte that is there.
#[test]
fn a_file_that_lost_its_zeros_gets_its_blocks_back() {
    let rig = Rig::new(1);
    let files = rig.open().unwrap();
    files.data[0].file.write_all_at(b"kept", DATA_START + 9).unwrap();
    drop(files);
    // As a copy does that leaves out zeros.
    let bytes = fs::read(rig.data(0)).unwrap();
    fs::remove_file(rig.data(0)).unwrap();
    let sparse = File::create(rig.data(0)).unwrap();
    fs::set_permissions(rig.data(0), fs::Permissions::from_mode(0o600)).unwrap();
    sparse.set_len(bytes.len() as u64).unwrap();
    sparse.write_all_at(&bytes[..4096], 0).unwrap();
    sparse.write_all_at(b"kept", DATA_START + 9).unwrap();
    drop(sparse);
    check_whole(&rig.open().unwrap());
    assert!(fs::read(rig.data(0)).unwrap() == bytes);
}

/// B62: a half-made store is never taken for one, and the next who comes makes it whole.
#[test]
fn an_interrupted_creation_is_finished_without_a_question() {
    for num_devices in [1, 3] {
        let mut num_steps = 0;
        loop {
            let rig = Rig::new(num_devices);
            if !kill(&rig, num_steps) {
                break;
            }
            let files = rig.open().unwrap_or_else(|error| panic!("step {num_steps}: {error}"));
            check_whole(&files);
            // One step before the end it is made already.
            assert!(files.index.superblock.epoch <= 2, "step {num_steps}");
            assert!(files.recovered.chunks.is_empty());
            num_steps += 1;
        }
        assert!(num_steps > 8, "{num_steps} steps");
    }
}

#[test]
fn a_creation_that_is_interrupted_again_and_again_is_finished() {
    let rig = Rig::new(2);
    let kills = (0..100).take_while(|&steps| kill(&rig, steps)).count();
    assert!(kills > 5, "{kills} kills");
    check_whole(&rig.open().unwrap());
}

#[test]
fn an_unfinished_store_is_finished_with_the_options_of_the_one_who_does() {
    let mut rig = Rig::new(2);
    assert!(kill(&rig, 6));
    rig.options.capacity_chunks = 4;
    rig.options.chunk_bytes = 100;
    rig.options.fingerprint = [9; 32];
    let files = rig.open().unwrap();
    check_whole(&files);
    assert_eq!(files.index.superblock.fingerprint, [9; 32]);
    drop(files);
    rig.open().unwrap();
}

#[test]
fn an_unfinished_store_does_not_take_the_data_of_another_one() {
    let rig = Rig::new(2);
    assert!(kill(&rig, 3));
    let other = Rig::made(2);
    fs::copy(other.data(1), rig.data(1)).unwrap();
    rig.refused_as_other("store");
}

#[test]
fn an_index_without_a_byte_is_one_that_was_being_made() {
    let rig = Rig::new(1);
    fs::write(rig.index(), b"").unwrap();
    check_whole(&rig.open().unwrap());
    let rig = Rig::new(1);
    fs::write(rig.index(), [0; 4096]).unwrap();
    check_whole(&rig.open().unwrap());
}

#[test]
fn an_interrupted_emptying_is_finished_without_a_question() {
    for steps in 0..100 {
        let mut rig = Rig::new(2);
        let files = rig.open().unwrap();
        write_record(&files, 0, record(&files, 1));
        drop(files);
        rig.options.fingerprint = [4; 32];
        rig.options.capacity_chunks = 6;
        rig.options.if_other = IfOther::Empty;
        if !kill(&rig, steps) {
            assert!(steps > 6, "{steps} steps");
            return;
        }
        rig.options.if_other = IfOther::Refuse;
        let files = match rig.open() {
            // Nothing had been written yet: the old store is there.
            Err(OpenError::Other { field: "fingerprint", .. }) if steps == 0 => continue,
            files => files.unwrap_or_else(|error| panic!("step {steps}: {error}")),
        };
        check_whole(&files);
        assert!(files.recovered.chunks.is_empty(), "step {steps}");
    }
    panic!("it is never made");
}

#[test]
fn an_emptying_that_is_interrupted_twice_is_finished_without_a_question() {
    // From when it has said that it empties.
    for first in 1..100 {
        for second in 0..100 {
            let mut rig = Rig::made(2);
            rig.options.fingerprint = [4; 32];
            rig.options.if_other = IfOther::Empty;
            if !kill(&rig, first) {
                assert!(first > 6, "{first} steps");
                return;
            }
            rig.options.if_other = IfOther::Refuse;
            if !kill(&rig, second) {
                break;
            }
            check_whole(&rig.open().unwrap_or_else(|error| panic!("steps {first}, {second}: {error}")));
        }
    }
    panic!("it is never made");
}

#[test]
fn every_block_is_written_when_that_is_asked_for() {
    let mut rig = Rig::new(1);
    rig.options.preinit = Preinit::Full;
    let files = rig.open().unwrap();
    check_whole(&files);
    // A store whose blocks are only allocated has none that were written; ask the file system.
    let data = rustix::fs::seek(&files.data[0].file, rustix::fs::SeekFrom::Hole(DATA_START));
    assert_eq!(data, Ok(files.geometry.file_bytes(0)));
}

/// B47: a file system without direct I/O is used through the page cache.
#[test]
fn direct_io_is_tried_before_it_is_used() {
    struct Refuses(rustix::io::Errno);
    impl System for Refuses {
        fn make_direct(&self, _: &File) -> io::Result<()> {
            Err(self.0.into())
        }
    }
    let rig = Rig::new(2);
    for errno in [rustix::io::Errno::INVAL, rustix::io::Errno::OPNOTSUPP, rustix::io::Errno::PERM] {
        let files = open_with(&rig.options, rig.geometry(), true, &Refuses(errno)).unwrap();
        assert!(!files.direct);
        check_whole(&files);
    }
    let files = open(&rig.options, rig.geometry(), true).unwrap();
    let flag =
        |data: &DataFile| rustix::fs::fcntl_getfl(&data.file).unwrap().contains(rustix::fs::OFlags::DIRECT);
    assert!(files.data.iter().all(|data| flag(data) == files.direct));
    if !files.direct {
        eprintln!("SKIPPED: no direct I/O in the directory for temporary files");
    }
    drop(files);
    assert!(!open(&rig.options, rig.geometry(), false).unwrap().direct);
}

#[test]
fn file_systems_that_copy_on_write_are_told() {
    struct On(u64);
    impl System for On {
        fn file_system(&self, _: &File) -> Result<u64, rustix::io::Errno> {
            Ok(self.0)
        }
    }
    let rig = Rig::new(2);
    assert!(!rig.open().unwrap().copy_on_write);
    for (magic, copies) in [(0x9123_683e, true), (0x2fc1_2fc1, true), (0xef53, false)] {
        assert_eq!(rig.open_on(&On(magic)).unwrap().copy_on_write, copies, "{magic:#x}");
    }
}

/// B47: of a system that gives no blocks only what says that it cannot is passed over.
#[test]
fn a_file_that_was_made_for_nothing_is_removed() {
    use rustix::io::Errno;
    struct Broken(Errno, Cell<u32>);
    impl System for Broken {
        fn allocate(&self, file: &File, bytes: u64) -> Result<(), Errno> {
            if self.1.get() == 0 {
                return Err(self.0);
            }
            self.1.set(self.1.get() - 1);
            Real.allocate(file, bytes)
        }
    }
    for num_good in 0..3 {
        let rig = Rig::new(2);
        for errno in [Errno::IO, Errno::INVAL, Errno::PERM, Errno::NOMEM] {
            let error = rig.open_on(&Broken(errno, Cell::new(num_good))).unwrap_err();
            assert!(matches!(error, OpenError::Io { operation: "allocate", .. }), "{error}");
            assert_eq!(rig.files(), [], "after {num_good} files");
        }
        let error = rig.open_on(&Broken(Errno::NOSPC, Cell::new(num_good))).unwrap_err();
        assert!(matches!(error, OpenError::NoRoom { .. }), "{error}");
        assert_eq!(rig.files(), [], "after {num_good} files");
    }
    let rig = Rig::new(2);
    remove(&rig.open().unwrap().made);
    assert_eq!(rig.files(), []);
    rig.open().unwrap();
    remove(&rig.open().unwrap().made);
    assert_eq!(rig.files().len(), 3, "it was there before");
}

/// B47: a file system or a kernel without `fallocate`.
#[test]
fn without_fallocate_every_block_is_written() {
    check_without_fallocate(&NoFallocate(rustix::io::Errno::OPNOTSUPP));
    check_without_fallocate(&NoFallocate(rustix::io::Errno::NOSYS));
}

struct NoFallocate(rustix::io::Errno);

impl System for NoFallocate {
    fn allocate(&self, _: &File, _: u64) -> Result<(), rustix::io::Errno> {
        Err(self.0)
    }
}

#[track_caller]
fn check_without_fallocate(system: &NoFallocate) {
    let mut rig = Rig::new(2);
    let files = rig.open_on(system).unwrap();
    check_whole(&files);
    write_record(&files, 1, record(&files, 1));
    drop(files);
    let files = rig.open_on(system).unwrap();
    assert_eq!(slots(&files), [1]);
    drop(files);
    rig.options.capacity_chunks = 8;
    rig.options.if_other = IfOther::Empty;
    let files = rig.open_on(system).unwrap();
    check_whole(&files);
    assert!(files.recovered.chunks.is_empty());
}

/// Whoever has locked a file that was made for nothing would go on with one that loses its name.
#[test]
fn a_file_that_was_made_for_nothing_is_locked_until_it_is_removed() {
    use rustix::{
        fs::{FlockOperation, flock},
        io::Errno,
    };
    struct Full<'a>(&'a Dirs, Cell<usize>);
    impl System for Full<'_> {
        fn allocate(&self, _: &File, _: u64) -> Result<(), Errno> {
            Err(Errno::NOSPC)
        }

        /// Counts the files that nobody else can lock.
        fn before_step(&self) {
            let files = [self.0.index(), self.0.data(0), self.0.data(1)].into_iter().flat_map(File::open);
            let is_locked = |file: &File| flock(file, FlockOperation::NonBlockingLockExclusive).is_err();
            self.1.set(files.filter(is_locked).count());
        }
    }
    let rig = Rig::new(2);
    let full = Full(&rig.dirs, Cell::new(0));
    rig.open_on(&full).unwrap_err();
    assert_eq!((full.1.get(), rig.files()), (3, vec![]), "all three, when the first is about to go");
}
