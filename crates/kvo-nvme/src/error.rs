//! Why a store could not be opened, and why a chunk could not be moved by a direct call.

use std::{io, path::PathBuf, time::Duration};

use crate::format::Damage;

/// A store could not be opened. Nothing is left behind: a file that was made for it is removed again, and a store that
/// was there holds what it held, in its order if it was closed. What is refused for what it is, [`Other`](Self::Other) or
/// [`Damaged`](Self::Damaged), is not touched at all. Of what fails later, an opening may be counted, and records that
/// never count be erased; and if the index could not be written, the store may count as not closed.
///
/// Only a store that was to be emptied ([`IfOther::Empty`](crate::IfOther::Empty)) can be gone, if what failed was the
/// making of the new one; then its files keep at most the lengths that they had, and the next opening makes a store
/// there.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// A number that must be at least one is zero.
    #[error("{field} must be at least 1")]
    Zero {
        /// The field of [`NvmeOptions`](crate::NvmeOptions).
        field: &'static str,
    },
    /// A number is larger than the store can use.
    #[error("{field} is {value}, the most is {max}")]
    TooLarge {
        /// The field of [`NvmeOptions`](crate::NvmeOptions).
        field: &'static str,
        /// What was asked for.
        value: u64,
        /// The most there can be.
        max: u64,
    },
    /// There are more devices than chunks.
    #[error("capacity_chunks is {capacity_chunks}, but each of the {num_devices} dirs must hold one")]
    TooFew {
        /// What was asked for.
        capacity_chunks: u32,
        /// Directories that were given.
        num_devices: u32,
    },
    /// Chunks and the slots of the host memory differ in size.
    #[error("chunk_bytes is {chunk_bytes}, but a slot of the host memory has {slot_bytes} bytes")]
    ChunkBytes {
        /// What was asked for.
        chunk_bytes: u64,
        /// Bytes of a slot of the host memory.
        slot_bytes: u64,
    },
    /// The file would be longer than a file can be.
    #[error(
        "{capacity_chunks} chunks of {chunk_bytes} bytes do not fit a file: a chunk must be below 4 GiB, the file's length fit 63 bits"
    )]
    Overflow {
        /// Chunks that were asked for.
        capacity_chunks: u32,
        /// Bytes of each.
        chunk_bytes: u64,
    },
    /// The directory is not there. The store makes none, so that an unmounted disk is noticed.
    #[error("the directory {path:?} does not exist")]
    DirectoryMissing {
        /// The directory.
        path: PathBuf,
    },
    /// Something that is no directory is in its place.
    #[error("{path:?} is not a directory")]
    NotADirectory {
        /// The path.
        path: PathBuf,
    },
    /// The directory or the file may not be written.
    #[error("{path:?} is not writable")]
    NotWritable {
        /// The directory, or the file in it.
        path: PathBuf,
        /// What the system said: no permission, or a read-only file system.
        source: io::Error,
    },
    /// Something that is no regular file has the name of the store's file.
    #[error("{path:?} is not a regular file")]
    NotAFile {
        /// The path.
        path: PathBuf,
    },
    /// A file belongs to another user, who may read and change it at any time.
    #[error("{path:?} belongs to user {owner}, and this process is of user {user}")]
    OtherUser {
        /// The file.
        path: PathBuf,
        /// Whose it is.
        owner: u32,
        /// Who we are.
        user: u32,
    },
    /// A file has other names, so that it is something else too, as a backup by hard links.
    #[error("{path:?} has {num_names} names, and a store's file has one")]
    Linked {
        /// The file.
        path: PathBuf,
        /// How many.
        num_names: u64,
    },
    /// Another store, in this process or another one, has the file open.
    #[error("{path:?} is in use by another store")]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// The same directory was given twice. Each is a device to itself.
    #[error("the directory {path:?} is given twice")]
    SameDirectory {
        /// The directory.
        path: PathBuf,
    },
    /// What is in the directories was made by another version or with other options, or is no store.
    #[error("{path:?} belongs to another store: its {field} is {found}, wanted is {wanted}")]
    Other {
        /// The file that says so.
        path: PathBuf,
        /// What differs: a field of [`NvmeOptions`](crate::NvmeOptions), or of the files.
        field: &'static str,
        /// What the file says.
        found: String,
        /// What it would have to say.
        wanted: String,
    },
    /// A store was to be made where it is already.
    #[error("{path:?} is the index of this store already")]
    Exists {
        /// The index.
        path: PathBuf,
    },
    /// A file of the store is damaged.
    #[error("{path:?} is damaged: {damage}")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        damage: FileDamage,
    },
    /// A file system has too little room for what the store has on it.
    #[error(
        "{path:?} and the store's other files on its file system need {needed_bytes} bytes, of which they have \
         {allocated_bytes}; {available_bytes} bytes are available"
    )]
    NoRoom {
        /// One of the files.
        path: PathBuf,
        /// Bytes that the store's files on this file system need.
        needed_bytes: u64,
        /// Bytes that earlier files of the same names hold already.
        allocated_bytes: u64,
        /// Bytes that the file system had available beyond those.
        available_bytes: u64,
    },
    /// The system refused something else.
    #[error("cannot {operation} {path:?}")]
    Io {
        /// What was tried.
        operation: &'static str,
        /// On which file or directory.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Slots could not be overwritten by a [wipe](crate::Inspection::wipe); all others were, and no chunk is found any more.
    #[error("{num_slots} slots could not be overwritten, the first of them in {path:?}")]
    NotWiped {
        /// The file that the first of them is in.
        path: PathBuf,
        /// How many, in all files.
        num_slots: u32,
        /// What the system said of the first.
        source: io::Error,
    },
    /// There is too little memory for the books of so many slots.
    #[error("there is no memory for the books of {num_slots} slots, about 120 bytes each")]
    Memory {
        /// Slots of the store.
        num_slots: u32,
    },
    /// `io_uring` was asked for, and does not work here.
    #[error("io_uring cannot be used: it was refused to {step}")]
    Uring {
        /// What did not work.
        step: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// An I/O thread could not be started.
    #[error("cannot start I/O thread {index} of {num_threads}")]
    Thread {
        /// The thread that failed, counted from 0.
        index: usize,
        /// Threads that were asked for.
        num_threads: usize,
        /// What the system said.
        source: io::Error,
    },
}

impl OpenError {
    /// Whether it is about what is in the files, so that making a new store in their place is a way out.
    pub(crate) fn is_of_contents(&self) -> bool {
        matches!(self, Self::Other { .. } | Self::Damaged { .. })
    }
}

/// What is wrong with a file of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FileDamage {
    /// Neither superblock can be used.
    #[error("the first superblock: {0}; the second one: {1}")]
    Superblocks(Damage, Damage),
    /// The header of a data file cannot be used.
    #[error("the header: {0}")]
    Header(Damage),
    /// The file is not there.
    #[error("it is missing")]
    Missing,
    /// The file has another length than the store has given it.
    #[error("it is {found_bytes} bytes long, and was made with {made_bytes}")]
    Length {
        /// Bytes that it has.
        found_bytes: u64,
        /// Bytes that it must have.
        made_bytes: u64,
    },
}

