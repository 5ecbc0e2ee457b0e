//! What is found in the directories: nothing, a store that was being made, the store that is asked for, or another one.

use std::{fmt::Display, fs::File, io, os::unix::fs::FileExt, path::Path};

use super::{Found, block_start, data_path, index_path, locked::LockedFile};
use crate::{
    FileDamage, IfNoRoom, NvmeOptions, OpenError,
    format::{
        BLOCK_BYTES, Damage, DataHeader, EPOCH_MAX, FORMAT_VERSION, RECORDS_START, StoreId, StoreState,
        Superblock, index_bytes, newest, number_of,
    },
    options::Geometry,
};

/// What is to be done.
#[derive(Debug)]
pub(crate) enum Verdict {
    /// Make a store.
    Make(History),
    /// Take over the store that is there.
    Open(Known),
}

/// What a new store must come after.
#[derive(Clone, Debug)]
pub(crate) struct History {
    /// Of the first superblock.
    pub(crate) sequence: u64,
    /// Where to write it: not over the newest one that is there.
    pub(crate) block: usize,
    /// The superblock of a store whose making goes on.
    pub(crate) unfinished: Option<Superblock>,
}

/// A store that agrees with the options and with itself.
#[derive(Debug)]
pub(crate) struct Known {
    /// Its newest superblock. If the other one is damaged, that may have been newer: then this one is of the epoch
    /// that it may have had, and not clean.
    pub(crate) superblock: Superblock,
    pub(crate) block: usize,
    pub(crate) superblock_damaged: bool,
    pub(crate) geometry: Geometry,
}

impl Found {
    /// What a store that is made over this must come after.
    pub(crate) fn history(&self) -> History {
        let newest = self.superblocks().and_then(|blocks| newest(blocks).ok());
        let Some((superblock, block)) = newest else {
            return History { sequence: 1, block: 0, unfinished: None };
        };
        History { sequence: superblock.sequence + 1, block: 1 - block, unfinished: None }
    }

    /// The two superblocks, if there is an index.
    pub(crate) fn superblocks(&self) -> Option<[Result<Superblock, Damage>; 2]> {
        let index = self.index.as_ref()?;
        Some([0, 1].map(|block| read_superblock(&index.file, block)))
    }
}

/// The superblock in one of the two blocks of an index.
pub(crate) fn read_superblock(index: &File, block: usize) -> Result<Superblock, Damage> {
    read_block(index, block_start(block)).and_then(|bytes| Superblock::decode(&bytes))
}

/// A block as it is in the file; zeros behind its end.
pub(crate) fn read_block(file: &File, offset: u64) -> Result<[u8; BLOCK_BYTES], Damage> {
    let mut bytes = [0; BLOCK_BYTES];
    let mut len = 0;
    while len < BLOCK_BYTES {
        match file.read_at(&mut bytes[len..], offset + len as u64) {
            Ok(0) => break,
            Ok(count) => len += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => {
                tracing::warn!(%error, offset, "a block cannot be read");
                return Err(Damage::Unreadable);
            }
        }
    }
    Ok(bytes)
}

/// Judges what was found.
///
/// # Errors
/// [`OpenError::Other`] and [`OpenError::Damaged`] for what is not the store of `options`; nothing is written.
pub(crate) fn judge(found: &Found, options: &NvmeOptions, geometry: &Geometry) -> Result<Verdict, OpenError> {
    let (Some(index), Some(blocks)) = (&found.index, found.superblocks()) else {
        return judge_without_index(found, options);
    };
    if let Some(version) = blocks.iter().find_map(|block| match block {
        Err(Damage::Version(version)) => Some(*version),
        _ => None,
    }) {
        return Err(other(&index.path, "format version", version, FORMAT_VERSION));
    }
    let ids = blocks.each_ref().map(|block| block.as_ref().ok().map(|superblock| superblock.id));
    let superblock_damaged = blocks.iter().any(Result::is_err);
    match newest(blocks) {
        Err(damages) => {
            judge_without_superblock(found, index, damages).map(|()| Verdict::Make(found.history()))
        }
        Ok((superblock, _)) if superblock.state == StoreState::Creating => {
            check_unfinished(found, &superblock, ids)?;
            Ok(Verdict::Make(History { unfinished: Some(superblock), ..found.history() }))
        }
        Ok((superblock, block)) => {
            let geometry = compare(&superblock, index, options, geometry)?;
            check_length(index, index_bytes(superblock.num_slots))?;
            check_data(found, options, &superblock, &geometry)?;
            let superblock = if superblock_damaged { as_if_lost(&superblock) } else { superblock };
            check_epochs(index, &superblock, superblock_damaged)?;
            Ok(Verdict::Open(Known { superblock, block, superblock_damaged, geometry }))
        }
    }
}

