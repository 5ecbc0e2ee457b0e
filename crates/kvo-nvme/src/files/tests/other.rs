//! What is not the store that was asked for: refused, named, and touched only when that is wanted.

use super::*;

/// Checks that a store which was made with other options is refused for `field`, and emptied when asked to.
#[track_caller]
fn check_other(change: impl Fn(&mut NvmeOptions), field: &str) {
    let mut rig = Rig::new(2);
    let files = rig.open().unwrap();
    write_record(&files, 0, record(&files, 1));
    let id = files.index.superblock.id;
    drop(files);
    change(&mut rig.options);
    rig.refused_as_other(field);
    assert_ne!(rig.empty().index.superblock.id, id);
    rig.open().unwrap();
}

/// B55: what was stored under other weights has another fingerprint, and is not opened.
#[test]
fn a_store_with_other_options_is_refused_or_emptied() {
    check_other(|options| options.chunk_bytes = 5001, "chunk_bytes");
    check_other(|options| options.chunk_bytes = 100_000, "chunk_bytes");
    check_other(|options| options.capacity_chunks = 6, "capacity_chunks");
    check_other(|options| options.capacity_chunks = 90, "capacity_chunks");
    check_other(|options| options.fingerprint[31] ^= 1, "fingerprint");
    check_other(|options| options.dirs.truncate(1), "dirs");
    #[cfg(feature = "testing")]
    check_other(|options| options.checksum = crate::ChecksumKind::Off, "checksum");
}

#[test]
fn a_difference_is_told_with_both_values() {
    let mut rig = Rig::made(1);
    rig.options.chunk_bytes = 4999;
    let message = rig.refused().to_string();
    assert!(message.contains("chunk_bytes is 5000, wanted is 4999"), "{message}");
}

#[test]
fn more_directories_than_before_are_refused() {
    let mut rig = Rig::made(1);
    let more = Rig::new(1);
    rig.options.dirs.push(more.dirs.paths().remove(0));
    rig.refused_as_other("dirs");
}

#[test]
fn swapped_data_files_are_found() {
    let mut rig = Rig::new(2);
    rig.options.capacity_chunks = 8;
    rig.open().unwrap();
    let (a, b) = (fs::read(rig.data(0)).unwrap(), fs::read(rig.data(1)).unwrap());
    assert_eq!(a.len(), b.len());
    fs::write(rig.data(0), b).unwrap();
    fs::write(rig.data(1), a).unwrap();
    rig.refused_as_other("device");
}

#[test]
fn swapped_directories_are_found() {
    let mut rig = Rig::made(2);
    rig.options.dirs.reverse();
    // The index is not in the first one.
    rig.refused_as_other("index file");
}

#[test]
fn the_data_file_of_another_store_is_found() {
    let mut rig = Rig::made(2);
    let other = Rig::made(2);
    fs::copy(other.data(1), rig.data(1)).unwrap();
    rig.refused_as_other("store");
    rig.empty();
}

#[test]
fn the_index_of_another_store_is_found() {
    let rig = Rig::made(2);
    let other = Rig::made(2);
    fs::copy(other.index(), rig.index()).unwrap();
    rig.refused_as_other("store");
}

#[test]
fn data_without_an_index_is_another_store() {
    let mut rig = Rig::new(2);
    fs::write(rig.data(1), b"from before there was an index").unwrap();
    rig.refused_as_other("index file");
    rig.empty();
}

#[test]
fn a_file_that_has_the_name_of_the_index_is_not_overwritten() {
    let mut rig = Rig::new(1);
    fs::write(rig.index(), b"a list of things to buy").unwrap();
    rig.refused_as_damaged(&rig.index(), FileDamage::Superblocks(Damage::Magic, Damage::Empty));
    rig.empty();
}

/// Makes the block a sealed one of version 2.
fn to_version_2(path: &Path, at: u64) {
    let file = fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
    let mut block = [0; 4096];
    file.read_exact_at(&mut block, at).unwrap();
    block[8] = 2;
    let sum = twox_hash::XxHash3_64::oneshot(&block[..4088]);
    block[4088..].copy_from_slice(&sum.to_le_bytes());
    file.write_all_at(&block, at).unwrap();
}

