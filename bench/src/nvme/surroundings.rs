//! What else is the case while something is measured.

use std::{fs, path::Path};

use serde::Serialize;

use super::file_system_of;

/// What a reader needs to judge the figures, beside the machine and the commit.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Surroundings {
    /// The type of the file system.
    pub file_system: Option<String>,
    /// Whether files there can be read and written around the page cache.
    pub is_direct: bool,
    /// The kernel's setting for transparent huge pages, such as `madvise`.
    pub huge_pages: Option<String>,
    /// Of the host memory, what was on huge pages, in percent: the least of all cases.
    pub huge_percent: Option<f64>,
    /// Runnable processes, on average over a minute: at the start, and at the end.
    pub load_average: [Option<f64>; 2],
}

impl Surroundings {
    /// Those of a run that begins, with files in `dir`.
    pub fn new(dir: &Path, is_direct: bool) -> Self {
        let setting = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").ok();
        Self {
            file_system: file_system_of(dir),
            is_direct,
            huge_pages: setting.as_deref().and_then(chosen),
            huge_percent: None,
            load_average: [load_average(), None],
        }
    }

    /// The run ends.
    pub fn end(&mut self) {
        self.load_average[1] = load_average();
    }

    /// Takes in how much of a region was on huge pages.
    pub fn add_huge_percent(&mut self, percent: Option<f64>) {
        self.huge_percent = [self.huge_percent, percent].into_iter().flatten().reduce(f64::min);
    }
}

/// Of `always [madvise] never`, that in brackets.
fn chosen(setting: &str) -> Option<String> {
    Some(setting.split_once('[')?.1.split_once(']')?.0.to_owned())
}

/// Runnable processes, on average over the last minute.
pub fn load_average() -> Option<f64> {
    fs::read_to_string("/proc/loadavg").ok()?.split(' ').next()?.parse().ok()
}

/// Files that this process has open; none where the system does not say.
pub fn open_files() -> Option<usize> {
    // The directory itself is open while it is read.
    Some(fs::read_dir("/proc/self/fd").ok()?.count().saturating_sub(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_share_of_huge_pages_is_kept() {
        assert_eq!(chosen("always [madvise] never\n").as_deref(), Some("madvise"));
        assert_eq!(chosen("none"), None);
        let mut here = Surroundings::new(Path::new("."), true);
        here.add_huge_percent(None);
        here.add_huge_percent(Some(90.0));
        here.add_huge_percent(Some(100.0));
        assert_eq!(here.huge_percent, Some(90.0));
    }
}
