//! What a store costs beside its transfers: idle, on disk, when it is opened, and to be asked.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use kvo_core::{
    JobId, RequestContext, RequestId, SecondaryTier, SlotId, TierChunk, TierCompletion, TierDirection,
    TierJob, TierLookup, TierOutcome,
};
use kvo_nvme::{NvmeOptions, NvmeStore};
use serde::{Deserialize, Serialize};

use super::{
    Bound, Direction, HostChunks, Keys, Meter, Point, Range, StoreKind, bytes_on_disk, free_bytes,
    open_files, process_time,
};
use crate::{
    Interrupt,
    micro::{Preset, shuffle},
};

/// Slots of a large store, of a chunk of [`SMALL_BYTES`] each.
const MANY: u32 = 1 << 20;

/// The least that a chunk takes in the file.
const SMALL_BYTES: usize = 4096;

/// Bytes that are to be free before a large store is made: its own, and enough for whoever else writes.
const FREE_BYTES_MIN: u64 = 6 << 30;

/// Lookups that are timed together.
const LOOKUPS: usize = 100_000;

/// Times that so many are timed.
const LOOKUP_ROUNDS: usize = 9;

/// A store that no disk is too slow for.
const PATIENCE: Duration = Duration::from_mins(10);

/// What was measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AtRest {
    /// CPU time of the process while an open store has nothing to do, in percent of a core.
    pub idle_cpu_percent: f64,
    /// Files that a store with one device has open, the ring among them.
    pub open_files: Option<u64>,
    /// Bytes of chunks that the store has room for.
    pub capacity_bytes: u64,
    /// Bytes of its files, once it is open.
    pub file_bytes: u64,
    /// What they had grown by after every slot was written twice, and the store closed.
    pub grown_bytes: u64,
    /// Bytes of their blocks then: the file system's own, to find them, are among them.
    pub disk_bytes: u64,
    /// Bytes that the kernel counted as written for the process over bytes of chunks, closing included.
    pub write_amplification: Option<f64>,
    /// Bytes of chunks that were copied on their way.
    pub copied_bytes: u64,
    /// A store of a million slots, if there was room for it.
    pub many: Option<ManySlots>,
    /// What was not measured, and why.
    pub skipped: Vec<String>,
}

/// A store of very many slots.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ManySlots {
    /// Slots.
    pub slots: u32,
    /// Chunks in them when it was opened again.
    pub chunks: u32,
    /// Seconds that it took to be made.
    pub make_seconds: f64,
    /// Seconds that it took to be opened again, after it was closed.
    pub open_seconds: f64,
    /// Nanoseconds of a lookup that finds its chunk, round by round; none if the store is empty.
    pub hit_ns: Vec<f64>,
    /// Nanoseconds of a lookup that does not.
    pub miss_ns: Vec<f64>,
}

/// Measures in `dir`, a directory of its own, with chunks of the host memory's size.
///
/// # Errors
/// If a store fails.
pub fn measure_at_rest(
    dir: &Path,
    host: &HostChunks,
    preset: Preset,
    interrupt: &Interrupt,
) -> anyhow::Result<AtRest> {
    let mut result = AtRest::default();
    let usual = dir.join("usual");
    std::fs::create_dir(&usual).context("cannot make a directory")?;
    one_store(&usual, host, preset, &mut result)?;
    std::fs::remove_dir_all(&usual).context("cannot remove a store")?;
    if preset == Preset::Smoke || interrupt.is_set() {
        return Ok(result);
    }
    let free = free_bytes(dir).context("cannot tell how much room there is")?;
    if free < FREE_BYTES_MIN {
        result.skipped.push(format!(
            "a store of {MANY} slots: {} MiB are free, {} are wanted",
            free >> 20,
            FREE_BYTES_MIN >> 20
        ));
        return Ok(result);
    }
    let large = dir.join("large");
    std::fs::create_dir(&large).context("cannot make a directory")?;
    result.many = many_slots(&large, MANY, interrupt).context("a store of very many slots")?;
    Ok(result)
}

/// A store of the usual size: idle, written twice, closed.
fn one_store(dir: &Path, host: &HostChunks, preset: Preset, result: &mut AtRest) -> anyhow::Result<()> {
    let files_before = open_files();
    let mut store = NvmeStore::open(StoreKind::Full.options(dir, host), host.memory())?;
    let files = files_before.zip(open_files()).map(|(before, after)| after.saturating_sub(before) as u64);
    result.open_files = files;
    result.capacity_bytes = host.chunk_bytes() as u64 * u64::from(host.num_chunks());
    result.file_bytes = file_bytes(dir)?;
    let mut keys = Keys::new(0, host.num_chunks());
    let meter = Meter::start();
    for write in 0..2 {
        keys.next_write();
        let count = host.num_chunks();
        write_all(&mut store, host, count, |index| keys.key(index), write * u64::from(count))?;
    }
    result.idle_cpu_percent = idle_cpu_percent(preset);
    let stats = store.stats();
    result.copied_bytes = stats.copied_bytes;
    store.close(PATIENCE)?;
    let written = meter.stop().device.map(|device| device.written);
    result.write_amplification = written.map(|written| written as f64 / stats.write.bytes as f64);
    result.grown_bytes = file_bytes(dir)?.saturating_sub(result.file_bytes);
    result.disk_bytes = bytes_on_disk(dir)?;
    Ok(())
}

