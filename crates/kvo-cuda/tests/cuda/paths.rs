//! The ways on which copies go.

use kvo_core::{DeviceBackend, Direction, SlotId, Transfer, TransferClass};
use kvo_cuda::{
    BatchUse, CopyPath, CudaDevice, CudaOptions, DriverCode, PathUse, TableSource, probe, test_batches,
};
use kvo_fakecuda::{FakeDriver, Hold};

use crate::rig::{NUM_SLOTS, Rig, SLOT_BYTES, fake, favour, host_memory, options, pattern, span};

/// Options by which copies go one way.
fn with(path: CopyPath) -> CudaOptions {
    let kernel_ctas = if path == CopyPath::Kernel { 4 } else { 0 };
    CudaOptions { table: Some(favour(path)), batches: BatchUse::Trusted, kernel_ctas, ..options() }
}

fn with_path(path: CopyPath, prepare: impl FnOnce(&FakeDriver)) -> Rig {
    Rig::with(with(path), prepare)
}

const PAGE: u64 = 3000;

/// Twenty pages of a slot at constant steps on both sides, and three that lie elsewhere.
fn pages(rig: &Rig, class: TransferClass, slot: u32, after: kvo_core::Fence) -> Transfer {
    let mut ops: Vec<_> = (0..20).map(|nth| rig.op(nth * 10_000, slot, nth * PAGE, PAGE)).collect();
    ops.push(rig.op(500_000, slot, 60_000, 17));
    ops.push(rig.op(400_000, slot, 61_000, 1));
    ops.push(rig.op(450_000, slot, 60_500, 400));
    Transfer::new(class, ops, after)
}

/// Stores pages, loads them elsewhere, and compares every byte, those between and behind them too.
#[track_caller]
fn check_round_trip(rig: &mut Rig) {
    let after = rig.passed();
    rig.fill_device(0, &pattern(1, 1 << 20));
    let store = pages(rig, TransferClass::Store, 2, after);
    let expected = |ops: &[kvo_core::CopyOp], to: Direction, source: &[u8], target: &mut [u8]| {
        for op in ops {
            let range =
                |start: u64| usize::try_from(start).unwrap()..usize::try_from(start + op.bytes).unwrap();
            let (device, slot) = (range(op.device_offset), range(op.slot_offset));
            let (from, into) = if to == Direction::Load { (slot, device) } else { (device, slot) };
            target[into].copy_from_slice(&source[from]);
        }
    };
    let mut slot = rig.slot(2);
    expected(&store.ops, Direction::Store, &pattern(1, 1 << 20), &mut slot);
    let ticket = rig.submit(store);
    rig.succeeds(ticket);
    assert!(rig.slot(2) == slot, "a byte of the slot is wrong");

    rig.fill_slot(3, &pattern(2, SLOT_BYTES));
    let mut device = rig.on_device(0, 1 << 20);
    let load = pages(rig, TransferClass::Demand, 3, after);
    expected(&load.ops, Direction::Load, &pattern(2, SLOT_BYTES), &mut device);
    let ticket = rig.submit(load);
    rig.succeeds(ticket);
    assert!(rig.on_device(0, 1 << 20) == device, "a byte of the device is wrong");
    rig.is_clean();
}

#[test]
fn every_way_brings_every_byte() {
    for path in CopyPath::ALL {
        let mut rig = with_path(path, |_| ());
        check_round_trip(&mut rig);
        let paths = rig.device.stats().paths;
        let counts = |count: kvo_cuda::PathCount| (count.copies, count.calls);
        let expected = match path {
            CopyPath::Memcpy => [(46, 46), (0, 0), (0, 0), (0, 0)],
            // Few copies are not worth a batch, which is the next best.
            CopyPath::Rows => [(6, 6), (40, 2), (0, 0), (0, 0)],
            CopyPath::Batch => [(0, 0), (0, 0), (46, 2), (0, 0)],
            CopyPath::Kernel => [(0, 0), (0, 0), (0, 0), (46, 2)],
        };
        let ways = [paths.memcpy, paths.rows, paths.batch, paths.kernel];
        assert_eq!(ways.map(counts), expected, "{path:?}");
        assert_eq!(ways.map(|way| way.bytes).iter().sum::<u64>(), 2 * (20 * PAGE + 418));
    }
}

