//! Stores that are cut, foreign, missing, locked or of another version: a sentence with what to do, and a status.

use std::{
    fs::{self, File},
    process::Command,
};

use rustix::fs::{FlockOperation, flock};
use serde_json::{Value, json};

use crate::rig::{Ran, Store, flip, run, set_len};

const COMMANDS: [&str; 4] = ["stat", "ls", "verify", "repair"];

/// Checks that every command ends with `status`, a message that has `words`, and advice; and that nothing is touched.
#[track_caller]
fn check(store: &Store, status: i32, kind: &str, words: &str) {
    for command in COMMANDS {
        let Ran { status: ended, out, err } = store.untouched_by(|store| store.run(command, &[]));
        assert_eq!(ended, status, "{command}: {out}{err}");
        assert!(out.is_empty() && err.starts_with("error: "), "{command}: {out}{err}");
        assert!(err.contains(words), "{command}: {words:?} in {err}");
        assert_eq!(err.lines().count(), 2, "{command}: a message and advice: {err}");
        let error: Value = store.json(command, &[], status);
        assert_eq!(error["error"]["kind"], json!(kind), "{command}");
        assert_eq!(error["error"]["status"], json!(status), "{command}");
        assert!(error["error"]["advice"].is_string(), "{command}");
    }
}

#[test]
fn a_store_in_use_is_left_alone_with_status_4() {
    let store = Store::with_chunks(2, 3);
    for path in [store.index(), store.data(0), store.data(1)] {
        let file = File::open(path).unwrap();
        flock(&file, FlockOperation::NonBlockingLockExclusive).unwrap();
        check(&store, 4, "in_use", "is in use");
        let same = ["--chunk-bytes=8KiB", "--capacity-chunks=40", "--empty"];
        assert_eq!(store.untouched_by(|store| store.run("create", &same)).status, 4);
    }
    store.json("stat", &[], 0);
}

#[test]
fn a_directory_without_a_store_is_told() {
    let store = Store::new(1);
    fs::remove_file(store.index()).unwrap();
    check(&store, 3, "no_store", "there is no store");
    fs::remove_file(store.data(0)).unwrap();
    check(&store, 3, "no_store", "there is no store");
}

#[test]
fn a_missing_directory_or_a_file_in_its_place_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("nothing");
    let [missing, file] =
        [path.clone(), dir.path().join("file")].map(|path| path.to_str().unwrap().to_owned());
    fs::write(&file, "text").unwrap();
    for (path, words) in [(missing, "does not exist"), (file, "is not a directory")] {
        for command in COMMANDS {
            let ran = run([command, &path]);
            assert_eq!(ran.status, 3, "{}", ran.err);
            assert!(ran.err.contains(words), "{}", ran.err);
        }
    }
    assert!(!path.exists());
}

#[test]
fn two_damaged_superblocks_are_told() {
    let store = Store::with_chunks(1, 3);
    store.flip_superblock(0);
    store.flip_superblock(1);
    check(&store, 3, "damaged", "the first superblock: wrong checksum; the second one: wrong checksum");
}

#[test]
fn a_foreign_file_is_told_and_left_alone() {
    let store = Store::with_chunks(1, 3);
    for text in ["", "a diary\n", &"x".repeat(20000)] {
        fs::write(store.index(), text).unwrap();
        check(&store, 3, "damaged", "superblock");
    }
    let ran = store.run("stat", &[]);
    assert!(ran.err.contains("no file of a store"), "{}", ran.err);
}

#[test]
fn a_store_of_another_version_is_told() {
    let store = Store::with_chunks(1, 3);
    store.patch_superblocks(8, &77_u32.to_le_bytes());
    check(&store, 3, "other_store", "format version is 77, wanted is 1");
}

#[test]
fn a_cut_index_is_told() {
    let store = Store::with_chunks(1, 3);
    for bytes in [9000, 8192, 5000, 4096] {
        set_len(&store.index(), bytes);
        check(&store, 3, "damaged", &format!("it is {bytes} bytes long"));
    }
    set_len(&store.index(), 100);
    check(&store, 3, "damaged", "superblock");
}