#[test]
fn a_later_version_is_refused() {
    for blocks in [&[0_usize][..], &[1], &[0, 1]] {
        let mut rig = Rig::made(1);
        for &block in blocks {
            to_version_2(&rig.index(), block_start(block));
        }
        rig.refused_as_other("format version");
        rig.empty();
    }
    let rig = Rig::made(1);
    to_version_2(&rig.data(0), 0);
    rig.refused_as_other("format version");
}

#[test]
fn a_store_in_use_is_refused_whatever_is_wanted() {
    let mut rig = Rig::new(2);
    let first = rig.open().unwrap();
    rig.options.if_other = IfOther::Empty;
    rig.options.fingerprint = [5; 32];
    assert!(matches!(rig.refused(), OpenError::InUse { .. }));
    // Its data files are locked as well as its index.
    rig.options.dirs.remove(0);
    let error = rig.refused();
    assert!(matches!(&error, OpenError::InUse { path } if *path == rig.data(1)), "{error}");
    drop(first);
}

/// B62: of many who make or open a store at once one has it, and nobody ever finds half of one.
#[test]
fn of_many_who_open_a_store_at_once_each_has_it_alone() {
    use std::sync::{
        Mutex,
        atomic::{AtomicU32, Ordering::SeqCst},
    };
    let rig = Rig::new(2);
    let (inside, epochs) = (AtomicU32::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..5 {
                    let files = loop {
                        match rig.open() {
                            Ok(files) => break files,
                            Err(OpenError::InUse { .. }) => {}
                            Err(error) => panic!("{error}"),
                        }
                    };
                    assert_eq!(inside.fetch_add(1, SeqCst), 0, "two have it");
                    check_whole(&files);
                    epochs.lock().unwrap().push(files.index.superblock.epoch);
                    inside.fetch_sub(1, SeqCst);
                }
            });
        }
    });
    let mut epochs = epochs.into_inner().unwrap();
    epochs.sort_unstable();
    assert_eq!(epochs, (1..=40).collect::<Vec<_>>(), "each opening has an epoch of its own");
}

/// B62.
#[test]
fn a_store_in_use_by_another_process_is_refused() {
    use std::{
        io::{BufRead, BufReader},
        process::{Command, Stdio},
    };
    let rig = Rig::made(1);
    let script = "exec 9<>\"$0\"; flock -x 9; echo locked; exec cat";
    let spawned = Command::new("sh")
        .args(["-c", script])
        .arg(rig.index())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn();
    let Ok(mut child) = spawned else {
        eprintln!("SKIPPED: there is no shell");
        return;
    };
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    if line == "locked\n" {
        let error = rig.refused();
        assert!(matches!(&error, OpenError::InUse { path } if *path == rig.index()), "{error}");
    } else {
        eprintln!("SKIPPED: there is no program that takes locks");
    }
    drop(child.stdin.take());
    child.wait().unwrap();
    rig.open().unwrap();
}

#[test]
fn what_is_no_file_is_refused() {
    for name in [INDEX_FILE_NAME, FILE_NAME] {
        let rig = Rig::new(1);
        let target = rig.dirs.paths()[0].join("elsewhere");
        fs::write(&target, b"precious").unwrap();
        let path = rig.dirs.paths()[0].join(name);
        std::os::unix::fs::symlink(&target, &path).unwrap();
        assert!(matches!(rig.refused(), OpenError::NotAFile { .. }));
        assert_eq!(fs::read(&target).unwrap(), b"precious");
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        let error = rig.open().unwrap_err();
        assert!(matches!(error, OpenError::NotAFile { .. }), "{error}");
        fs::remove_dir(&path).unwrap();
        // Nobody waits for the other end of a pipe, or talks to a server.
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::from_raw_mode(0o666)).unwrap();
        let error = rig.open().unwrap_err();
        assert!(matches!(error, OpenError::NotAFile { .. }), "{error}");
        fs::remove_file(&path).unwrap();
        let socket = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let error = rig.open().unwrap_err();
        assert!(matches!(error, OpenError::NotAFile { .. }), "{error}");
        drop(socket);
    }
}

