//! What a tracing subscriber sees.

use std::{fmt::Debug, sync::Mutex};

use tracing::{
    Event, Metadata, Subscriber,
    field::{Field, Visit},
    span::{Attributes, Id, Record},
};

use super::*;

/// Notes the name and the fields of each span.
#[derive(Default)]
struct Notes(Arc<Mutex<Vec<String>>>);

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        use std::fmt::Write;
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

#[test]
fn a_transfer_is_one_span_with_its_size() {
    let notes = Notes::default();
    let lines = Arc::clone(&notes.0);
    tracing::subscriber::with_default(notes, || {
        let (mut device, _slots) = device();
        let after = device.record_fence();
        let two = Transfer { ops: vec![op(0, 0), op(1, 2)], ..store(0, 0, after) };
        device.submit(two).unwrap();
        device.submit(load(1, 3, after)).unwrap();
        all(&mut device);
        assert!(device.submit(store(9, 9, after)).is_err());
    });
    let lines = lines.lock().unwrap();
    assert_eq!(
        *lines,
        ["kvo.cuda.store ticket=0 bytes=32 num_ops=2", "kvo.cuda.load ticket=1 bytes=16 num_ops=1"]
    );
}
