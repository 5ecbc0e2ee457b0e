use std::sync::{
    Arc, Barrier,
    atomic::{AtomicUsize, Ordering},
};

use kvo_core::{ReadClaim, WriteClaim};

use super::*;

fn small(num_slots: u32, slot_bytes: usize) -> RegionOptions {
    RegionOptions { prefault_threads: 2, ..RegionOptions::new(num_slots, slot_bytes) }
}

fn fill(region: &HostRegion, slot: u32, byte: u8) {
    region.with_write(SlotId(slot), &mut |bytes| bytes.fill(byte)).unwrap();
}

#[track_caller]
fn check_filled(region: &HostRegion, slot: u32, byte: u8) {
    region
        .with_read(SlotId(slot), &mut |bytes| {
            assert_eq!(bytes.len(), region.slot_bytes());
            assert!(bytes.iter().all(|found| *found == byte), "slot {slot} must hold {byte} only");
        })
        .unwrap();
}

fn descriptor(region: &HostRegion) -> OwnedFd {
    // SAFETY: the one test that writes by it reads no slot at that moment; the others attach it, or look at it.
    unsafe { region.shared_fd() }.unwrap().try_clone_to_owned().unwrap()
}

#[test]
fn slots_start_zeroed_and_keep_their_own_bytes() {
    for region in
        [HostRegion::anonymous(&small(5, 6000)).unwrap(), HostRegion::shared(&small(5, 6000)).unwrap()]
    {
        let slots = [(0, 11), (1, 12), (2, 13), (3, 14), (4, 15)];
        for (slot, _) in slots {
            check_filled(&region, slot, 0);
        }
        for (slot, byte) in slots {
            fill(&region, slot, byte);
        }
        for (slot, byte) in slots {
            check_filled(&region, slot, byte);
        }
    }
}

#[test]
fn an_anonymous_region_is_aligned_to_huge_pages_and_its_slots_to_pages() {
    let region = HostRegion::anonymous(&small(3, 100)).unwrap();
    assert_eq!(region.slot_ptr(SlotId(0)) as usize % HUGE_PAGE_BYTES, 0);
    assert_eq!(region.slot_ptr(SlotId(2)) as usize % SLOT_ALIGN_BYTES, 0);
}

#[test]
fn a_region_without_prefault_threads_works() {
    let region = HostRegion::anonymous(&RegionOptions { prefault_threads: 0, ..small(2, 4096) }).unwrap();
    check_filled(&region, 1, 0);
}

#[test]
fn a_slot_out_of_range_is_an_error() {
    let region = HostRegion::anonymous(&small(2, 10)).unwrap();
    let out_of_range = SlotAccessError::OutOfRange { slot: SlotId(2), num_slots: 2 };
    assert_eq!(region.with_read(SlotId(2), &mut |_| unreachable!()), Err(out_of_range));
    assert_eq!(region.with_write(SlotId(2), &mut |_| unreachable!()), Err(out_of_range));
}

#[test]
fn a_slot_has_many_readers_or_one_writer() {
    let region = HostRegion::anonymous(&small(2, 10)).unwrap();
    let slot = SlotId(0);
    let busy = Err(SlotAccessError::Busy { slot });
    region
        .with_read(slot, &mut |_| {
            assert_eq!(region.with_read(slot, &mut |_| {}), Ok(()));
            assert_eq!(region.with_write(slot, &mut |_| unreachable!()), busy);
            assert_eq!(region.with_write(SlotId(1), &mut |_| {}), Ok(()), "another slot is free");
        })
        .unwrap();
    region
        .with_write(slot, &mut |_| {
            assert_eq!(region.with_read(slot, &mut |_| unreachable!()), busy);
            assert_eq!(region.with_write(slot, &mut |_| unreachable!()), busy);
        })
        .unwrap();
    assert_eq!(region.with_write(slot, &mut |_| {}), Ok(()), "all claims were given back");
}

