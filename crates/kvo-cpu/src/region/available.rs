//! How much memory can be had, before anything is mapped.

use std::{
    fs,
    path::{Path, PathBuf},
};

use crate::RegionError;

/// Fails if `asked_bytes` are more than can be had. Where the system does not say, anything passes.
pub(super) fn check(asked_bytes: usize) -> Result<(), RegionError> {
    match available_bytes() {
        Some(available_bytes) if asked_bytes as u64 > available_bytes => {
            Err(RegionError::NotEnoughMemory { asked_bytes, available_bytes })
        }
        _ => Ok(()),
    }
}

/// The least of what the system and each control group of this process have left.
fn available_bytes() -> Option<u64> {
    let system = fs::read_to_string("/proc/meminfo").ok().and_then(|text| system_bytes(&text));
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let groups = group_directories(&groups).into_iter().filter_map(|directory| group_bytes(&directory));
    system.into_iter().chain(groups).min()
}

/// `MemAvailable` of `/proc/meminfo`.
fn system_bytes(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// The directories of the memory control groups that `/proc/self/cgroup` names, ancestors included.
fn group_directories(cgroup: &str) -> Vec<PathBuf> {
    let mut directories = Vec::new();
    for line in cgroup.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(id), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next()) else {
            continue;
        };
        let root = if controllers.split(',').any(|controller| controller == "memory") {
            Path::new("/sys/fs/cgroup/memory")
        } else if id == "0" && controllers.is_empty() {
            Path::new("/sys/fs/cgroup")
        } else {
            continue;
        };
        let group = root.join(path.trim_start_matches('/'));
        directories.extend(group.ancestors().take_while(|above| above.starts_with(root)).map(Path::to_owned));
    }
    directories
}

/// What the limit of a control group leaves: its use less the file cache that the kernel would give up.
fn group_bytes(directory: &Path) -> Option<u64> {
    let read = |name: &str| fs::read_to_string(directory.join(name)).ok();
    let number = |name: &str| read(name).and_then(|text| text.trim().parse::<u64>().ok());
    let limit = number("memory.max").or_else(|| number("memory.limit_in_bytes"))?;
    let used = number("memory.current").or_else(|| number("memory.usage_in_bytes"))?;
    let stat = read("memory.stat").unwrap_or_default();
    // The first version of control groups counts those below in values of their own.
    let reclaimable = [["total_inactive_file", "inactive_file"], ["total_active_file", "active_file"]];
    let reclaimable = reclaimable.map(|names| names.into_iter().find_map(|name| stat_value(&stat, name)));
    let reclaimable = reclaimable.into_iter().flatten().fold(0, u64::saturating_add);
    Some(limit.saturating_sub(used.saturating_sub(reclaimable)))
}

fn stat_value(stat: &str, name: &str) -> Option<u64> {
    stat.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_says_what_is_available() {
        assert_eq!(system_bytes("MemTotal: 9 kB\nMemAvailable:   24229288 kB\n"), Some(24_229_288 * 1024));
        assert_eq!(system_bytes("MemTotal: 9 kB\n"), None);
        assert_eq!(system_bytes("MemAvailable: many kB\n"), None);
    }

    #[test]
    fn control_groups_of_both_versions_are_found_with_their_ancestors() {
        let found = group_directories("9:name=systemd:/\n4:cpu,memory:/a/b\n0::/c\n");
        let expected = [
            "/sys/fs/cgroup/memory/a/b",
            "/sys/fs/cgroup/memory/a",
            "/sys/fs/cgroup/memory",
            "/sys/fs/cgroup/c",
            "/sys/fs/cgroup",
        ];
        assert_eq!(found, expected.map(PathBuf::from));
    }

    #[track_caller]
    fn check_group(files: &[(&str, &str)], expected: Option<u64>) {
        let directory = tempfile::tempdir().unwrap();
        for (name, text) in files {
            fs::write(directory.path().join(name), text).unwrap();
        }
        assert_eq!(group_bytes(directory.path()), expected);
    }

    /// B43: an engine that starts again finds its weights in the file cache, and most of that is active.
    #[test]
    fn a_control_group_leaves_what_its_file_cache_takes() {
        let stat = "anon 9\nfile 38\ninactive_file 3\nactive_file 30\nunevictable 5\n";
        let used = [("memory.current", "47\n"), ("memory.stat", stat)];
        check_group(&[&[("memory.max", "64\n")][..], &used].concat(), Some(64 - (47 - 33)));
        check_group(&[&[("memory.max", "max\n")][..], &used].concat(), None);
        let stat = "inactive_file 1\nactive_file 1\ntotal_inactive_file 3\ntotal_active_file 30\n";
        let used = [("memory.usage_in_bytes", "47\n"), ("memory.stat", stat)];
        check_group(&[&[("memory.limit_in_bytes", "64\n")][..], &used].concat(), Some(64 - (47 - 33)));
    }

    #[test]
    fn statistics_are_found_by_their_whole_name() {
        let stat = "inactive_anon 5\ninactive_file 7\n";
        assert_eq!(stat_value(stat, "inactive_file"), Some(7));
        assert_eq!(stat_value(stat, "inactive"), None);
    }
}
