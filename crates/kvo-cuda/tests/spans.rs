//! What a tracing subscriber sees. Alone in its process: whether a span is wanted is remembered for all threads, so
//! tests that run beside this one without a subscriber would take its spans away.

use std::{
    fmt::{Debug, Write},
    sync::{Arc, Mutex, RwLock},
    time::Duration,
};

use kvo_core::{CopyOp, DeviceBackend, HostMemory, SlotAccessError, SlotId, Transfer, TransferClass};
use kvo_cuda::{HostDevice, HostDeviceOptions};
use tracing::{
    Event, Metadata, Subscriber,
    field::{Field, Visit},
    span::{Attributes, Id, Record},
};

/// Notes the name and the fields of each span.
#[derive(Default)]
struct Notes(Arc<Mutex<Vec<String>>>);

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        write!(self.0, " {field}={value:?}").unwrap();
    }
}

impl Subscriber for Notes {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let mut line = Line(span.metadata().name().to_owned());
        span.record(&mut line);
        let mut notes = self.0.lock().unwrap();
        notes.push(line.0);
        Id::from_u64(notes.len() as u64)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, _: &Event<'_>) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// Three slots of 16 bytes.
#[derive(Default)]
struct Slots([RwLock<[u8; 16]>; 3]);

impl HostMemory for Slots {
    fn num_slots(&self) -> u32 {
        3
    }

    fn slot_bytes(&self) -> usize {
        16
    }

    fn with_read(&self, slot: SlotId, read: &mut dyn FnMut(&[u8])) -> Result<(), SlotAccessError> {
        let bytes = self.0[slot.0 as usize].try_read().map_err(|_| SlotAccessError::Busy { slot })?;
        read(&*bytes);
        Ok(())
    }

    fn with_write(&self, slot: SlotId, write: &mut dyn FnMut(&mut [u8])) -> Result<(), SlotAccessError> {
        let mut bytes = self.0[slot.0 as usize].try_write().map_err(|_| SlotAccessError::Busy { slot })?;
        write(&mut *bytes);
        Ok(())
    }
}

#[test]
fn a_transfer_is_one_span_with_its_size() {
    let notes = Notes::default();
    let lines = Arc::clone(&notes.0);
    tracing::subscriber::set_global_default(notes).unwrap();

    let mut device = HostDevice::new(HostDeviceOptions::default(), Arc::new(Slots::default())).unwrap();
    let span = device.alloc(64).unwrap();
    let region = device.attach(span).unwrap();
    let after = device.record_fence(device.compute().point()).unwrap();
    let op =
        |device_offset, slot| CopyOp { region, device_offset, slot: SlotId(slot), slot_offset: 0, bytes: 16 };
    device.submit(Transfer::new(TransferClass::Store, vec![op(0, 0), op(16, 2)], after)).unwrap();
    device.submit(Transfer::new(TransferClass::Prefetch, vec![op(48, 1)], after)).unwrap();
    assert!(device.submit(Transfer::new(TransferClass::Demand, vec![op(64, 1)], after)).is_err());
    device.drain(Duration::from_mins(1)).unwrap();
    drop(device);

    assert_eq!(
        *lines.lock().unwrap(),
        ["kvo.cuda.store ticket=0 bytes=32 num_ops=2", "kvo.cuda.load ticket=1 bytes=16 num_ops=1"]
    );
}