#[test]
fn a_cut_data_file_is_told_and_what_is_left_is_read() {
    let store = Store::with_chunks(1, 10);
    // Half of slot 7 is gone.
    set_len(&store.data(0), (2 << 20) + 7 * 8192 + 4096);
    let stat = store.untouched_by(|store| store.json("stat", &[], 1));
    assert_eq!(stat["damage"][0]["what"], json!("file"));
    assert!(stat["damage"][0]["message"].as_str().unwrap().contains("bytes long"));
    let report = store.untouched_by(|store| store.json("verify", &[], 1));
    assert_eq!(report["bad_chunks"].as_array().unwrap().len(), 3);
    let report = store.untouched_by(|store| store.json("repair", &[], 1));
    assert_eq!(report["left"].as_array().unwrap().len(), 1);
    assert!(store.text("repair", &[], 1).contains("cannot be mended"));
}

#[test]
fn a_missing_data_file_is_told_and_the_others_are_read() {
    let store = Store::with_chunks(2, 10);
    fs::remove_file(store.data(1)).unwrap();
    assert!(store.text("stat", &[], 1).contains("it is missing"));
    let report = store.json("verify", &[], 1);
    assert_eq!(report["bad_chunks"].as_array().unwrap().len(), 5);
}

#[test]
fn directories_of_two_stores_or_in_another_order_are_told() {
    let (one, two) = (Store::with_chunks(2, 4), Store::with_chunks(2, 4));
    let [a, b] = <[String; 2]>::try_from(one.paths()).unwrap();
    let other = two.paths()[1].clone();
    for (dirs, words) in [
        (vec![&a], "its dirs is 2, wanted is 1"),
        (vec![&a, &other], "its store is"),
        (vec![&b, &a], "there is no store"),
        (vec![&a, &b, &other], "its dirs is 2, wanted is 3"),
    ] {
        for command in COMMANDS {
            let args =
                [&[command.to_owned()][..], &dirs.iter().map(|dir| (*dir).clone()).collect::<Vec<_>>()];
            let ran = run(args.concat());
            assert_eq!(ran.status, 3, "{command} {dirs:?}: {}{}", ran.out, ran.err);
            assert!(ran.err.contains(words), "{words:?} in {}", ran.err);
        }
    }
    let ran = run(["stat", &a, &a]);
    assert_eq!(ran.status, 2, "{}", ran.err);
}

#[test]
fn no_bit_of_a_superblock_a_record_or_a_header_makes_a_panic() {
    let store = Store::with_chunks(1, 3);
    let whole = store.files();
    // Around the places where fields end.
    let places = [0, 8, 12, 16, 32, 40, 48, 56, 64, 68, 72, 76, 80, 112, 120, 128, 136, 140, 4080, 4088];
    for at in places {
        flip(&store.index(), at);
        flip(&store.index(), 4096 + at);
        flip(&store.index(), 8192 + at % 128);
        flip(&store.data(0), at);
        for command in COMMANDS {
            let ran = store.run(command, &[]);
            assert!(matches!(ran.status, 1 | 3), "{command} {at}: {}{}", ran.out, ran.err);
        }
        for (path, bytes) in &whole {
            fs::write(path, bytes).unwrap();
        }
    }
    store.json("verify", &[], 0);
}

#[test]
fn a_file_system_that_became_read_only_can_be_looked_at() {
    let store = Store::with_chunks(1, 5);
    store.flip_record(2);
    let (dir, program) = (store.dir().to_str().unwrap(), env!("CARGO_BIN_EXE_kvo-store"));
    let script = "mount --bind \"$2\" \"$2\" && mount -o remount,bind,ro \"$2\" && touch \"$2/x\" 2>/dev/null && exit 99
        \"$1\" stat \"$2\"; echo \"stat $?\"; \"$1\" verify \"$2\"; echo \"verify $?\"
        \"$1\" repair --yes \"$2\"; echo \"repair $?\"";
    // In a mount namespace of its own, which ends with it.
    let ran = Command::new("unshare").args(["-m", "sh", "-c", script, "sh", program, dir]).output();
    let out = ran.as_ref().map(|ran| String::from_utf8_lossy(&ran.stdout).into_owned()).unwrap_or_default();
    if !out.contains("stat ") || ran.is_ok_and(|ran| ran.status.code() == Some(99)) {
        eprintln!("SKIPPED: this machine lets nobody mount a file system read-only");
        return;
    }
    for ended in ["stat 1\n", "verify 1\n", "repair 3\n"] {
        assert!(out.contains(ended), "{ended:?} in {out}");
    }
    store.json("repair", &["--yes"], 1);
}
