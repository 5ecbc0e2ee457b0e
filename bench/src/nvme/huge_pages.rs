//! Pages of the kernel's pool of huge pages, for fio's `mem=mmaphuge`.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use anyhow::{Context, bail};

/// Pages that were added to the kernel's pool; taken out again when this drops.
///
/// Whoever else changes the pool meanwhile keeps what it added or took.
#[derive(Debug)]
pub struct HugePages {
    file: PathBuf,
    /// What is still to be taken out.
    added: Arc<AtomicU64>,
}

impl HugePages {
    /// Adds room for `bytes` to the pool of the machine.
    ///
    /// # Errors
    /// If this process may not, or memory is too much in pieces. The pool is as it was then.
    pub fn reserve(bytes: u64) -> anyhow::Result<Self> {
        let meminfo = fs::read_to_string("/proc/meminfo").context("the system says nothing of its memory")?;
        let page_bytes = page_bytes(&meminfo).context("the kernel has no huge pages")?;
        Self::add(Path::new("/proc/sys/vm/nr_hugepages"), bytes.div_ceil(page_bytes))
    }

    fn add(file: &Path, count: u64) -> anyhow::Result<Self> {
        let before = read(file)?;
        // From here on, what was added is taken out however this ends.
        let pages = Self { file: file.to_owned(), added: Arc::default() };
        write(file, before + count)
            .with_context(|| format!("cannot add {count} huge pages to the kernel's pool"))?;
        let added = read(file)?.saturating_sub(before);
        pages.added.store(added, Ordering::Relaxed);
        if added < count {
            bail!("the kernel found only {added} of {count} huge pages");
        }
        Ok(pages)
    }

    /// What undoes it, for a process that ends without dropping it; does nothing once it is undone.
    pub fn undo(&self) -> impl Fn() + Send + use<> {
        let (file, added) = (self.file.clone(), Arc::clone(&self.added));
        move || remove(&file, &added)
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        remove(&self.file, &self.added);
    }
}

fn remove(file: &Path, added: &AtomicU64) {
    let added = added.swap(0, Ordering::Relaxed);
    if added == 0 {
        return;
    }
    if let Err(error) = read(file).and_then(|now| write(file, now.saturating_sub(added))) {
        eprintln!("error: {added} huge pages stay in the kernel's pool: {error:#}");
    }
}

fn read(file: &Path) -> anyhow::Result<u64> {
    let text = fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    text.trim().parse().with_context(|| format!("{} has no number", file.display()))
}

fn write(file: &Path, count: u64) -> anyhow::Result<()> {
    fs::write(file, count.to_string()).with_context(|| format!("cannot write {}", file.display()))
}

fn page_bytes(meminfo: &str) -> Option<u64> {
    let size = meminfo.lines().find_map(|line| line.strip_prefix("Hugepagesize:"))?;
    Some(size.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_added_is_taken_out_again_and_no_more() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("nr_hugepages");
        fs::write(&file, "3\n").unwrap();
        let pages = HugePages::add(&file, 40).unwrap();
        assert_eq!(read(&file).unwrap(), 43);
        // Another program takes some for itself.
        write(&file, 50).unwrap();
        drop(pages);
        assert_eq!(read(&file).unwrap(), 10);
        let pages = HugePages::add(&file, 5).unwrap();
        let undo = pages.undo();
        undo();
        drop(pages);
        undo();
        assert_eq!(read(&file).unwrap(), 10, "once");
    }

    #[test]
    fn a_pool_that_cannot_be_changed_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        assert!(HugePages::add(&dir.path().join("none"), 1).is_err());
        let file = dir.path().join("nr_hugepages");
        fs::write(&file, "many").unwrap();
        assert!(HugePages::add(&file, 1).is_err());
        assert_eq!(fs::read_to_string(&file).unwrap(), "many");
    }

    #[test]
    fn the_size_of_a_page_is_read() {
        assert_eq!(page_bytes("MemTotal: 5 kB\nHugepagesize:       2048 kB\n"), Some(2 << 20));
        assert_eq!(page_bytes("MemTotal: 5 kB\n"), None);
    }
}