#[test]
fn a_file_with_another_name_is_neither_opened_nor_emptied() {
    for name in [INDEX_FILE_NAME, FILE_NAME] {
        let mut rig = Rig::made(1);
        let path = rig.dirs.paths()[0].join(name);
        let other = rig.dirs.paths()[0].join("a backup");
        fs::hard_link(&path, &other).unwrap();
        rig.options.if_other = IfOther::Empty;
        rig.options.fingerprint = [9; 32];
        let error = rig.refused();
        assert!(matches!(&error, OpenError::Linked { path: of, num_names: 2 } if *of == path), "{error}");
        let error = create_store(&rig.options).unwrap_err();
        assert!(matches!(error, OpenError::Linked { .. }), "{error}");
        fs::remove_file(&other).unwrap();
        rig.open().unwrap();
    }
    // Nor one that was never a store's, and has zeros where a header would be, beside a store that is being made.
    let rig = Rig::new(1);
    let precious = rig.dirs.paths()[0].join("precious");
    fs::write(&precious, vec![0; 1 << 20]).unwrap();
    fs::write(rig.index(), b"").unwrap();
    fs::hard_link(&precious, rig.data(0)).unwrap();
    assert!(matches!(rig.refused(), OpenError::Linked { .. }));
}

#[test]
fn a_file_of_another_user_is_neither_opened_nor_emptied() {
    struct OtherUser;
    impl System for OtherUser {
        fn user(&self) -> u32 {
            Real.user() + 1
        }
    }
    let mut rig = Rig::made(1);
    let before = rig.files();
    for if_other in [IfOther::Refuse, IfOther::Empty] {
        rig.options.if_other = if_other;
        let error = rig.open_on(&OtherUser).unwrap_err();
        let OpenError::OtherUser { path, owner, user } = &error else { panic!("{error}") };
        assert_eq!((path, *owner, *user), (&rig.index(), Real.user(), Real.user() + 1));
    }
    assert!(rig.files() == before);
    rig.open().unwrap();
}

#[test]
fn a_store_that_others_may_read_is_closed_up_again() {
    let rig = Rig::made(2);
    for path in [rig.index(), rig.data(0), rig.data(1)] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o666)).unwrap();
    }
    check_whole(&rig.open().unwrap());
}

#[test]
fn files_that_are_exchanged_under_an_open_store_are_not_its_own() {
    let rig = Rig::made(1);
    let files = rig.open().unwrap();
    let mut other = Rig::new(1);
    other.options.fingerprint = [4; 32];
    drop(other.open().unwrap());
    let theirs = fs::read(other.data(0)).unwrap();
    fs::rename(other.index(), rig.index()).unwrap();
    fs::rename(other.data(0), rig.data(0)).unwrap();
    // It goes on with those that it has open.
    files.data[0].file.write_all_at(&[7; 4096], DATA_START).unwrap();
    assert!(fs::read(rig.data(0)).unwrap() == theirs);
    drop(files);
    rig.refused_as_other("fingerprint");
}

#[test]
fn directories_are_there_and_differ() {
    let mut rig = Rig::new(1);
    let dir = rig.dirs.paths().remove(0);
    rig.options.dirs = vec![dir.clone(), dir.join(".")];
    assert!(matches!(rig.refused(), OpenError::SameDirectory { .. }));
    let missing = dir.join("not/mounted");
    rig.options.dirs = vec![dir.clone(), missing.clone()];
    assert!(matches!(rig.refused(), OpenError::DirectoryMissing { path } if path == missing));
    fs::write(dir.join("file"), b"x").unwrap();
    rig.options.dirs = vec![dir.join("file")];
    assert!(matches!(rig.refused(), OpenError::NotADirectory { .. }));
}

/// B47: a file system that may only be read, and a directory of somebody else.
#[test]
fn a_directory_that_takes_no_files_is_named() {
    // Nobody, root included, makes files here: no permission, or a read-only mount.
    let sys = Path::new("/sys/kernel");
    if !sys.is_dir() {
        eprintln!("SKIPPED: there is no /sys/kernel");
        return;
    }
    let mut rig = Rig::new(1);
    rig.options.dirs = vec![sys.to_path_buf()];
    assert!(matches!(rig.refused(), OpenError::NotWritable { .. }));
    // The second directory is at fault: the index that was made in the first one is gone again.
    rig.options.dirs = vec![rig.dirs.paths().remove(0), sys.to_path_buf()];
    assert!(matches!(rig.refused(), OpenError::NotWritable { .. } | OpenError::NoRoom { .. }));
}
