//! Where it is measured: a directory, and every chunk size in it, one after the other.

use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
};

use anyhow::Context;
use tempfile::TempDir;

use super::{HostChunks, NvmeCaseResult, NvmePlan, Subject, Surroundings, allows_direct_io, run_rounds};
use crate::{Interrupt, progress_bar};

/// A temporary directory, and what is the case there. All of it is removed when this drops.
#[derive(Debug)]
pub struct Place {
    dir: TempDir,
    /// What is the case.
    pub surroundings: Surroundings,
}

impl Place {
    /// Makes the directory in `parent`, or where the system puts such.
    ///
    /// # Errors
    /// If it cannot be made.
    pub fn new(parent: Option<&Path>) -> anyhow::Result<Self> {
        let dir = match parent {
            Some(parent) => tempfile::tempdir_in(parent).with_context(|| {
                format!("cannot make a directory for the files in {} (--dir)", parent.display())
            }),
            None => tempfile::tempdir().context("cannot make a temporary directory for the files"),
        }?;
        let is_direct = allows_direct_io(dir.path())?;
        let surroundings = Surroundings::new(dir.path(), is_direct);
        Ok(Self { dir, surroundings })
    }

    /// The directory.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Makes a directory in it.
    ///
    /// # Errors
    /// If it cannot be made.
    pub fn below(&self, name: &str) -> anyhow::Result<TempDir> {
        tempfile::Builder::new()
            .prefix(name)
            .tempdir_in(self.dir())
            .with_context(|| format!("cannot make a directory in {}", self.dir().display()))
    }

    /// Says what is measured on.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn announce(&self, out: &mut impl Write) -> anyhow::Result<()> {
        let Surroundings { file_system, is_direct, huge_pages, load_average, .. } = &self.surroundings;
        let unknown = || "unknown".to_owned();
        writeln!(
            out,
            "on {}; plain I/O goes {} the page cache; transparent huge pages: {}; load average {}",
            file_system.as_deref().unwrap_or("an unknown file system"),
            if *is_direct { "around" } else { "through" },
            huge_pages.clone().unwrap_or_else(unknown),
            load_average[0].map_or_else(unknown, |load| format!("{load:.2}")),
        )?;
        if file_system.as_deref() == Some("tmpfs") {
            writeln!(
                out,
                "WARNING: tmpfs is memory: these are no figures of a device; name another with --dir"
            )?;
        }
        Ok(())
    }

    /// Runs every chunk size of the plan with the subjects that `make` makes for it in an empty directory; `num_subjects`
    /// of them, anew for each of the plan's places. Their files are removed before the next are made.
    ///
    /// Once `interrupt` is set, what was measured until then is returned.
    ///
    /// # Errors
    /// If a subject cannot be made, or fails.
    pub fn run<'a>(
        &mut self,
        plan: &NvmePlan,
        num_subjects: usize,
        make: impl Fn(&Path, &HostChunks) -> anyhow::Result<Vec<Box<dyn Subject + 'a>>>,
        interrupt: &Interrupt,
    ) -> anyhow::Result<Vec<NvmeCaseResult>> {
        let num_runs: u64 = plan.works.iter().map(|work| work.num_runs(num_subjects)).sum();
        let progress = progress_bar(num_runs * u64::from(plan.places), "rounds");
        let mut cases = Vec::new();
        for work in &plan.works {
            let host = HostChunks::new(work.num_chunks, work.chunk_bytes as usize, 0)?;
            self.surroundings.add_huge_percent(host.huge_percent());
            let mut of_size = Vec::new();
            for _ in (0..plan.places).take_while(|_| !interrupt.is_set()) {
                let dir = self.below("chunks")?;
                let in_place = make(dir.path(), &host)
                    .and_then(|mut subjects| run_rounds(&mut subjects, *work, interrupt, || progress.inc(1)));
                add_rounds(
                    &mut of_size,
                    in_place.with_context(|| format!("chunks of {} bytes", work.chunk_bytes))?,
                );
            }
            cases.extend(of_size);
        }
        progress.finish_and_clear();
        cases.retain(|case: &NvmeCaseResult| !case.mb_per_s.is_empty());
        Ok(cases)
    }
}

/// The same cases, measured once more.
fn add_rounds(cases: &mut Vec<NvmeCaseResult>, more: Vec<NvmeCaseResult>) {
    if cases.is_empty() {
        *cases = more;
    } else {
        cases.iter_mut().zip(more).for_each(|(case, more)| case.add_rounds(more));
    }
}

/// A directory of its own for each subject.
///
/// # Errors
/// If it cannot be made.
pub fn subject_dir(dir: &Path, name: &str) -> anyhow::Result<PathBuf> {
    let path = dir.join(name);
    fs::create_dir(&path).with_context(|| format!("cannot make {}", path.display()))?;
    Ok(path)
}