#[test]
fn a_claim_is_given_back_when_its_copy_panics() {
    let region = HostRegion::anonymous(&small(1, 10)).unwrap();
    for write in [false, true] {
        let copy = std::panic::AssertUnwindSafe(|| {
            if write {
                region.with_write(SlotId(0), &mut |_| panic!("a copy fails")).unwrap();
            } else {
                region.with_read(SlotId(0), &mut |_| panic!("a copy fails")).unwrap();
            }
        });
        assert!(std::panic::catch_unwind(copy).is_err());
        assert_eq!(region.with_write(SlotId(0), &mut |_| {}), Ok(()));
    }
}

#[test]
fn threads_that_fight_for_a_slot_never_see_half_a_write() {
    let region = Arc::new(HostRegion::anonymous(&small(1, 64)).unwrap());
    let (barrier, writes) = (Barrier::new(4), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for byte in 0..4 {
            let (region, barrier, writes) = (&region, &barrier, &writes);
            scope.spawn(move || {
                barrier.wait();
                for _ in 0..20_000 {
                    if region.with_write(SlotId(0), &mut |bytes| bytes.fill(byte)).is_ok() {
                        writes.fetch_add(1, Ordering::Relaxed);
                    }
                    let _ = region
                        .with_read(SlotId(0), &mut |bytes| assert!(bytes.iter().all(|b| *b == bytes[0])));
                }
            });
        }
    });
    assert!(writes.load(Ordering::Relaxed) > 0);
}

#[test]
fn options_that_cannot_be_are_named() {
    for make in [HostRegion::anonymous, HostRegion::shared] {
        assert!(matches!(make(&small(0, 1)), Err(RegionError::Zero { field: "num_slots" })));
        assert!(matches!(make(&small(1, 0)), Err(RegionError::Zero { field: "slot_bytes" })));
        for slot_bytes in [usize::MAX, isize::MAX as usize] {
            let error = make(&small(2, slot_bytes)).unwrap_err();
            assert!(matches!(error, RegionError::Overflow { num_slots: 2, .. }), "{error}");
        }
    }
}

#[test]
fn too_much_memory_is_refused_with_both_numbers_before_it_is_mapped() {
    for make in [HostRegion::anonymous, HostRegion::shared] {
        let error = make(&small(1 << 20, 1 << 30)).unwrap_err();
        let RegionError::NotEnoughMemory { asked_bytes, available_bytes } = error else { panic!("{error}") };
        assert_eq!(asked_bytes, 1 << 50);
        assert!(available_bytes > 0 && available_bytes < 1 << 50);
        assert!(error.to_string().contains("1125899906842624 bytes are asked for"), "{error}");
    }
}

#[test]
fn a_shared_region_is_one_memory_for_all_who_map_it() {
    let options = small(2, 5000);
    let first = HostRegion::shared(&options).unwrap();
    let fd = descriptor(&first);
    // SAFETY: the two mappings are used in turn, by this one thread.
    let second = unsafe { HostRegion::attach(fd, &options) }.unwrap();
    fill(&first, 1, 7);
    check_filled(&second, 1, 7);
    drop(first);
    fill(&second, 1, 8);
    check_filled(&second, 1, 8);
}

/// Why it is unsafe to borrow the descriptor: no access word keeps this out.
#[test]
fn what_is_written_by_the_descriptor_is_in_the_slots() {
    use std::os::unix::fs::FileExt;
    let region = HostRegion::shared(&small(2, 5000)).unwrap();
    let fd = descriptor(&region);
    let file = std::fs::File::from(fd);
    file.write_all_at(&[7; 5000], 8192).unwrap();
    check_filled(&region, 1, 7);
}