#[test]
fn a_copy_longer_than_a_window_goes_in_parts_and_comes_whole() {
    let small = CudaOptions { window_bytes: 10_000, quantum_bytes: 7_001, ..options() };
    let mut rig = Rig::with(small, |_| ());
    let after = rig.passed();
    rig.fill_device(0, &pattern(2, SLOT_BYTES));
    let store = rig.submit(rig.one_slot(TransferClass::Store, 0, after));
    rig.succeeds(store);
    assert_eq!(rig.slot(0), pattern(2, SLOT_BYTES));
    assert_eq!(rig.device.stats().paths.memcpy.copies, 10);
}

/// B46: no transfer spans two registrations.
#[test]
fn rows_do_not_cross_a_border_of_registrations() {
    let options = CudaOptions { table: Some(favour(CopyPath::Rows)), registration_bytes: 1, ..options() };
    let mut rig = Rig::with(options, |_| ());
    let after = rig.passed();
    // The same place of eight slots: rows, if it were not for the borders.
    let ops = (0..8).map(|slot| rig.op(u64::from(slot) * 4096, slot, 512, 1024)).collect();
    rig.fill_device(0, &pattern(3, 1 << 16));
    let ticket = rig.submit(Transfer::new(TransferClass::Store, ops, after));
    rig.succeeds(ticket);
    for slot in 0..8 {
        assert_eq!(rig.slot(slot)[512..1536], pattern(3, 1 << 16)[slot as usize * 4096..][..1024]);
    }
    assert_eq!(rig.device.stats().paths.rows.calls, 0);
}

#[test]
fn a_refused_batch_goes_again_one_by_one_and_is_the_last() {
    for member in [0, 5, 22] {
        let mut rig = with_path(CopyPath::Batch, |fake| fake.fail_batch(member, 1));
        check_round_trip(&mut rig);
        let paths = rig.device.stats().paths;
        assert_eq!(paths.batch_use, PathUse::Refused { code: DriverCode(1) });
        assert_eq!((paths.batch.calls, paths.memcpy.copies), (1, 46));
    }
}

#[test]
fn refused_rows_go_again_one_by_one_and_are_the_last() {
    let mut rig = with_path(CopyPath::Rows, |fake| fake.fail_calls("cuMemcpy2DAsync_v2", 1, 1, 1));
    check_round_trip(&mut rig);
    let paths = rig.device.stats().paths;
    assert_eq!(paths.rows_use, PathUse::Refused { code: DriverCode(1) });
    assert_eq!((paths.rows.calls, paths.memcpy.copies), (1, 46));
}

#[test]
fn a_refused_launch_goes_again_one_by_one_and_is_the_last() {
    let mut rig = with_path(CopyPath::Kernel, |fake| fake.fail_calls("cuLaunchKernel", 1, 1, 701));
    check_round_trip(&mut rig);
    let paths = rig.device.stats().paths;
    assert_eq!(paths.kernel_use, PathUse::Refused { code: DriverCode(701) });
    assert_eq!((paths.kernel.calls, paths.memcpy.copies), (1, 46));
}

#[test]
fn a_driver_that_cannot_compile_the_kernel_copies_without() {
    for (call, code) in [("cuModuleLoadData", 222), ("cuModuleGetFunction", 500)] {
        let mut rig = with_path(CopyPath::Kernel, |fake| fake.fail_calls(call, 1, 1, code));
        assert_eq!(rig.device.stats().paths.kernel_use, PathUse::Refused { code: DriverCode(code) });
        assert_eq!(rig.fake.counts().modules, 0);
        check_round_trip(&mut rig);
    }
}

#[test]
fn a_device_that_does_not_take_host_addresses_gets_its_own() {
    for path in [CopyPath::Batch, CopyPath::Kernel] {
        let mut rig = with_path(path, |fake| fake.set_attribute(0, 91, 0));
        check_round_trip(&mut rig);
        let paths = rig.device.stats().paths;
        assert_eq!(paths.batch.calls + paths.kernel.calls, 2);
    }
}