/// A direct call could not move a chunk. A chunk that is not there is no error.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChunkError {
    /// The caller's bytes are not one chunk.
    #[error("{given} bytes were given, a chunk has {chunk_bytes}")]
    Length {
        /// Bytes that were given.
        given: usize,
        /// Bytes of a chunk.
        chunk_bytes: usize,
    },
    /// A job is writing the same chunk, or reading one that may not be whole, and how it will end is not known yet.
    #[error("the chunk is being moved by a job")]
    Pending,
    /// The device has failed too often, or cannot be written; it will be tried again. Or the store was shut down.
    #[error("the device has failed too often, or cannot be written")]
    Refused,
    /// Every slot is pinned, being written or quarantined.
    #[error("no slot is free and none can be evicted")]
    NoRoom,
    /// The write failed; the chunk is not in the store.
    #[error("the chunk could not be written")]
    Write(#[source] io::Error),
}

/// A store could not be closed as it should be. It is closed nevertheless, and can be opened again once its files are not
/// locked any more.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CloseError {
    /// The device has not ended with some chunks. Until it has, the memory that it may still touch is not unmapped, and the
    /// files stay locked: at the worst for as long as the process lives.
    #[error("{transfers} transfers have not ended within {waited:?}")]
    Stuck {
        /// Chunks that were taken and have not ended; of a store that uses threads, only those that are with one.
        transfers: usize,
        /// How long they were waited for.
        waited: Duration,
    },
    /// The index could not be written.
    #[error("the index could not be written")]
    Index(#[source] io::Error),
}