/// B47: memory that is found at first use is as good; memory that there is not is an error.
#[test]
fn a_kernel_that_cannot_populate_is_told_from_one_that_has_no_memory() {
    use rustix::io::Errno;
    let told = |errno: Errno| populate_pieces(0, 3 * HUGE_PAGE_BYTES, 2, &|_, _| Err(errno.into()));
    for errno in [Errno::INVAL, Errno::NOSYS, Errno::OPNOTSUPP, Errno::PERM, Errno::ACCESS] {
        assert!(matches!(told(errno), Ok(false)), "{errno}");
    }
    for errno in [Errno::NOMEM, Errno::FAULT, Errno::HWPOISON] {
        let Err(RegionError::System { operation, source }) = told(errno) else { panic!("{errno}") };
        assert_eq!(
            (operation, source.raw_os_error()),
            ("populate the host region", Some(errno.raw_os_error()))
        );
    }
    assert!(matches!(populate_pieces(0, 1, 2, &|_, _| Ok(())), Ok(true)));
}

/// B47: whoever maps a region later, and takes its pages ahead, changes no byte of it.
#[test]
fn populating_a_shared_region_leaves_its_bytes() {
    let options = RegionOptions { prefault_threads: 2, ..RegionOptions::new(3, 1 << 20) };
    let first = HostRegion::shared(&options).unwrap();
    (0..3).for_each(|slot| fill(&first, slot, 7));
    let fd = descriptor(&first);
    // SAFETY: the two mappings are used in turn, by this one thread.
    let second = unsafe { HostRegion::attach(fd, &options) }.unwrap();
    (0..3).for_each(|slot| check_filled(&second, slot, 7));
}

/// How often this thread has waited for a page so far.
fn faults() -> u64 {
    let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
    let (_, fields) = stat.rsplit_once(')').unwrap();
    fields.split_whitespace().nth(7).unwrap().parse().unwrap()
}

#[test]
fn no_slot_waits_for_a_page_after_a_fork() {
    use std::{os::unix::process::CommandExt, process::Command};
    let region = HostRegion::anonymous(&RegionOptions { huge_pages: false, ..small(16, 1 << 20) }).unwrap();
    let fill_all = |byte: u8| {
        let before = faults();
        (0..16).for_each(|slot| fill(&region, slot, byte));
        faults() - before
    };
    // Whatever watches the test looks into tables of its own for the first time.
    fill_all(0);
    assert!(fill_all(1) < 64, "all pages are there");
    let mut command = Command::new("true");
    // SAFETY: the closure does nothing. That there is one makes it a fork.
    let status = unsafe { command.pre_exec(|| Ok(())) }.status().unwrap();
    assert!(status.success());
    let faults = fill_all(2);
    assert!(faults < 64, "{faults} pages of {} were waited for", 16 << 8);
}

/// B43: whoever counts other slots is refused with both numbers.
#[test]
fn a_shared_region_of_another_size_or_unsealed_is_refused() {
    let region = HostRegion::shared(&small(2, 5000)).unwrap();
    let fd = descriptor(&region);
    // SAFETY: nothing is mapped: the call fails.
    let error = unsafe { HostRegion::attach(fd, &small(3, 5000)) }.unwrap_err();
    assert!(
        matches!(error, RegionError::SizeMismatch { asked_bytes: 24576, actual_bytes: 16384 }),
        "{error}"
    );

    let unsealed = rustix::fs::memfd_create("unsealed", MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&unsealed, 16384).unwrap();
    // SAFETY: nothing is mapped: the call fails.
    let error = unsafe { HostRegion::attach(unsealed, &small(2, 5000)) }.unwrap_err();
    assert!(matches!(error, RegionError::NotSealed), "{error}");
}

#[test]
fn a_shared_region_cannot_be_shrunk() {
    let region = HostRegion::shared(&small(2, 5000)).unwrap();
    let shrunk = rustix::fs::ftruncate(descriptor(&region), 0);
    assert_eq!(shrunk, Err(rustix::io::Errno::PERM));
    check_filled(&region, 1, 0);
}