/// A tensor that is mapped from several allocations, as `PyTorch`'s expandable segments are. The fake refuses copies that
/// leave one; nobody but a test knows where they end.
#[test]
fn memory_of_allocations_side_by_side_is_one_region_for_every_way() {
    const PART: usize = 40 << 10;
    for path in CopyPath::ALL {
        let mut rig = with_path(path, |_| ());
        let after = rig.passed();
        let base = rig.fake.allocate_side_by_side(0, PART as u64, 6).unwrap();
        // Neither side of the region is one of an allocation.
        let (skipped, bytes) = (1000, 6 * PART - 1500);
        rig.region = rig.device.attach(span(base + skipped as u64, bytes, 0)).unwrap();
        let whole = pattern(9, 6 * PART);
        for (part, pattern) in whole.chunks(PART).enumerate() {
            assert!(rig.fake.write_device(base + (part * PART) as u64, pattern));
        }
        // A run over two borders, and pages at constant steps over several.
        let mut ops = vec![rig.op(100, 0, 0, SLOT_BYTES as u64)];
        ops.extend((0..20).map(|nth| rig.op(5000 + nth * 4000, 1, nth * PAGE, PAGE)));
        let ticket = rig.submit(Transfer::new(TransferClass::Store, ops, after));
        rig.succeeds(ticket);
        assert!(rig.slot(0) == whole[skipped + 100..][..SLOT_BYTES], "{path:?}");
        for nth in 0..20 {
            let page = usize::try_from(PAGE).unwrap();
            assert!(
                rig.slot(1)[nth * page..][..page] == whole[skipped + 5000 + nth * 4000..][..page],
                "{path:?}"
            );
        }
        // And back, a slot further.
        let load = vec![rig.op(100 + SLOT_BYTES as u64, 0, 0, SLOT_BYTES as u64)];
        let ticket = rig.submit(Transfer::new(TransferClass::Demand, load, after));
        rig.succeeds(ticket);
        let mut expected = whole.clone();
        expected.copy_within(skipped + 100..skipped + 100 + SLOT_BYTES, skipped + 100 + SLOT_BYTES);
        for (part, expected) in expected.chunks(PART).enumerate() {
            let mut found = vec![0; PART];
            assert!(rig.fake.read_device(base + (part * PART) as u64, &mut found));
            assert!(found == expected, "part {part}, {path:?}");
        }
        let paths = rig.device.stats().paths;
        let calls = [paths.memcpy, paths.rows, paths.batch, paths.kernel].map(|way| way.calls);
        assert!(calls[path as usize] > 0, "{calls:?}");
        let uses = [paths.rows_use, paths.batch_use, paths.kernel_use];
        assert!(uses.iter().all(|used| !matches!(used, PathUse::Refused { .. })), "{uses:?}");
        rig.is_clean();
    }
}

/// Whichever device of the process has registered the memory.
#[test]
fn each_device_knows_registered_memory_by_its_own_address() {
    for others in [[1, 0], [0, 1], [0, 0]] {
        for path in [CopyPath::Batch, CopyPath::Kernel] {
            let fake = fake();
            let contexts = [0, 1].map(|ordinal| cudarc::driver::CudaContext::new(ordinal).unwrap());
            for (device, takes) in [0, 1].into_iter().zip(others) {
                fake.set_attribute(device, 91, takes);
            }
            let host = host_memory(NUM_SLOTS, SLOT_BYTES);
            let first = CudaDevice::new(options(), host.clone()).unwrap();
            let second = CudaDevice::new(CudaOptions { ordinal: 1, ..with(path) }, host.clone()).unwrap();
            assert_eq!(fake.counts().registrations, 1 + u64::from(path == CopyPath::Kernel));
            let [_context, context] = contexts;
            let mut rig = Rig::around(second, host, context, fake);
            check_round_trip(&mut rig);
            let paths = rig.device.stats().paths;
            assert_eq!(paths.batch.calls + paths.kernel.calls, 2);
            drop(first);
        }
    }
}

/// Launches that have not run keep their lists; with none left, copies go another way.
#[test]
fn launches_use_no_list_that_another_may_still_read() {
    let small = CudaOptions { quantum_bytes: 1600, ..options() };
    let kernel = CudaOptions { table: Some(favour(CopyPath::Kernel)), kernel_ctas: 2, ..small };
    let mut rig = Rig::with(kernel, |_| ());
    let after = rig.passed();
    rig.fake.hold(Hold::All);
    rig.fill_device(0, &pattern(6, SLOT_BYTES));
    // 40 pieces of 16 copies, of which none is a row of the next.
    let ops = (0..640).map(|nth| rig.op(nth * 100, 0, (nth ^ 1) * 100, 100)).collect();
    let ticket = rig.submit(Transfer::new(TransferClass::Store, ops, after));
    crate::rig::until(|| {
        let paths = rig.device.stats().paths;
        paths.kernel.copies + paths.memcpy.copies == 640
    });
    assert_eq!(rig.device.stats().paths.kernel.calls, 32);
    rig.fake.release(Hold::All);
    rig.succeeds(ticket);
    let slot = rig.slot(0);
    for nth in 0..640 {
        assert_eq!(slot[(nth ^ 1) * 100..][..100], pattern(6, SLOT_BYTES)[nth * 100..][..100], "{nth}");
    }
    // And again, all of them free.
    let ops = (0..16).map(|nth| rig.op(nth * 100, 1, (nth ^ 1) * 100, 100)).collect();
    let ticket = rig.submit(Transfer::new(TransferClass::Store, ops, after));
    rig.succeeds(ticket);
    assert_eq!(rig.device.stats().paths.kernel.calls, 33);
    rig.is_clean();
}