/// Checks that there is an epoch for this opening: two, if both superblocks are written again.
fn check_epochs(index: &LockedFile, superblock: &Superblock, is_one_damaged: bool) -> Result<(), OpenError> {
    let last = EPOCH_MAX - 1 - u64::from(is_one_damaged);
    if superblock.epoch <= last {
        return Ok(());
    }
    Err(other(&index.path, "epoch", superblock.epoch, format!("at most {last}")))
}

/// The superblock as it must be understood when the other one is damaged, which may have been the next.
///
/// That one was of the same epoch or of the next one, whose records count then. What this one says of the eviction order
/// may be out of date.
pub(crate) fn as_if_lost(superblock: &Superblock) -> Superblock {
    let epoch = superblock.epoch + 1;
    Superblock { epoch, state: StoreState::Open, order_slots: 0, order_sum: 0, ..superblock.clone() }
}

/// The index is made first, so data without one was left by something else.
fn judge_without_index(found: &Found, options: &NvmeOptions) -> Result<Verdict, OpenError> {
    match found.data.iter().flatten().next() {
        None => Ok(Verdict::Make(found.history())),
        Some(data) => {
            let index = index_path(&options.dirs[0]);
            Err(other(&data.path, "index file", "not there", format!("{}", index.display())))
        }
    }
}

/// Neither superblock is one: an index that was just being made, or damage.
///
/// The first superblock is on the device before the index gets its length and before any data file is made.
fn judge_without_superblock(found: &Found, index: &LockedFile, [a, b]: [Damage; 2]) -> Result<(), OpenError> {
    let begun = |damage| matches!(damage, Damage::Empty | Damage::Checksum);
    let is_short = index.len()? < RECORDS_START;
    if is_short && begun(a) && begun(b) && found.data.iter().all(Option::is_none) {
        return Ok(());
    }
    Err(OpenError::Damaged { path: index.path.clone(), damage: FileDamage::Superblocks(a, b) })
}

/// Checks that the data files are those of the store that was being made, or of the one that was there before.
fn check_unfinished(
    found: &Found,
    superblock: &Superblock,
    ids: [Option<StoreId>; 2],
) -> Result<(), OpenError> {
    for data in found.data.iter().flatten() {
        let bytes = read_block(&data.file, 0);
        let other_id = match bytes.and_then(|bytes| DataHeader::decode(&bytes)) {
            Err(Damage::Empty) => continue,
            Ok(header) if ids.contains(&Some(header.id)) => continue,
            Ok(header) => header.id.to_string(),
            Err(damage) => format!("unknown: {damage}"),
        };
        return Err(other(&data.path, "store", other_id, superblock.id));
    }
    Ok(())
}

