//! Drivers that cannot be used, each in a process of its own.

use std::{process::Command, sync::Arc};

use kvo_core::StableMemory;
use kvo_cuda::{CudaDevice, CudaError, CudaOptions, DriverCode, Probe, probe};
use kvo_fakecuda::FakeDriver;

use crate::rig::host_memory;

/// Says to a process of this binary which driver it is to have.
const CASE: &str = "KVO_TEST_DRIVER";

/// Runs `body` in a process of its own, with a driver that `load` loads, unless this is that process.
#[track_caller]
fn check(test: &str, load: impl FnOnce() -> FakeDriver, expected: impl FnOnce(&Probe)) {
    if std::env::var(CASE).is_ok_and(|case| case == test) {
        load();
        expected(probe());
        let host: Arc<dyn StableMemory> = host_memory(2, 4096);
        let error = CudaDevice::new(CudaOptions::new(0), host).unwrap_err();
        assert!(matches!(&error, CudaError::Unavailable(found) if found == probe()), "{error}");
        return;
    }
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(CASE, test)
        .output()
        .unwrap();
    let said = [child.stdout, child.stderr].concat();
    assert!(child.status.success(), "{}", String::from_utf8_lossy(&said));
}

#[test]
fn a_driver_that_lacks_a_function_is_too_old() {
    let load = || FakeDriver::load_without(&["cuStreamWaitEvent"]).unwrap();
    check("driver::a_driver_that_lacks_a_function_is_too_old", load, |found| {
        let lacks = Probe::DriverTooOld { version: 0, missing: Some("cuStreamWaitEvent") };
        assert_eq!(found, &lacks);
    });
}

#[test]
fn a_driver_of_an_old_version_is_too_old() {
    let load = || {
        let fake = FakeDriver::load().unwrap();
        fake.set_driver_version(11_020);
        fake
    };
    check("driver::a_driver_of_an_old_version_is_too_old", load, |found| {
        assert_eq!(found, &Probe::DriverTooOld { version: 11_020, missing: None });
        assert_eq!(found.to_string(), "the CUDA driver is too old: it knows CUDA 11.2, not 11.4");
    });
}

#[test]
fn a_driver_without_devices_is_said() {
    let load = || {
        let fake = FakeDriver::load().unwrap();
        fake.set_device_count(0);
        fake
    };
    check("driver::a_driver_without_devices_is_said", load, |found| assert_eq!(found, &Probe::NoDevice));
}

#[test]
fn a_driver_that_does_not_start_is_said() {
    let load = || {
        let fake = FakeDriver::load().unwrap();
        fake.fail_init(803);
        fake
    };
    check("driver::a_driver_that_does_not_start_is_said", load, |found| {
        assert_eq!(found, &Probe::Broken { code: DriverCode(803) });
    });
}

#[test]
fn a_stub_is_no_driver() {
    let load = || {
        let fake = FakeDriver::load().unwrap();
        fake.fail_init(34);
        fake
    };
    check("driver::a_stub_is_no_driver", load, |found| {
        assert!(matches!(found, Probe::NoDriver { .. }), "{found}");
    });
}

#[test]
fn a_code_of_a_newer_driver_is_a_value_like_any_other() {
    let load = || {
        let fake = FakeDriver::load().unwrap();
        fake.fail_init(54_321);
        fake
    };
    check("driver::a_code_of_a_newer_driver_is_a_value_like_any_other", load, |found| {
        assert_eq!(found, &Probe::Broken { code: DriverCode(54_321) });
    });
}

/// Without what is optional, a device does all that it did, one copy a call.
#[test]
fn a_driver_that_lacks_what_is_optional_works() {
    const TEST: &str = "driver::a_driver_that_lacks_what_is_optional_works";
    if std::env::var(CASE).is_ok_and(|case| case == TEST) {
        let optional =
            ["cuMemcpy2DAsync_v2", "cuMemcpyBatchAsync", "cuGetProcAddress_v2", "cuDeviceGetPCIBusId"];
        FakeDriver::load_without(&optional).unwrap();
        let host: Arc<dyn StableMemory> = host_memory(2, 4096);
        let options = CudaOptions { batches: kvo_cuda::BatchUse::Trusted, ..CudaOptions::new(0) };
        let paths = CudaDevice::new(options, host).unwrap().stats().paths;
        let missing = kvo_cuda::PathUse::Missing;
        assert_eq!((paths.rows_use, paths.batch_use), (missing, missing));
        return;
    }
    check(TEST, || unreachable!("the child returned before"), |_| ());
}