#[test]
fn a_batch_has_few_enough_members() {
    let mut rig = with_path(CopyPath::Batch, |_| ());
    let after = rig.passed();
    let ops = (0..1500).map(|nth| rig.op(nth * 100, 0, nth * 40, 30)).collect();
    let ticket = rig.submit(Transfer::new(TransferClass::Prefetch, ops, after));
    rig.succeeds(ticket);
    assert_eq!(rig.device.stats().paths.batch.calls, 2);
    assert_eq!(rig.fake.counts().batch_members, 1500);
}

#[test]
fn the_ways_are_measured_once_for_a_kind_of_device() {
    let rig = Rig::with(CudaOptions { table: None, ..options() }, |_| ());
    let first = rig.device.stats().paths.table;
    assert_eq!(first.source, TableSource::Measured);
    let registered = rig.fake.calls("cuMemHostRegister_v2");
    let second = CudaDevice::new(CudaOptions { table: None, ..options() }, host_memory(2, 4096));
    assert_eq!(second.unwrap().stats().paths.table, first);
    assert_eq!(rig.fake.calls("cuMemHostRegister_v2"), registered + 1, "nothing was measured again");
    rig.is_clean();
}

/// On the second device, whose ways no other test has measured.
#[test]
fn a_launch_that_is_refused_while_it_is_measured_leaves_nothing() {
    let measured = CudaOptions { ordinal: 1, table: None, kernel_ctas: 4, ..options() };
    let rig = Rig::with(measured, |fake| fake.fail_calls("cuLaunchKernel", 1, 1, 701));
    if rig.fake.calls("cuLaunchKernel") == 0 {
        eprintln!(
            "SKIPPED: the machine was so busy that the time to measure was over before the first launch"
        );
        return;
    }
    assert_eq!(rig.device.stats().paths.table.source, TableSource::Published);
    assert_eq!(rig.device.stats().paths.kernel_use, PathUse::On);
    let Rig { device, fake, .. } = rig;
    drop(device);
    assert_eq!((fake.counts().registrations, fake.counts().modules, fake.violations()), (0, 0, vec![]));
}

/// Also run by a device, in a process of its own: see the next test.
#[test]
fn batches_that_work_pass_their_test() {
    let fake = fake();
    let _context = cudarc::driver::CudaContext::new(0).unwrap();
    assert!(!probe().devices().is_empty());
    assert_eq!(test_batches(0), Ok(()));
    assert_eq!(fake.counts().allocations, 0);
    assert_eq!(fake.violations(), []);
}

#[test]
fn batches_are_used_once_a_helper_process_has_tested_them() {
    let arguments = ["--exact", "paths::batches_that_work_pass_their_test"].map(Into::into).to_vec();
    let tested = BatchUse::Tested { program: std::env::current_exe().unwrap(), arguments };
    let table = Some(favour(CopyPath::Batch));
    let mut rig = Rig::with(CudaOptions { table, batches: tested, ..options() }, |_| ());
    assert_eq!(rig.device.stats().paths.batch_use, PathUse::On);
    check_round_trip(&mut rig);

    drop(rig);
    let fails = BatchUse::Tested { program: "false".into(), arguments: Vec::new() };
    let mut rig = Rig::with(CudaOptions { table, batches: fails, ..options() }, |_| ());
    assert_eq!(rig.device.stats().paths.batch_use, PathUse::FailedTest);
    check_round_trip(&mut rig);
    assert_eq!(rig.device.stats().paths.batch.calls, 0);
}

#[test]
fn slots_are_claimed_once_a_piece_however_often_it_names_them() {
    let mut rig = with_path(CopyPath::Memcpy, |_| ());
    let after = rig.passed();
    let ops = (0..64).map(|nth| rig.op(nth * 64, u32::try_from(nth % 2).unwrap(), nth * 64, 64)).collect();
    let ticket = rig.submit(Transfer::new(TransferClass::Store, ops, after));
    rig.succeeds(ticket);
    for slot in 0..2 {
        kvo_core::HostMemory::with_write(&*rig.host, SlotId(slot), &mut |_| ()).unwrap();
    }
}