/// Compares what the store was made with to the options; the geometry that it has.
fn compare(
    superblock: &Superblock,
    index: &LockedFile,
    options: &NvmeOptions,
    geometry: &Geometry,
) -> Result<Geometry, OpenError> {
    let check = |field, found: u64, wanted: u64| {
        if found == wanted { Ok(()) } else { Err(other(&index.path, field, found, wanted)) }
    };
    check("dirs", superblock.num_devices.into(), geometry.num_devices.into())?;
    check("chunk_bytes", superblock.chunk_bytes, geometry.chunk_bytes as u64)?;
    check("checksum", superblock.checksum_kind.into(), number_of(options.checksum).into())?;
    if superblock.fingerprint != options.fingerprint {
        let (found, wanted) = (hex(&superblock.fingerprint), hex(&options.fingerprint));
        return Err(other(&index.path, "fingerprint", found, wanted));
    }
    // A store that was made smaller for want of room is as large as it is.
    let is_shrunk = options.if_no_room == IfNoRoom::Shrink && superblock.asked_slots == geometry.capacity;
    if !is_shrunk {
        check("capacity_chunks", superblock.num_slots.into(), geometry.capacity.into())?;
    }
    superblock
        .geometry()
        .ok_or_else(|| other(&index.path, "num_slots", superblock.num_slots, "as many as files can hold"))
}

fn check_data(
    found: &Found,
    options: &NvmeOptions,
    superblock: &Superblock,
    geometry: &Geometry,
) -> Result<(), OpenError> {
    for ((device, file), dir) in (0..).zip(&found.data).zip(&options.dirs) {
        check_data_file(file.as_ref(), dir, superblock, geometry, device)?;
    }
    Ok(())
}

/// Checks that the data file in `dir` is that of `device`, and whole.
pub(crate) fn check_data_file(
    file: Option<&LockedFile>,
    dir: &Path,
    superblock: &Superblock,
    geometry: &Geometry,
    device: u32,
) -> Result<(), OpenError> {
    let Some(file) = file else {
        return Err(OpenError::Damaged { path: data_path(dir), damage: FileDamage::Missing });
    };
    let bytes = geometry.file_bytes(device);
    if file.len()? < BLOCK_BYTES as u64 {
        check_length(file, bytes)?;
    }
    check_header(file, &header_of(superblock, geometry, device))?;
    check_length(file, bytes)
}

/// The header of the data file of `device`.
pub(crate) fn header_of(superblock: &Superblock, geometry: &Geometry, device: u32) -> DataHeader {
    DataHeader {
        id: superblock.id,
        device,
        num_devices: geometry.num_devices,
        stride_bytes: geometry.stride_bytes,
        num_slots: geometry.slots_of(device),
    }
}

fn check_header(file: &LockedFile, wanted: &DataHeader) -> Result<(), OpenError> {
    let header = match read_block(&file.file, 0).and_then(|bytes| DataHeader::decode(&bytes)) {
        Ok(header) => header,
        Err(Damage::Version(version)) => {
            return Err(other(&file.path, "format version", version, FORMAT_VERSION));
        }
        Err(damage) => {
            return Err(OpenError::Damaged { path: file.path.clone(), damage: FileDamage::Header(damage) });
        }
    };
    if header.id != wanted.id {
        return Err(other(&file.path, "store", header.id, wanted.id));
    }
    for (field, found, wanted) in [
        ("device", header.device.into(), wanted.device.into()),
        ("number of devices", header.num_devices.into(), wanted.num_devices.into()),
        ("stride", header.stride_bytes, wanted.stride_bytes),
        ("number of slots", header.num_slots.into(), wanted.num_slots.into()),
    ] as [(_, u64, u64); 4]
    {
        if found != wanted {
            return Err(other(&file.path, field, found, wanted));
        }
    }
    Ok(())
}

pub(crate) fn check_length(file: &LockedFile, made_bytes: u64) -> Result<(), OpenError> {
    let found_bytes = file.len()?;
    if found_bytes == made_bytes {
        return Ok(());
    }
    let damage = FileDamage::Length { found_bytes, made_bytes };
    Err(OpenError::Damaged { path: file.path.clone(), damage })
}

pub(crate) fn other(
    path: &Path,
    field: &'static str,
    found: impl Display,
    wanted: impl Display,
) -> OpenError {
    OpenError::Other { path: path.to_path_buf(), field, found: found.to_string(), wanted: wanted.to_string() }
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a string does not fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}
