//! What an error means: for the slot that it happened to, and for the store. `docs/ERRORS.md` has the same as a table,
//! and a test compares the two.

use std::io;

use rustix::io::Errno;

use crate::engine::Fault;

/// What was being done when an error came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Task {
    /// A chunk was read.
    Read,
    /// A chunk was written.
    Write,
    /// Records or a superblock were written.
    Index,
    /// A file was synced.
    Sync,
}

/// What an error means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub(crate) slot: SlotVerdict,
    pub(crate) store: StoreVerdict,
    /// Whether what was written before may never reach the device, whatever a later sync says: the kernel tells of
    /// lost pages once, and forgets them.
    pub(crate) durability_lost: bool,
}

/// What an error means for the slot of the file that it happened to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SlotVerdict {
    /// Nothing: a chunk that could not be read stays, a slot that could not be written is free again.
    Kept,
    /// Its bytes are not those that were written. The chunk is dropped; the slot is free again the first time, and
    /// quarantined the second.
    Strike,
    /// It is broken. The chunk is dropped, the slot quarantined.
    Quarantine,
}

/// What an error means for the whole store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StoreVerdict {
    /// Nothing.
    Nothing,
    /// An error of the device, one of so many that open the breaker.
    Count,
    /// Nothing can be written for now.
    ReadOnly,
    /// The device or its files are gone: the breaker opens at once.
    Open,
}

impl Verdict {
    /// Whether a chunk whose write ended so is worth one more try, in another slot.
    pub(crate) fn write_again(self) -> bool {
        self.slot != SlotVerdict::Kept
    }

    /// Whether it tells nothing about the disk.
    pub(crate) fn is_of_the_host(self) -> bool {
        let nothing = Self { slot: SlotVerdict::Kept, store: StoreVerdict::Nothing, durability_lost: false };
        self == nothing
    }
}

/// What a chunk's fault means. What was worth a second try has had it: an engine does that itself.
pub(crate) fn classify(task: Task, fault: &Fault) -> Verdict {
    match fault {
        Fault::Io(error) => classify_io(task, error),
        Fault::Checksum { .. } => verdict(task, Kind::WrongBytes),
        Fault::Memory(_) | Fault::Engine(_) => verdict(task, Kind::Host),
        // No fault of the disk, but as far as chunks go the device is gone.
        Fault::Ended(_) => verdict(task, Kind::Gone),
        Fault::Late => verdict(task, Kind::Slow),
        Fault::Record(error) => classify_io(Task::Index, error),
    }
}

/// What an error of the system means.
pub(crate) fn classify_io(task: Task, error: &io::Error) -> Verdict {
    verdict(task, kind_of(error))
}

/// Errors that mean the same: the rows of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Tried again by the engine already, in vain.
    Transient,
    /// The medium failed there.
    Medium,
    /// A transfer came to nothing without an error.
    Stopped,
    /// The file ends too early, or its bytes are other ones.
    WrongBytes,
    /// There is room or permission to read only.
    NoRoom,
    /// The device, the file or the right to it is gone.
    Gone,
    /// No answer in time, or none over the link.
    Slow,
    /// The process or the kernel, not the disk.
    Host,
    Unknown,
}

fn verdict(task: Task, kind: Kind) -> Verdict {
    let (slot, store) = match kind {
        Kind::Transient | Kind::Slow => (SlotVerdict::Kept, StoreVerdict::Count),
        Kind::Medium | Kind::Stopped => (SlotVerdict::Quarantine, StoreVerdict::Count),
        // Someone has cut or changed the file, or a write was lost without a word. The device answers, so it is not
        // counted: each wrong chunk is a miss and the others stay hits, however many there are.
        Kind::WrongBytes => (SlotVerdict::Strike, StoreVerdict::Nothing),
        Kind::NoRoom if task == Task::Read => (SlotVerdict::Kept, StoreVerdict::Count),
        Kind::NoRoom => (SlotVerdict::Kept, StoreVerdict::ReadOnly),
        Kind::Gone => (SlotVerdict::Kept, StoreVerdict::Open),
        Kind::Host => (SlotVerdict::Kept, StoreVerdict::Nothing),
        // Dropped, so that no key fails for ever; not quarantined, as it may be no fault of the slot.
        Kind::Unknown => (SlotVerdict::Strike, StoreVerdict::Count),
    };
    let has_slot = matches!(task, Task::Read | Task::Write);
    Verdict {
        slot: if has_slot { slot } else { SlotVerdict::Kept },
        store,
        durability_lost: task == Task::Sync,
    }
}

fn kind_of(error: &io::Error) -> Kind {
    if let Some(errno) = Errno::from_io_error(error) {
        return kind_of_errno(errno);
    }
    // Errors that were made in the process.
    match error.kind() {
        io::ErrorKind::UnexpectedEof => Kind::WrongBytes,
        io::ErrorKind::WriteZero => Kind::Stopped,
        io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock | io::ErrorKind::ResourceBusy => {
            Kind::Transient
        }
        io::ErrorKind::StorageFull
        | io::ErrorKind::QuotaExceeded
        | io::ErrorKind::ReadOnlyFilesystem
        | io::ErrorKind::FileTooLarge => Kind::NoRoom,
        io::ErrorKind::PermissionDenied
        | io::ErrorKind::NotFound
        | io::ErrorKind::StaleNetworkFileHandle
        | io::ErrorKind::NotConnected => Kind::Gone,
        io::ErrorKind::TimedOut => Kind::Slow,
        io::ErrorKind::OutOfMemory => Kind::Host,
        _ => Kind::Unknown,
    }
}

fn kind_of_errno(errno: Errno) -> Kind {
    match errno {
        Errno::INTR | Errno::AGAIN | Errno::BUSY => Kind::Transient,
        // As the block layer and the file systems name a bad sector, wrong protection data, a broken target and a
        // broken structure.
        Errno::IO | Errno::NODATA | Errno::ILSEQ | Errno::REMOTEIO | Errno::BADMSG | Errno::UCLEAN => {
            Kind::Medium
        }
        Errno::NOSPC | Errno::DQUOT | Errno::ROFS | Errno::FBIG => Kind::NoRoom,
        Errno::ACCESS
        | Errno::PERM
        | Errno::BADF
        | Errno::NOENT
        | Errno::NODEV
        | Errno::NXIO
        | Errno::NOMEDIUM
        | Errno::STALE
        | Errno::NOTCONN
        | Errno::SHUTDOWN => Kind::Gone,
        Errno::TIMEDOUT | Errno::NOLINK | Errno::BADE => Kind::Slow,
        Errno::NOMEM | Errno::NOBUFS | Errno::FAULT | Errno::MFILE | Errno::NFILE | Errno::CANCELED => {
            Kind::Host
        }
        _ => Kind::Unknown,
    }
}