/// The lengths of all files in a directory.
fn file_bytes(dir: &Path) -> anyhow::Result<u64> {
    let sum = std::fs::read_dir(dir)
        .and_then(|mut entries| entries.try_fold(0, |sum, entry| Ok(sum + entry?.metadata()?.len())));
    sum.with_context(|| format!("cannot look at the files in {}", dir.display()))
}

/// The CPU time of this process while it sleeps, in percent of a core.
fn idle_cpu_percent(preset: Preset) -> f64 {
    let (started, before) = (Instant::now(), process_time());
    std::thread::sleep(if preset == Preset::Smoke {
        Duration::from_millis(50)
    } else {
        Duration::from_secs(3)
    });
    let used = process_time().saturating_sub(before);
    100.0 * used.as_secs_f64() / started.elapsed().as_secs_f64()
}

/// Makes, fills, closes and opens a store of many small chunks, and looks for them. None if it was interrupted.
fn many_slots(dir: &Path, slots: u32, interrupt: &Interrupt) -> anyhow::Result<Option<ManySlots>> {
    let host = HostChunks::new(slots.min(16 << 10), SMALL_BYTES, 0)?;
    let options = NvmeOptions { capacity_chunks: slots, ..StoreKind::Full.options(dir, &host) };
    let open = || {
        let started = Instant::now();
        let store = NvmeStore::open(options.clone(), host.memory())?;
        anyhow::Ok((store, started.elapsed().as_secs_f64()))
    };
    let (mut store, make_seconds) = open()?;
    let mut keys = Keys::new(0, slots);
    keys.next_write();
    for first in (0..slots).step_by(host.num_chunks() as usize) {
        if interrupt.is_set() {
            return Ok(None);
        }
        let count = host.num_chunks().min(slots - first);
        write_all(&mut store, &host, count, |index| keys.key(first + index), first.into())?;
    }
    store.close(PATIENCE)?;
    let (mut store, open_seconds) = open()?;
    let (hit_ns, miss_ns) = lookups(&mut store, &keys)?;
    let chunks = store.counts().evictable;
    store.close(PATIENCE)?;
    Ok(Some(ManySlots { slots, chunks, make_seconds, open_seconds, hit_ns, miss_ns }))
}

/// Fills the host memory, and writes its first `count` chunks.
fn write_all(
    store: &mut NvmeStore,
    host: &HostChunks,
    count: u32,
    key: impl Fn(u32) -> kvo_core::OffloadKey + Sync,
    first_job: u64,
) -> anyhow::Result<()> {
    const CHUNKS_PER_JOB: u32 = 256;
    host.fill(&key)?;
    let req = RequestId(first_job);
    store.on_new_request(&RequestContext::new(req));
    for first in (0..count).step_by(CHUNKS_PER_JOB as usize) {
        let end = (first + CHUNKS_PER_JOB).min(count);
        let chunks = (first..end)
            .map(|index| TierChunk { key: key(index), slot: SlotId(index), end_token: None })
            .collect();
        let id = JobId(first_job + u64::from(first));
        store.submit(TierJob { id, req, direction: TierDirection::Write, chunks })?;
    }
    store.drain(PATIENCE)?;
    let mut done = Vec::new();
    store.poll(&mut done);
    store.on_request_finished(req);
    let bad = done.iter().find(|TierCompletion { outcome, .. }| *outcome != TierOutcome::Done);
    ensure!(bad.is_none(), "{} failed: {bad:?}; the store: {:?}", Direction::Write, store.stats());
    Ok(())
}

/// Nanoseconds of a lookup, round by round: of keys that are there, and of keys that are not.
fn lookups(store: &mut NvmeStore, there: &Keys) -> anyhow::Result<(Vec<f64>, Vec<f64>)> {
    let mut order: Vec<u32> = (0..there.num_chunks()).collect();
    shuffle(&mut order, 1);
    let absent = Keys::new(1, there.num_chunks());
    let req = RequestId(u64::MAX);
    store.on_new_request(&RequestContext::new(req));
    let mut time = |keys: &Keys, expected: TierLookup, part: &[u32]| {
        let keys: Vec<_> = part.iter().map(|index| keys.key(*index)).collect();
        let started = Instant::now();
        let found = keys.iter().filter(|key| store.lookup(req, key) == expected).count();
        let took = started.elapsed();
        ensure!(found == keys.len(), "{found} of {} lookups were {expected:?}", keys.len());
        Ok(took.as_secs_f64() * 1e9 / keys.len() as f64)
    };
    let (mut hits, mut misses) = (Vec::new(), Vec::new());
    let count = LOOKUPS.min(order.len());
    for part in order.chunks_exact(count).cycle().take(LOOKUP_ROUNDS) {
        hits.push(time(there, TierLookup::Hit, part)?);
        misses.push(time(&absent, TierLookup::Miss, part)?);
    }
    store.on_request_finished(req);
    Ok((hits, misses))
}

