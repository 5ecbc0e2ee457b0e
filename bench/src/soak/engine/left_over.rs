//! Threads and descriptors of this process, before and after.

use std::{
    collections::BTreeMap,
    fs,
    time::{Duration, Instant},
};

use anyhow::Context;

/// A thread that was joined may be listed a little longer.
const PATIENCE: Duration = Duration::from_secs(10);

/// Threads and descriptors of this process at one time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftOver {
    /// The name of each, by its number.
    threads: BTreeMap<String, String>,
    /// What each descriptor is of.
    descriptors: BTreeMap<String, String>,
}

impl LeftOver {
    /// Those that there are.
    ///
    /// # Errors
    /// If the system does not say.
    pub fn now() -> anyhow::Result<Self> {
        let mut threads = BTreeMap::new();
        for entry in fs::read_dir("/proc/self/task").context("/proc/self/task")? {
            let entry = entry?;
            // It may end meanwhile.
            if let Ok(name) = fs::read_to_string(entry.path().join("comm")) {
                threads.insert(entry.file_name().to_string_lossy().into_owned(), name.trim().to_owned());
            }
        }
        let mut descriptors = BTreeMap::new();
        for entry in fs::read_dir("/proc/self/fd").context("/proc/self/fd")? {
            let entry = entry?;
            // The descriptor of this list is gone when it is asked for.
            if let Ok(of) = fs::read_link(entry.path()) {
                descriptors
                    .insert(entry.file_name().to_string_lossy().into_owned(), of.display().to_string());
            }
        }
        descriptors.retain(|number, _| fs::exists(format!("/proc/self/fd/{number}")).unwrap_or(true));
        Ok(Self { threads, descriptors })
    }

    /// What there is now that there was not, in words.
    ///
    /// # Errors
    /// If the system does not say.
    pub fn problems(&self) -> anyhow::Result<Vec<String>> {
        let started = Instant::now();
        loop {
            let problems = Self::now()?.more_than(self);
            if problems.is_empty() || started.elapsed() > PATIENCE {
                return Ok(problems);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn more_than(&self, before: &Self) -> Vec<String> {
        let threads = self.threads.iter().filter(|(number, _)| !before.threads.contains_key(*number));
        let threads = threads.map(|(number, name)| format!("thread {number}, {name}, is left over"));
        let descriptors =
            self.descriptors.iter().filter(|(number, _)| !before.descriptors.contains_key(*number));
        let descriptors =
            descriptors.map(|(number, of)| format!("descriptor {number}, of {of}, is left over"));
        threads.chain(descriptors).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_and_a_descriptor_that_are_left_over_are_named() {
        let of = |entries: &[(&str, &str)]| -> BTreeMap<String, String> {
            entries.iter().map(|(number, of)| ((*number).to_owned(), (*of).to_owned())).collect()
        };
        let before = LeftOver { threads: of(&[("1", "main")]), descriptors: of(&[("0", "/dev/null")]) };
        assert_eq!(before.more_than(&before), Vec::<String>::new());
        let after = LeftOver {
            threads: of(&[("1", "main"), ("7", "kvo-nvme-0")]),
            descriptors: of(&[("0", "/dev/null"), ("5", "dir/file")]),
        };
        let expected = ["thread 7, kvo-nvme-0, is left over", "descriptor 5, of dir/file, is left over"];
        assert_eq!(after.more_than(&before), expected);
        assert_eq!(before.more_than(&after), Vec::<String>::new());
    }

    #[test]
    fn a_thread_that_runs_is_seen() {
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let (began, has_begun) = std::sync::mpsc::channel();
        let named = std::thread::Builder::new().name("left-over-seen".to_owned());
        let thread = named.spawn(move || {
            began.send(()).unwrap();
            let _ = ended.recv();
        });
        has_begun.recv().unwrap();
        assert!(LeftOver::now().unwrap().threads.values().any(|name| name == "left-over-seen"));
        drop(end);
        thread.unwrap().join().unwrap();
    }
}
