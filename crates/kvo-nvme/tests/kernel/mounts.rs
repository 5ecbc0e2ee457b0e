//! Small file systems of a test's own, in a file or in memory, where the machine allows that.

use std::{
    fs::File,
    path::{Path, PathBuf},
    process::Command,
};

use tempfile::TempDir;

/// Says aloud that a test is left out, and why.
pub(crate) fn skip<T>(why: impl std::fmt::Display) -> Option<T> {
    eprintln!("SKIPPED {why}");
    None
}

/// Runs a program of the system; what it printed.
pub(crate) fn run(program: &str, args: &[&str]) -> Result<String, String> {
    let output = Command::new(program).args(args).output().map_err(|error| format!("{program}: {error}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned());
    }
    Err(format!("{program} {}: {}", args.join(" "), String::from_utf8_lossy(&output.stderr).trim()))
}

/// A mounted file system, until it is dropped.
pub(crate) struct Mount {
    dir: TempDir,
    /// The loop device under it.
    device: Option<String>,
}

impl Mount {
    /// ext4 in a new file `image` of so many bytes, which has no blocks yet; none, said aloud, if that is forbidden here.
    ///
    /// With `direct` the loop device goes past the page cache, so that what the file lacks is an error.
    pub(crate) fn ext4(image: &Path, bytes: u64, direct: bool) -> Option<Self> {
        File::create(image).unwrap().set_len(bytes).unwrap();
        let name = image.to_str().unwrap();
        let made = run(
            "mkfs.ext4",
            &["-q", "-m", "0", "-E", "nodiscard,lazy_itable_init=0", "-O", "^has_journal", name],
        )
        .and_then(|_| {
            let direct = if direct { "--direct-io=on" } else { "--direct-io=off" };
            run("losetup", &["--find", "--show", direct, name])
        });
        let device = match made {
            Ok(device) => device,
            Err(why) => return skip(why),
        };
        let mounted = Self::mounted("ext4", &device, "errors=remount-ro");
        // It goes when the file system does.
        let detached = run("losetup", &["--detach", &device]);
        let mut mount = mounted?;
        mount.device = Some(device);
        detached.unwrap();
        Some(mount)
    }

    /// A file system in memory with so much room.
    pub(crate) fn tmpfs(bytes: u64) -> Option<Self> {
        Self::mounted("tmpfs", "tmpfs", &format!("size={bytes}"))
    }

    fn mounted(kind: &str, source: &str, options: &str) -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        match run("mount", &["-t", kind, "-o", options, source, dir.path().to_str().unwrap()]) {
            Ok(_) => Some(Self { dir, device: None }),
            Err(why) => skip(why),
        }
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    /// A directory in it.
    pub(crate) fn subdir(&self, name: &str) -> PathBuf {
        let dir = self.path().join(name);
        std::fs::create_dir(&dir).unwrap();
        dir
    }

    /// The name of its loop device in `/sys`.
    pub(crate) fn device_name(&self) -> &str {
        self.device.as_deref().unwrap().trim_start_matches("/dev/")
    }

    pub(crate) fn remount(&self, options: &str) -> Result<(), String> {
        run("mount", &["-o", &format!("remount,{options}"), self.path().to_str().unwrap()]).map(drop)
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let path = self.path().to_str().unwrap();
        // A ring that has just ended may hold its files for a moment: then the kernel unmounts when it lets go.
        if run("umount", &[path]).is_err()
            && let Err(why) = run("umount", &["--lazy", path])
        {
            eprintln!("{why}");
        }
    }
}
