//! A new store, step by step, so that a loss of power after any of them leaves what the next opening finishes.

use std::{
    fs, mem,
    path::{Path, PathBuf},
    time::{SystemTime, UNIX_EPOCH},
};

use super::{
    DataFile, Found, Index, Made, OpenFiles, data_path, index_path,
    judge::{History, header_of},
    locked::{LockedFile, sync_directory},
    remove,
    space::{AllocateError, Volumes, give_blocks, write_zeroes},
    system::{System, avoid_copy_on_write},
    write_superblock,
};
use crate::{
    IfNoRoom, NvmeOptions, OpenError, Preinit,
    file::write_all_at,
    format::{DATA_START, RECORDS_START, StoreId, StoreState, Superblock, index_bytes, number_of},
    journal::Recovered,
    options::Geometry,
};

/// Makes a store over what was found. None if another one has made files here meanwhile.
///
/// # Errors
/// See [`OpenError`]. Files that were made are removed again; files that were there are not longer than before.
pub(crate) fn create(
    found: Found,
    history: History,
    options: &NvmeOptions,
    geometry: &Geometry,
    system: &dyn System,
) -> Result<Option<OpenFiles>, OpenError> {
    let mut creation = Creation { options, system, made: Vec::new() };
    let made = creation.make_store(found, history, geometry);
    if made.is_err() {
        system.before_step();
        remove(&creation.made);
    }
    made
}

fn first_superblock(
    history: &History,
    options: &NvmeOptions,
    geometry: &Geometry,
) -> Result<Superblock, OpenError> {
    let id = match &history.unfinished {
        Some(begun) => begun.id,
        None => new_id(options)?,
    };
    let created = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Ok(Superblock {
        id,
        sequence: history.sequence,
        epoch: 1,
        chunk_bytes: geometry.chunk_bytes as u64,
        stride_bytes: geometry.stride_bytes,
        num_slots: geometry.capacity,
        asked_slots: options.capacity_chunks,
        num_devices: geometry.num_devices,
        checksum_kind: number_of(options.checksum),
        state: StoreState::Creating,
        fingerprint: options.fingerprint,
        created_s: created.as_secs(),
        written_bytes: 0,
        order_slots: 0,
        order_sum: 0,
    })
}

fn new_id(options: &NvmeOptions) -> Result<StoreId, OpenError> {
    let mut id = [0; 16];
    getrandom::fill(&mut id).map_err(|error| OpenError::Io {
        operation: "draw a name for the store in",
        path: options.dirs[0].clone(),
        source: error.into(),
    })?;
    Ok(StoreId(id))
}

struct Creation<'a> {
    options: &'a NvmeOptions,
    system: &'a dyn System,
    made: Vec<Made>,
}

