//! Memory nodes: which processors are near a GPU, and threads that stay on them.

use std::fs;

use rustix::thread::{CpuSet, sched_setaffinity};

/// Processors near a GPU, on a machine where others are further away.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Near {
    cpus: Vec<usize>,
}

impl Near {
    /// The processors of a node; `None` if the machine has one node only, or does not say.
    pub(crate) fn node(node: u32) -> Option<Self> {
        let read = |file: &str| fs::read_to_string(format!("/sys/devices/system/node/{file}")).ok();
        if list(&read("online")?)?.len() < 2 {
            return None;
        }
        let cpus = list(&read(&format!("node{node}/cpulist"))?)?;
        (!cpus.is_empty()).then_some(Self { cpus })
    }

    pub(crate) fn num_cpus(&self) -> usize {
        self.cpus.len()
    }

    /// Keeps this thread on these processors. What a thread touches first is then near them too. A process that may
    /// not run there stays where it is.
    pub(crate) fn bind_thread(&self) {
        let mut set = CpuSet::new();
        for cpu in self.cpus.iter().filter(|cpu| **cpu < CpuSet::MAX_CPU) {
            set.set(*cpu);
        }
        if let Err(error) = sched_setaffinity(None, &set) {
            tracing::debug!(%error, "a thread could not be bound to the processors near its GPU");
        }
    }
}

/// The numbers of a list as the kernel writes them: `0-3,8`.
fn list(text: &str) -> Option<Vec<usize>> {
    let mut numbers = Vec::new();
    for part in text.trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        numbers.extend(first..=last);
    }
    Some(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_as_the_kernel_writes_them() {
        assert_eq!(list("0-3,8\n"), Some(vec![0, 1, 2, 3, 8]));
        assert_eq!(list("5"), Some(vec![5]));
        assert_eq!(list("\n"), Some(vec![]));
        assert_eq!(list("a-b"), None);
    }

    #[test]
    fn a_thread_runs_on_when_it_may_not_be_bound() {
        std::thread::spawn(|| Near { cpus: vec![CpuSet::MAX_CPU - 1] }.bind_thread()).join().unwrap();
    }
}