impl AtRest {
    /// What is asked of it.
    pub fn points(&self) -> Vec<Point> {
        let at_most = |what: &str, value: f64, most| Point::new(what, value, Bound::AtMost(most));
        let mut points = vec![
            at_most("idle CPU, % of a core", self.idle_cpu_percent, 0.5),
            at_most("bytes that the files grow by", self.grown_bytes as f64, 0.0),
            at_most(
                "blocks on disk over room for chunks",
                self.disk_bytes as f64 / self.capacity_bytes.max(1) as f64,
                1.005,
            ),
            at_most("bytes of chunks that are copied", self.copied_bytes as f64, 0.0),
        ];
        points.extend(self.open_files.map(|files| at_most("open files, one device", files as f64, 4.0)));
        points.extend(self.write_amplification.map(|written| at_most("write amplification", written, 1.01)));
        if let Some(many) = &self.many {
            let slots = many.slots;
            let what = format!("seconds to open a store of {slots} slots, {} chunks in it", many.chunks);
            points.push(at_most(&what, many.open_seconds, 1.5));
            if let Some(hits) = Range::of(&many.hit_ns) {
                points.push(at_most("ns a lookup that hits, among as many", hits.median, 150.0));
            }
        }
        points
    }

    /// Every figure with its name, for whoever reads them.
    pub fn figures(&self) -> Vec<(String, String)> {
        let unknown = || "unknown".to_owned();
        let mib = |bytes: u64| format!("{:.2} MiB", bytes as f64 / f64::from(1 << 20));
        let mut figures = vec![
            ("CPU while idle".to_owned(), format!("{:.3} % of a core", self.idle_cpu_percent)),
            (
                "open files of a store with one device".to_owned(),
                self.open_files.map_or_else(unknown, |files| files.to_string()),
            ),
            ("room for chunks".to_owned(), mib(self.capacity_bytes)),
            ("files".to_owned(), mib(self.file_bytes)),
            ("grown by, written twice and closed".to_owned(), mib(self.grown_bytes)),
            ("their blocks on disk".to_owned(), mib(self.disk_bytes)),
            (
                "bytes written over bytes of chunks".to_owned(),
                self.write_amplification.map_or_else(unknown, |written| format!("{written:.5}")),
            ),
            ("bytes of chunks copied".to_owned(), self.copied_bytes.to_string()),
        ];
        if let Some(many) = &self.many {
            let name = |what: &str| format!("{} slots: {what}", many.slots);
            let range = |rounds: &[f64]| Range::of(rounds).map_or_else(unknown, |range| range.shown(0));
            figures.extend([
                (name("made in"), format!("{:.3} s", many.make_seconds)),
                (
                    name(&format!("opened with {} chunks in", many.chunks)),
                    format!("{:.3} s", many.open_seconds),
                ),
                (name("a lookup that hits, min/med/max"), format!("{} ns", range(&many.hit_ns))),
                (name("a lookup that does not"), format!("{} ns", range(&many.miss_ns))),
            ]);
        }
        figures
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_at_rest_keeps_to_its_blocks_and_copies_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let host = HostChunks::new(64, 64 << 10, 0).unwrap();
        let result = measure_at_rest(dir.path(), &host, Preset::Smoke, &Interrupt::manual()).unwrap();
        assert_eq!((result.capacity_bytes, result.copied_bytes, result.many.clone()), (4 << 20, 0, None));
        assert_eq!(result.grown_bytes, 0);
        assert!(result.disk_bytes >= 4 << 20, "{result:?}");
        assert!(result.points().len() >= 3 && result.figures().len() >= 7);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn many_chunks_are_there_again_and_found() {
        let dir = tempfile::tempdir().unwrap();
        let many = many_slots(dir.path(), 20_000, &Interrupt::manual()).unwrap().unwrap();
        assert_eq!((many.slots, many.chunks), (20_000, 20_000));
        assert_eq!((many.hit_ns.len(), many.miss_ns.len()), (LOOKUP_ROUNDS, LOOKUP_ROUNDS));
        let interrupt = Interrupt::manual();
        interrupt.set();
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(many_slots(dir.path(), 20_000, &interrupt).unwrap(), None);
    }
}