#[test]
fn shared_memory_has_no_name_and_is_for_its_owner_alone() {
    use std::os::fd::AsRawFd;
    let region = HostRegion::shared(&small(2, 5000)).unwrap();
    // SAFETY: it is only looked at.
    let fd = unsafe { region.shared_fd() }.unwrap();
    let link = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())).unwrap();
    assert_eq!(link.to_str(), Some("/memfd:kvo-host-region (deleted)"), "it is in no directory");
    assert_eq!(rustix::fs::fstat(fd).unwrap().st_mode & 0o777, 0o600);
    let flags = rustix::io::fcntl_getfd(fd).unwrap();
    assert!(flags.contains(rustix::io::FdFlags::CLOEXEC), "no program that is started inherits it");
}

#[test]
fn a_wipe_leaves_zeros_but_where_somebody_reads_or_writes() {
    let region = HostRegion::anonymous(&small(4, 5000)).unwrap();
    (0..4).for_each(|slot| fill(&region, slot, 7));
    region.with_read(SlotId(2), &mut |_| assert_eq!(region.wipe(), [SlotId(2)])).unwrap();
    for (slot, byte) in [(0, 0), (1, 0), (2, 7), (3, 0)] {
        check_filled(&region, slot, byte);
    }
    assert_eq!(region.wipe(), []);
    check_filled(&region, 2, 0);
}

#[test]
fn an_anonymous_region_has_no_descriptor() {
    let region = HostRegion::anonymous(&small(1, 1)).unwrap();
    // SAFETY: there is none.
    assert!(unsafe { region.shared_fd() }.is_none());
}

fn stable() -> (Arc<HostRegion>, Arc<dyn StableMemory>) {
    let region = Arc::new(HostRegion::anonymous(&small(3, 5000)).unwrap());
    let stable = Arc::clone(&region).into_stable().expect("a region stays where it is");
    (region, stable)
}

#[test]
fn claims_and_closures_keep_each_other_out() {
    let (region, stable) = stable();
    let slot = SlotId(1);
    let busy = SlotAccessError::Busy { slot };
    let mut write = WriteClaim::new(Arc::clone(&stable), slot).unwrap();
    write.bytes_mut().fill(7);
    assert_eq!(region.with_read(slot, &mut |_| unreachable!()), Err(busy));
    assert_eq!(region.with_write(slot, &mut |_| unreachable!()), Err(busy));
    assert_eq!(ReadClaim::new(Arc::clone(&stable), slot).unwrap_err(), busy);
    assert_eq!(WriteClaim::new(Arc::clone(&stable), slot).unwrap_err(), busy);
    drop(write);

    let reads = [(); 2].map(|()| ReadClaim::new(Arc::clone(&stable), slot).unwrap());
    assert!(reads.iter().all(|read| read.bytes() == [7; 5000] && read.slot() == slot));
    assert_eq!(region.with_read(slot, &mut |bytes| assert_eq!(bytes, [7; 5000])), Ok(()));
    assert_eq!(region.with_write(slot, &mut |_| unreachable!()), Err(busy));
    drop(reads);
    assert_eq!(region.with_write(slot, &mut |_| {}), Ok(()), "all claims were given back");
}

#[test]
fn a_claim_of_a_slot_out_of_range_is_an_error() {
    let (_, stable) = stable();
    let out_of_range = SlotAccessError::OutOfRange { slot: SlotId(3), num_slots: 3 };
    assert_eq!(ReadClaim::new(Arc::clone(&stable), SlotId(3)).unwrap_err(), out_of_range);
    assert_eq!(WriteClaim::new(stable, SlotId(3)).unwrap_err(), out_of_range);
}

#[test]
fn a_claim_keeps_the_memory_and_lies_within_the_span() {
    let (region, stable) = stable();
    let (start, bytes) = stable.span();
    let mut claim = WriteClaim::new(stable, SlotId(2)).unwrap();
    let distance = claim.as_mut_ptr() as usize - start.as_ptr() as usize;
    assert_eq!((distance, bytes), (2 * 8192, 3 * 8192));
    drop(region);
    std::thread::spawn(move || claim.bytes_mut().fill(1)).join().unwrap();
}
