//! `docs/ERRORS.md` says what the code does.

use std::io;

use kvo_core::{SlotAccessError, SlotId};
use rustix::io::Errno;

use super::*;
use crate::engine::Fault;

const DOCS: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/ERRORS.md"));
const TASKS: [Task; 4] = [Task::Read, Task::Write, Task::Index, Task::Sync];

/// Every error with a name.
const ERRNOS: [(&str, Errno); 33] = [
    ("EINTR", Errno::INTR),
    ("EAGAIN", Errno::AGAIN),
    ("EBUSY", Errno::BUSY),
    ("EIO", Errno::IO),
    ("ENODATA", Errno::NODATA),
    ("EILSEQ", Errno::ILSEQ),
    ("EREMOTEIO", Errno::REMOTEIO),
    ("EBADMSG", Errno::BADMSG),
    ("EUCLEAN", Errno::UCLEAN),
    ("ENOSPC", Errno::NOSPC),
    ("EDQUOT", Errno::DQUOT),
    ("EROFS", Errno::ROFS),
    ("EFBIG", Errno::FBIG),
    ("EACCES", Errno::ACCESS),
    ("EPERM", Errno::PERM),
    ("EBADF", Errno::BADF),
    ("ENOENT", Errno::NOENT),
    ("ENODEV", Errno::NODEV),
    ("ENXIO", Errno::NXIO),
    ("ENOMEDIUM", Errno::NOMEDIUM),
    ("ESTALE", Errno::STALE),
    ("ENOTCONN", Errno::NOTCONN),
    ("ESHUTDOWN", Errno::SHUTDOWN),
    ("ETIMEDOUT", Errno::TIMEDOUT),
    ("ENOLINK", Errno::NOLINK),
    ("EBADE", Errno::BADE),
    ("ENOMEM", Errno::NOMEM),
    ("ENOBUFS", Errno::NOBUFS),
    ("EFAULT", Errno::FAULT),
    ("EMFILE", Errno::MFILE),
    ("ENFILE", Errno::NFILE),
    ("ECANCELED", Errno::CANCELED),
    ("EINVAL", Errno::INVAL),
];

/// The cells of the table, a line each, without its head.
fn rows() -> Vec<Vec<&'static str>> {
    let (_, table) = DOCS.split_once("## The table").unwrap();
    let (table, _) = table.split_once("## ").unwrap();
    let lines = table.lines().filter(|line| line.starts_with('|')).skip(2);
    lines.map(|line| line.trim_matches('|').split('|').map(str::trim).collect()).collect()
}

/// What the words of a cell mean, and whether `again` is one of them; `None` for what cannot happen.
fn meaning(cell: &str) -> Option<(Verdict, bool)> {
    let nothing = Verdict { slot: SlotVerdict::Kept, store: StoreVerdict::Nothing, durability_lost: false };
    let mut meaning = (nothing, false);
    for word in cell.split(", ").filter(|word| !word.is_empty()) {
        match word {
            "–" => return None,
            "kept" => {}
            "strike" => meaning.0.slot = SlotVerdict::Strike,
            "quarantine" => meaning.0.slot = SlotVerdict::Quarantine,
            "again" => meaning.1 = true,
            "count" => meaning.0.store = StoreVerdict::Count,
            "read-only" => meaning.0.store = StoreVerdict::ReadOnly,
            "open" => meaning.0.store = StoreVerdict::Open,
            "not durable" => meaning.0.durability_lost = true,
            word => panic!("{word:?} is no word of the table"),
        }
        assert!(DOCS.contains(&format!("| {word} | ")), "{word} is explained");
    }
    Some(meaning)
}

fn named(name: &str) -> Errno {
    let found = ERRNOS.iter().find(|(known, _)| *known == name);
    found.unwrap_or_else(|| panic!("{name} is tested")).1
}

/// The faults of a row, by the name that the table gives them.
fn faults(row: &str) -> Vec<Fault> {
    let errno = |errno: Errno| Fault::Io(errno.into());
    match row {
        "the file takes nothing" => vec![Fault::Io(io::ErrorKind::WriteZero.into())],
        "early end of the file" => vec![Fault::Io(io::ErrorKind::UnexpectedEof.into())],
        "wrong checksum" => vec![Fault::Checksum { written: 1, found: 2 }],
        "host memory, engine" => {
            let slot = SlotId(3);
            vec![Fault::Memory(SlotAccessError::OutOfRange { slot, num_slots: 3 }), Fault::Engine("ended")]
        }
        "a thread of the engine has ended" => vec![Fault::Ended("panicked")],
        "any other" => {
            vec![errno(Errno::INVAL), errno(Errno::OPNOTSUPP), Fault::Io(io::Error::other("else"))]
        }
        names => names.split(", ").map(|name| errno(named(name.trim_matches('`')))).collect(),
    }
}

/// B47 and B49: every error at every task.
#[test]
fn the_table_in_the_docs_is_what_the_code_does() {
    let rows = rows();
    assert_eq!(rows.len(), 12, "{rows:#?}");
    let mut checked = 0;
    for row in &rows {
        let [name, cells @ ..] = &row[..] else { panic!("an empty row") };
        assert_eq!(cells.len(), TASKS.len(), "{name}");
        for (task, cell) in TASKS.iter().zip(cells) {
            let Some((verdict, again)) = meaning(cell) else { continue };
            for fault in faults(name) {
                let found = classify(*task, &fault);
                assert_eq!(found, verdict, "{task:?}: {fault}, as the table says {cell:?}");
                if *task == Task::Write {
                    assert_eq!(found.write_again(), again, "{task:?}: {fault}, as the table says {cell:?}");
                }
                checked += 1;
            }
        }
    }
    assert!(checked > 130, "{checked}");
}

#[test]
fn every_error_with_a_name_is_in_the_table() {
    for (name, errno) in ERRNOS {
        let in_table = rows().iter().any(|row| row[0].contains(&format!("`{name}`")));
        assert_eq!(in_table, errno != Errno::INVAL, "{name}");
    }
    // And no other number is treated otherwise than as unknown.
    for number in 1..200 {
        let errno = Errno::from_raw_os_error(number);
        if ERRNOS.iter().all(|(_, named)| *named != errno) {
            let unknown = classify(Task::Read, &Fault::Io(Errno::INVAL.into()));
            assert_eq!(classify(Task::Read, &Fault::Io(errno.into())), unknown, "{number}");
        }
    }
}

#[test]
fn an_error_that_was_made_in_the_process_means_what_its_number_would() {
    for (_, errno) in ERRNOS {
        let error = io::Error::from(errno);
        let kind = error.kind();
        let made = io::Error::from(kind);
        // What the standard library has no kind for is not told apart.
        if format!("{kind:?}") != "Uncategorized" && kind != io::ErrorKind::Other {
            for task in TASKS {
                let (made, real) = (classify_io(task, &made), classify_io(task, &error));
                assert_eq!(made, real, "{task:?}: {errno:?}, {kind:?}");
            }
        }
    }
}
