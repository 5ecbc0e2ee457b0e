//! `stat`: what a store is, and what is wrong with it.

use std::{
    io::{self, Write},
    path::PathBuf,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use kvo_nvme::{ChecksumKind, Contents, Inspection, StoreInfo, StoreState};
use serde::Serialize;

use crate::{
    args::StatArgs,
    output::{Outcome, Report, counted, show, write_pairs},
    store::{Damage, damage_of, look, read_records},
    units::{Fingerprint, human},
};

/// A store that is younger has not been written for long enough to tell how much a day that is.
const AGE_MIN: Duration = Duration::from_hours(1);
/// The first second that has no date of four digits for the year.
const DATES_END_S: u64 = 253_402_300_800;

/// A store as it was found.
#[derive(Debug, Serialize)]
pub(crate) struct StatReport {
    dirs: Vec<PathBuf>,
    /// The name that was drawn when it was made, 32 hexadecimal digits.
    id: String,
    format_version: u32,
    /// `creating`, `open` (not closed, or lost one superblock) or `clean`.
    state: &'static str,
    fingerprint: String,
    /// `xxh3`; nothing if chunks cannot be checked.
    checksum: Option<&'static str>,
    /// In seconds since the epoch of Unix.
    created_s: u64,
    /// One more at each opening.
    epoch: u64,
    chunk_bytes: u64,
    stride_bytes: u64,
    capacity_chunks: u32,
    /// What was asked for when it was made.
    asked_chunks: u32,
    used_chunks: u32,
    free_chunks: u32,
    quarantined_chunks: u32,
    capacity_bytes: u64,
    used_bytes: u64,
    /// Payload bytes in its life, up to the last superblock.
    written_bytes: u64,
    /// Of its capacity, since it was made; nothing in its first hour.
    drive_writes_per_day: Option<f64>,
    superblocks: Vec<SuperblockReport>,
    damaged_records: u32,
    /// Of another length, or of an opening that is still to come.
    foreign_records: u32,
    /// Older ones of keys that a newer one names; they do no harm.
    superseded_records: u32,
    damage: Vec<Damage>,
}

/// One of the two superblocks.
#[derive(Debug, Default, Serialize)]
struct SuperblockReport {
    /// What is wrong with it; the other fields are empty then.
    damage: Option<String>,
    sequence: Option<u64>,
    state: Option<&'static str>,
    epoch: Option<u64>,
    written_bytes: Option<u64>,
}

pub(crate) fn run(args: &StatArgs, json: bool) -> anyhow::Result<Outcome> {
    let inspection = look(&args.dirs.dirs)?;
    let contents = read_records(&inspection)?;
    let report = StatReport::of(&inspection, &contents);
    show(&report, json)?;
    Ok(if report.damage.is_empty() { Outcome::Good } else { Outcome::Damaged })
}

impl StatReport {
    pub(crate) fn of(inspection: &Inspection, contents: &Contents) -> Self {
        let info = inspection.info();
        let count = |slots: usize| u32::try_from(slots).unwrap_or(u32::MAX);
        let (used, quarantined) = (count(contents.chunks.len()), count(contents.quarantined.len()));
        let capacity_bytes = u64::from(info.capacity_chunks) * info.chunk_bytes;
        Self {
            dirs: inspection.dirs().to_vec(),
            id: info.id.to_string(),
            format_version: info.version,
            state: state_name(info.state),
            fingerprint: Fingerprint(info.fingerprint).to_string(),
            checksum: info.checksum.map(|kind| match kind {
                ChecksumKind::Xxh3 => "xxh3",
                _ => "other",
            }),
            created_s: info.created_s,
            epoch: info.epoch,
            chunk_bytes: info.chunk_bytes,
            stride_bytes: info.stride_bytes,
            capacity_chunks: info.capacity_chunks,
            asked_chunks: info.asked_chunks,
            used_chunks: used,
            free_chunks: info.capacity_chunks - used - quarantined,
            quarantined_chunks: quarantined,
            capacity_bytes,
            used_bytes: u64::from(used) * info.chunk_bytes,
            written_bytes: info.written_bytes,
            drive_writes_per_day: drive_writes_per_day(&info, capacity_bytes),
            superblocks: inspection.superblocks().into_iter().map(SuperblockReport::of).collect(),
            damaged_records: contents.report.damaged_records,
            foreign_records: contents.report.foreign_records,
            superseded_records: contents.report.superseded_records,
            damage: damage_of(inspection, contents),
        }
    }
}

impl SuperblockReport {
    fn of(block: Result<StoreInfo, kvo_nvme::Damage>) -> Self {
        match block {
            Err(damage) => Self { damage: Some(damage.to_string()), ..Self::default() },
            Ok(info) => Self {
                damage: None,
                sequence: Some(info.sequence),
                state: Some(state_name(info.state)),
                epoch: Some(info.epoch),
                written_bytes: Some(info.written_bytes),
            },
        }
    }
}

fn state_name(state: StoreState) -> &'static str {
    match state {
        StoreState::Creating => "creating",
        StoreState::Open => "open",
        StoreState::Clean => "clean",
    }
}