impl Creation<'_> {
    fn make_store(
        &mut self,
        mut found: Found,
        history: History,
        geometry: &Geometry,
    ) -> Result<Option<OpenFiles>, OpenError> {
        if found.index.is_none() {
            // Empty as yet; but a directory that takes no files is told from a full one.
            found.index = self.make(index_path(&self.options.dirs[0]))?;
        }
        let volumes = Volumes::of(&found, &self.options.dirs, self.system)?;
        let geometry = self.fitting(&volumes, geometry)?;
        let Found { index: Some(index), data } = found else { return Ok(None) };
        let superblock = first_superblock(&history, self.options, &geometry)?;
        let mut superblocks = Superblocks { index, next: superblock, block: history.block };
        // Said on the device before anything else is done.
        self.system.before_step();
        match history.unfinished {
            None => superblocks.write(StoreState::Creating)?,
            // Where it is, and not over the other one: that may be all that knows the store which is emptied, whose name
            // the data files may still have.
            Some(begun) => write_superblock(&superblocks.index, &begun, 1 - superblocks.block)?,
        }
        sync_directory(&self.options.dirs[0])?;
        let lengths = lengths_of(&data)?;
        let data = self.take_data(data)?;
        let geometry = match self.fill_files(&mut superblocks, &data, &volumes, geometry) {
            Ok(geometry) => geometry,
            Err(error) => {
                restore(&data, &lengths);
                return Err(error);
            }
        };
        Ok(Some(self.opened(superblocks, data, geometry)))
    }

    /// The store that there is room for.
    fn fitting(&self, volumes: &Volumes, geometry: &Geometry) -> Result<Geometry, OpenError> {
        match (volumes.check(geometry), self.options.if_no_room) {
            (Ok(()), _) => Ok(*geometry),
            (Err(error), IfNoRoom::Refuse) => Err(error),
            (Err(_), IfNoRoom::Shrink) => volumes.largest_below(geometry),
        }
    }

    fn make(&mut self, path: PathBuf) -> Result<Option<LockedFile>, OpenError> {
        self.system.before_step();
        let Some(file) = LockedFile::make(&path)? else { return Ok(None) };
        match file.file.try_clone() {
            Ok(lock) => self.made.push(Made { path, _lock: lock }),
            Err(source) => {
                let _ = fs::remove_file(&path);
                return Err(file.error("keep the lock of", source));
            }
        }
        Ok(Some(file))
    }

    /// Takes the data files that are there, and makes the others.
    fn take_data(&mut self, found: Vec<Option<LockedFile>>) -> Result<Vec<LockedFile>, OpenError> {
        let options = self.options;
        let mut take = |file: Option<LockedFile>, dir: &Path| {
            if let Some(file) = file {
                return Ok(file);
            }
            let path = data_path(dir);
            // We hold the index, so whoever has made it meanwhile is no store of these directories.
            let file = self.make(path.clone())?.ok_or(OpenError::InUse { path })?;
            avoid_copy_on_write(self.system, &file.file);
            Ok(file)
        };
        found.into_iter().zip(&options.dirs).map(|(file, dir)| take(file, dir)).collect()
    }

    /// All that is left to do once the files are there; the size of the store that there was room for.
    fn fill_files(
        &self,
        superblocks: &mut Superblocks,
        data: &[LockedFile],
        volumes: &Volumes,
        geometry: Geometry,
    ) -> Result<Geometry, OpenError> {
        superblocks.index.keep_private();
        let geometry = self.allocate(&superblocks.index, data, volumes, geometry)?;
        for (device, file) in (0..).zip(data) {
            self.system.before_step();
            file.keep_private();
            let header = header_of(&superblocks.next, &geometry, device).encode();
            write_all_at(&file.file, &header, 0).map_err(|source| file.error("write", source))?;
            if self.options.preinit == Preinit::Full {
                write_zeroes(file, DATA_START, geometry.file_bytes(device))
                    .map_err(|error| error.told(|| volumes.no_room_in(&file.path, &geometry)))?;
            }
            file.sync()?;
        }
        for dir in &self.options.dirs {
            sync_directory(dir)?;
        }
        superblocks.next.num_slots = geometry.capacity;
        // Into both blocks: nobody who finds one of them damaged may take this store for an unfinished one.
        for _ in 0..2 {
            self.system.before_step();
            superblocks.write(StoreState::Open)?;
        }
        Ok(geometry)
    }

    /// Gives all files their blocks; for fewer slots if that is wanted and the room turns out to be less than was said.
    fn allocate(
        &self,
        index: &LockedFile,
        data: &[LockedFile],
        volumes: &Volumes,
        mut geometry: Geometry,
    ) -> Result<Geometry, OpenError> {
        loop {
            let error = match self.allocate_for(index, data, &geometry) {
                Ok(()) => return Ok(geometry),
                Err((AllocateError::Other(error), _)) => return Err(error),
                Err((AllocateError::NoRoom, path)) => volumes.no_room_in(path, &geometry),
            };
            let smaller = geometry.capacity - (geometry.capacity / 16).max(1);
            if self.options.if_no_room == IfNoRoom::Refuse || smaller < geometry.num_devices {
                return Err(error);
            }
            tracing::debug!(%error, capacity = smaller, "less room than the file system said");
            geometry = geometry.with_capacity(smaller);
        }
    }

    fn allocate_for<'f>(
        &self,
        index: &'f LockedFile,
        data: &'f [LockedFile],
        geometry: &Geometry,
    ) -> Result<(), (AllocateError, &'f Path)> {
        let data = || (0..).zip(data).map(|(device, file)| (file, geometry.file_bytes(device)));
        // All that there is too much of goes first: it may be the room for the rest. Old records go with it.
        self.system.before_step();
        let cut = |file: &'f LockedFile, bytes| file.cut(bytes).map_err(|error| (error.into(), &*file.path));
        cut(index, RECORDS_START)?;
        data().try_for_each(|(file, bytes)| cut(file, bytes))?;
        let give = |file: &'f LockedFile, start, bytes| {
            self.system.before_step();
            give_blocks(self.system, file, start, bytes).map_err(|error| (error, &*file.path))
        };
        give(index, RECORDS_START, index_bytes(geometry.capacity))?;
        data().try_for_each(|(file, bytes)| give(file, 0, bytes))
    }

    fn opened(&mut self, superblocks: Superblocks, data: Vec<LockedFile>, geometry: Geometry) -> OpenFiles {
        if geometry.capacity < self.options.capacity_chunks {
            let (asked, capacity) = (self.options.capacity_chunks, geometry.capacity);
            tracing::warn!(asked, capacity, "the store is smaller than asked for: there is too little room");
        }
        let Superblocks { index: LockedFile { file, path }, next, block } = superblocks;
        let superblock = Superblock { sequence: next.sequence - 1, ..next };
        OpenFiles {
            geometry,
            data: data.into_iter().map(|LockedFile { file, path }| DataFile { file, path }).collect(),
            index: Index { file, path, superblock, block: 1 - block },
            direct: false,
            copy_on_write: false,
            recovered: Recovered::default(),
            made: mem::take(&mut self.made),
            clean_again: None,
        }
    }
}

/// The superblocks of an index, written in turns.
struct Superblocks {
    index: LockedFile,
    /// The one to be written next, but for its state.
    next: Superblock,
    /// Where it goes.
    block: usize,
}

impl Superblocks {
    fn write(&mut self, state: StoreState) -> Result<(), OpenError> {
        self.next.state = state;
        write_superblock(&self.index, &self.next, self.block)?;
        self.next.sequence += 1;
        self.block = 1 - self.block;
        Ok(())
    }
}

/// How long the files are that are there.
fn lengths_of(data: &[Option<LockedFile>]) -> Result<Vec<Option<u64>>, OpenError> {
    data.iter().map(|file| file.as_ref().map(LockedFile::len).transpose()).collect()
}

/// Cuts the files to what they were; the error that led here says more than one of this.
fn restore(data: &[LockedFile], lengths: &[Option<u64>]) {
    for (file, &bytes) in data.iter().zip(lengths) {
        if let Some(Err(error)) = bytes.map(|bytes| file.cut(bytes)) {
            tracing::warn!(%error, "the file stays longer than it was");
        }
    }
}
