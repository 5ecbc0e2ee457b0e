//! The suite over a GPU's device, on a driver for tests.

#[macro_use]
mod support;

use kvo_cuda::CopyPath;
use kvo_fakecuda::{Exclusive, FakeDriver};
use kvo_gpu_check::{BedMaker, Case, CudaBeds, Traffic, cases, controls};

/// The driver for one test alone, and beds of it. What the driver sees that no program may do fails the case.
fn beds() -> (Exclusive, CudaBeds) {
    let fake = FakeDriver::load().expect("cargo builds the library for this test").exclusive();
    let watch = *fake;
    let watch = move || {
        let violations = watch.violations().into_iter().map(|violation| format!("{violation:?}"));
        let mismatches = watch.mismatches().into_iter().map(|mismatch| format!("{mismatch:?}"));
        let leaks = watch.leaks().into_iter().map(|leak| format!("{leak:?}"));
        let news = violations.chain(mismatches).chain(leaks).collect();
        watch.forget();
        news
    };
    (fake, CudaBeds::new("the fake driver", 0, true).watched(watch))
}

kvo_gpu_check::each_case!(tests);

/// A test for each case and each way of copies.
macro_rules! tests_of_paths {
    ($($group:ident { $($case:ident)* })*) => {
        tests_of_a_path! { by_memcpy [$($($case)*)*] }
        tests_of_a_path! { by_rows [$($($case)*)*] }
        tests_of_a_path! { by_kernel [$($($case)*)*] }
        tests_of_a_path! { by_batch [$($($case)*)*] }
    };
}

macro_rules! tests_of_a_path {
    ($path:ident [$($case:ident)*]) => {
        mod $path {
            $(#[test]
            fn $case() {
                super::check(concat!(stringify!($case), "_", stringify!($path)));
            })*
        }
    };
}

kvo_gpu_check::each_case_of_a_path!(tests_of_paths);

#[track_caller]
fn check(name: &str) {
    let (_fake, beds) = beds();
    let case = Case::named(name).expect("the list has it");
    assert!(case.runs_on(&beds));
    case.run(&beds).unwrap_or_else(|failure| panic!("{failure}"));
}

#[test]
fn a_device_with_a_defect_fails() {
    for control in controls() {
        // A control that kills ends the driver for those behind it.
        let (_fake, beds) = beds();
        control.run(&beds).unwrap_or_else(|error| panic!("{control}: {error}"));
    }
}

#[test]
fn a_hundred_thousand_random_transfers_come_to_the_byte() {
    let (fake, beds) = beds();
    let paths = beds.paths();
    let traffic = Traffic::new(100_000 / paths.len() as u64);
    for path in paths {
        let calls = || {
            let kernels = fake.counts().launches;
            [fake.calls("cuMemcpy2DAsync_v2"), fake.calls("cuMemcpyBatchAsync"), kernels]
        };
        let before = calls();
        let counts = traffic.run_by(&beds, path).unwrap_or_else(|failure| panic!("{failure}"));
        let [rows, batches, kernels] = [0, 1, 2].map(|nth| calls()[nth] - before[nth]);
        eprintln!("{path:?}: {rows} rows, {batches} batches, {kernels} kernels, {counts:?}");
        assert!(counts.transfers == traffic.transfers && counts.marks > 0, "{counts:?}");
        // That it was the way that was wished for.
        let used = match path {
            None | Some(CopyPath::Memcpy) => continue,
            Some(CopyPath::Rows) => rows,
            Some(CopyPath::Batch) => batches,
            Some(CopyPath::Kernel) => kernels - counts.fills - counts.checks,
        };
        assert!(used > 300, "{path:?} was used {used} times");
    }
}

#[test]
fn every_case_has_a_test() {
    let (_fake, beds) = beds();
    assert!(beds.paths().len() == 5 && cases().iter().all(|case| case.runs_on(&beds)));
}