fn drive_writes_per_day(info: &StoreInfo, capacity_bytes: u64) -> Option<f64> {
    let created = UNIX_EPOCH.checked_add(Duration::from_secs(info.created_s))?;
    let age = SystemTime::now().duration_since(created).ok().filter(|age| *age >= AGE_MIN)?;
    let days = age.as_secs_f64() / Duration::from_hours(24).as_secs_f64();
    Some(info.written_bytes as f64 / capacity_bytes as f64 / days)
}

fn date(created_s: u64) -> String {
    if created_s < DATES_END_S {
        humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_secs(created_s)).to_string()
    } else {
        format!("{created_s} s after 1970")
    }
}

impl StatReport {
    fn chunks(&self) -> String {
        let (used, capacity) = (self.used_chunks, self.capacity_chunks);
        let percent = f64::from(used) / f64::from(capacity) * 100.0;
        let asked = match self.asked_chunks {
            asked if asked == capacity => String::new(),
            asked => format!("; {asked} were asked for"),
        };
        let [each, used_bytes, all] = [self.chunk_bytes, self.used_bytes, self.capacity_bytes].map(human);
        format!("{used} of {capacity} ({percent:.0} %), {each} each, {used_bytes} of {all}{asked}")
    }

    fn pairs(&self) -> Vec<(&'static str, String)> {
        let state = match self.state {
            "creating" => {
                "its making was interrupted; opening it, or `create` with the same options, goes on"
            }
            "open" => "not closed, so the last writes may be missing",
            _ => "closed",
        };
        let life = format!("{} in its life", human(self.written_bytes));
        let written = match self.drive_writes_per_day {
            Some(rate) => format!("{life}, {rate:.2} drive writes a day"),
            None => life,
        };
        let mut pairs = vec![
            ("store", format!("{}, format {}", self.id, self.format_version)),
            ("state", state.to_owned()),
            ("made", format!("{}; epoch {}", date(self.created_s), self.epoch)),
            ("means", self.fingerprint.clone()),
            ("chunks", self.chunks()),
            ("written", written),
        ];
        if self.quarantined_chunks > 0 {
            let slots = counted(self.quarantined_chunks.into(), "slot");
            pairs.push(("failed", format!("{slots}, not used any more")));
        }
        if self.foreign_records > 0 {
            let records = counted(self.foreign_records.into(), "record");
            pairs.push(("foreign", format!("{records} of another length or a later opening, not used")));
        }
        pairs.extend(self.damage.iter().map(|damage| ("damage", damage.message().to_owned())));
        pairs
    }
}

impl Report for StatReport {
    fn write_human(&self, out: &mut dyn Write) -> io::Result<()> {
        write_pairs(out, &self.pairs())?;
        if self.damage.is_empty() {
            return Ok(());
        }
        writeln!(out, "`kvo-store repair` says what can be mended.")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_is_a_date_or_told() {
        assert_eq!(date(0), "1970-01-01T00:00:00Z");
        assert_eq!(date(DATES_END_S - 1), "9999-12-31T23:59:59Z");
        assert_eq!(date(u64::MAX), format!("{} s after 1970", u64::MAX));
    }
}
