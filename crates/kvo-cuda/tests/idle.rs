//! What a device costs that has nothing to do. Alone in its process, whose time is measured.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use kvo_core::{CopyOp, DeviceBackend, HostMemory, SlotAccessError, SlotId, Transfer, TransferClass};
use kvo_cuda::{HostDevice, HostDeviceOptions};

/// One slot that nobody looks at.
struct Slot;

impl HostMemory for Slot {
    fn num_slots(&self) -> u32 {
        1
    }

    fn slot_bytes(&self) -> usize {
        16
    }

    fn with_read(&self, _: SlotId, read: &mut dyn FnMut(&[u8])) -> Result<(), SlotAccessError> {
        read(&[0; 16]);
        Ok(())
    }

    fn with_write(&self, _: SlotId, write: &mut dyn FnMut(&mut [u8])) -> Result<(), SlotAccessError> {
        write(&mut [0; 16]);
        Ok(())
    }
}

/// Time that this process was on a processor, over all its threads; `None` where the kernel does not say.
fn time_used() -> Option<Duration> {
    let mut ns = 0;
    for task in std::fs::read_dir("/proc/self/task").ok()? {
        let line = std::fs::read_to_string(task.ok()?.path().join("schedstat")).ok()?;
        ns += line.split(' ').next()?.parse::<u64>().ok()?;
    }
    Some(Duration::from_nanos(ns))
}

/// A kernel, a transfer that waits for it and one that has a deadline, and a stream that waits for both: everybody
/// waits, and nobody looks again and again.
#[test]
fn threads_that_wait_sleep() {
    if time_used().is_none() {
        eprintln!("SKIPPED threads_that_wait_sleep: this kernel does not say how long threads ran");
        return;
    }
    let mut device = HostDevice::new(HostDeviceOptions::default(), Arc::new(Slot)).unwrap();
    let span = device.alloc(64).unwrap();
    let region = device.attach(span).unwrap();
    let second = device.create_stream().unwrap();
    let event = device.create_event();
    let (open, gate) = std::sync::mpsc::channel::<()>();
    device.compute().launch(move |_| _ = gate.recv()).unwrap();
    device.compute().record(event).unwrap();
    second.wait_for(event).unwrap();
    second.launch(|_| ()).unwrap();
    let after = device.record_fence(device.compute().point()).unwrap();
    let op = CopyOp { region, device_offset: 0, slot: SlotId(0), slot_offset: 0, bytes: 16 };
    let transfer = Transfer::new(TransferClass::Store, vec![op], after);
    device.submit(transfer.clone()).unwrap();
    let deadline = Some(Duration::from_mins(1));
    device.submit(Transfer { class: TransferClass::Demand, deadline, ..transfer }).unwrap();

    let before = (Instant::now(), time_used().unwrap());
    let mut done = Vec::new();
    device.wait(Duration::from_secs(1), &mut done);
    let (elapsed, used) = (before.0.elapsed(), time_used().unwrap().saturating_sub(before.1));
    assert!(done.is_empty() && elapsed >= Duration::from_secs(1));
    assert!(used < elapsed / 50, "{used:?} of {elapsed:?}: more than 2 % of a core");
    drop(open);
    device.drain(Duration::from_mins(1)).unwrap();
}
