//! Which file system a directory is on, and what is taken of it.

use std::{fs, io, os::unix::fs::MetadataExt, path::Path};

/// The type of the file system of `dir`, such as `ext4`; none where the system does not say.
pub fn file_system_of(dir: &Path) -> Option<String> {
    let dir = dir.canonicalize().ok()?;
    type_of(&dir, &fs::read_to_string("/proc/self/mountinfo").ok()?)
}

/// Bytes of the file system of `dir` that an ordinary user may still take.
///
/// # Errors
/// If the system does not say.
pub fn free_bytes(dir: &Path) -> io::Result<u64> {
    let stat = rustix::fs::statvfs(dir)?;
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}

/// Bytes of the blocks that the files in `dir`, and in the directories below it, have on the disk.
///
/// # Errors
/// If they cannot be looked at.
pub fn bytes_on_disk(dir: &Path) -> io::Result<u64> {
    // Whatever the blocks of the file system are, these are counted in 512 bytes.
    const COUNTED_BYTES: u64 = 512;
    fs::read_dir(dir)?.try_fold(0, |sum, entry| {
        let entry = entry?;
        let metadata = entry.metadata()?;
        let below = if metadata.is_dir() { bytes_on_disk(&entry.path())? } else { 0 };
        Ok(sum + below + metadata.blocks() * COUNTED_BYTES)
    })
}

/// The type of the deepest mount above `dir`; of several at one place, the last, which hides the others.
fn type_of(dir: &Path, mounts: &str) -> Option<String> {
    let mounts = mounts.lines().filter_map(|line| {
        let (left, right) = line.split_once(" - ")?;
        let place = unescaped(left.split(' ').nth(4)?);
        Some((place, right.split(' ').next()?))
    });
    let above = mounts.filter(|(place, _)| dir.starts_with(place));
    above.max_by_key(|(place, _)| place.len()).map(|(_, kind)| kind.to_owned())
}

/// The kernel writes blanks and backslashes of a path as three octal digits.
fn unescaped(path: &str) -> String {
    let pairs = [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")];
    pairs.iter().fold(path.to_owned(), |path, (code, character)| path.replace(code, character))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 22 0:26 / /tmp rw - tmpfs tmpfs rw
31 30 0:27 / /tmp/fast\\040disk rw,noatime - xfs /dev/nvme0n1 rw
32 22 0:28 / /mnt rw - btrfs /dev/vdb rw
33 22 0:29 / /mnt rw - ext2 /dev/vdc rw
a line that is none
";

    #[track_caller]
    fn check(dir: &str, kind: &str) {
        assert_eq!(type_of(Path::new(dir), MOUNTS).as_deref(), Some(kind));
    }

    #[test]
    fn the_deepest_mount_above_a_directory_is_its_own() {
        check("/var/x", "ext4");
        check("/tmp/a", "tmpfs");
        check("/tmp/fast disk/store", "xfs");
        check("/tmpfoo", "ext4");
        check("/mnt/x", "ext2");
    }

    #[test]
    fn blocks_are_counted_below_too_and_holes_are_not() {
        let dir = tempfile::tempdir().unwrap();
        let below = dir.path().join("below");
        fs::create_dir(&below).unwrap();
        let before = bytes_on_disk(dir.path()).unwrap();
        fs::File::create(dir.path().join("hole")).unwrap().set_len(1 << 30).unwrap();
        let file = below.join("data");
        fs::write(&file, vec![1; 1 << 20]).unwrap();
        fs::File::open(&file).unwrap().sync_all().unwrap();
        let grown = bytes_on_disk(dir.path()).unwrap() - before;
        assert!((1 << 20..2 << 20).contains(&grown), "{grown}");
        assert!(free_bytes(dir.path()).unwrap() > 0);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn this_system_says_where_a_directory_is() {
        assert!(file_system_of(Path::new(".")).is_some());
        assert_eq!(file_system_of(Path::new("no/such/directory")), None);
    }
}
