//! A worker's uploads take their turn, and it leaves nothing behind.

use std::{sync::Arc, time::Duration};

use kvo_core::{ComputePoint, CopyOp, HostMemory, SlotId, StableMemory, Transfer, TransferClass};
use kvo_cpu::{HostRegion, RegionOptions};
use kvo_cuda::{CudaOptions, PathTable};
use kvo_fakecuda::{Exclusive, FakeDriver, Leak};
use kvo_gpu_check::{CudaEngine, CudaWorker, is_model};

fn fake() -> Exclusive {
    FakeDriver::load().expect("cargo builds the library for this test").exclusive()
}

/// Nothing was done that no program may do, and nothing is left but the engine's module, which ends with the context.
#[track_caller]
fn check_clean(fake: FakeDriver) {
    assert_eq!(fake.violations(), []);
    let mut leaks = fake.leaks();
    leaks.retain(|leak| !matches!(leak, Leak::Module(_)));
    assert_eq!(leaks, []);
}

fn numbers(bytes: usize) -> Vec<u8> {
    (0..=250).cycle().take(bytes).collect()
}

#[test]
fn an_upload_waits_for_what_is_on_its_stream() {
    let fake = fake();
    let mut engine = CudaEngine::new(0).unwrap();
    let (address, stream) = (engine.allocate(8).unwrap(), engine.create_stream().unwrap());
    let hold = engine.hold(stream).unwrap();
    let mut bytes = [1, 2, 3];
    engine.upload_on(stream, address + 1, &bytes).unwrap();
    bytes.fill(9);
    engine.upload_on(stream, address + 6, &bytes[..1]).unwrap();
    let mut found = [0; 8];
    engine.download(address, &mut found).unwrap();
    assert_eq!(found, [0xa5; 8]);
    hold.open();
    engine.synchronize(stream).unwrap();
    engine.download(address, &mut found).unwrap();
    assert_eq!(found, [0xa5, 1, 2, 3, 0xa5, 0xa5, 9, 0xa5]);
    assert!(engine.upload_on(stream, address + 6, &[0; 3]).is_err(), "a byte beyond the allocation");
    drop(engine);
    check_clean(*fake);
}

#[test]
fn an_upload_longer_than_what_may_be_under_way_comes_whole() {
    let fake = fake();
    let mut engine = CudaEngine::new(0).unwrap();
    let bytes = numbers((40 << 20) + 77);
    let (address, stream) = (engine.allocate(bytes.len() as u64).unwrap(), engine.create_stream().unwrap());
    engine.upload_on(stream, address, &bytes[..5]).unwrap();
    engine.upload_on(stream, address, &bytes).unwrap();
    engine.synchronize(stream).unwrap();
    let mut found = vec![0; bytes.len()];
    engine.download(address, &mut found).unwrap();
    assert!(found == bytes);
    drop(engine);
    check_clean(*fake);
}

#[test]
fn a_store_has_what_was_uploaded_before_its_fence() {
    let fake = fake();
    let host = Arc::new(HostRegion::anonymous(&RegionOptions::new(2, 4096)).unwrap());
    let memory: Arc<dyn StableMemory> = host.clone();
    let options = CudaOptions { table: Some(PathTable::published()), ..CudaOptions::new(0) };
    let mut worker = CudaWorker::new(options, memory).unwrap();
    assert!(is_model(worker.facts()), "{:?}", worker.facts());
    let (span, stream) = (worker.allocate(4096).unwrap(), worker.create_stream().unwrap());
    let region = worker.device().attach(span).unwrap();
    let bytes = numbers(4096);
    worker.upload_on(stream, span.address(), &bytes).unwrap();
    let after = worker.device().record_fence(ComputePoint::Stream(stream)).unwrap();
    let op = CopyOp { region, device_offset: 0, slot: SlotId(1), slot_offset: 0, bytes: 4096 };
    worker.device().submit(Transfer::new(TransferClass::Store, vec![op], after)).unwrap();
    let mut done = Vec::new();
    worker.device().wait(Duration::from_mins(1), &mut done);
    assert_eq!(done[0].result, Ok(4096));
    host.with_read(SlotId(1), &mut |slot| assert_eq!(slot, bytes)).unwrap();
    assert_eq!(worker.stats().transfers.stores.bytes, 4096);
    drop(worker);
    check_clean(*fake);
}

#[test]
fn a_worker_whose_gpu_broke_fails_every_call_and_ends() {
    let _fake = fake();
    let host = Arc::new(HostRegion::anonymous(&RegionOptions::new(2, 4096)).unwrap());
    let options = CudaOptions { table: Some(PathTable::published()), ..CudaOptions::new(0) };
    let mut worker = CudaWorker::new(options, host).unwrap();
    let (span, stream) = (worker.allocate(64).unwrap(), worker.create_stream().unwrap());
    worker.fault(stream).unwrap();
    worker.synchronize(stream).unwrap_err();
    worker.upload_on(stream, span.address(), &[0; 64]).unwrap_err();
    worker.download(span.address(), &mut [0; 64]).unwrap_err();
    worker.device().attach(span).unwrap_err();
}
