//! The kernel's source, compiled for the CPU by g++: a second opinion, without NVRTC and without the interpreter.

use std::{
    io::{Read, Write},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use super::{
    Entry,
    lists::{List, Random},
};

/// `kernels/host.cpp`, compiled into `dir`; none without g++.
fn compiled(dir: &Path) -> Option<PathBuf> {
    let program = dir.join("host");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels/host.cpp");
    let mut command = Command::new("g++");
    command.args(["-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas"]);
    // What guards a load guards the store of the same value, which no compiler sees through.
    command.arg("-Wno-maybe-uninitialized");
    match command.arg("-o").arg(&program).arg(source).status() {
        Ok(status) => assert!(status.success(), "g++: {status}"),
        Err(error) => {
            eprintln!("SKIPPED: the kernel's source is not run on the CPU, as g++ cannot be run: {error}");
            return None;
        }
    }
    Some(program)
}

/// What the source leaves in the list's memory.
fn answer(host: &mut Child, entry: Entry, ctas: u64, threads: u64, list: &List) -> Vec<u8> {
    let mut request = Vec::new();
    let (num_slices, num_bytes) = (list.slices.len() as u64, list.before.len() as u64);
    for word in [u64::from(entry == Entry::Any), ctas, threads, num_slices, num_bytes] {
        request.extend(word.to_le_bytes());
    }
    list.slices.iter().for_each(|slice| request.extend(slice.to_bytes()));
    request.extend(&list.before);
    host.stdin.as_mut().unwrap().write_all(&request).unwrap();
    let mut after = vec![0; list.before.len()];
    host.stdout.as_mut().unwrap().read_exact(&mut after).unwrap();
    after
}

#[test]
fn the_source_copies_random_slices_to_the_byte() {
    let dir = tempfile::tempdir().unwrap();
    let Some(program) = compiled(dir.path()) else { return };
    let mut host = Command::new(program).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let shapes = [(1, 32), (4, 512), (3, 96), (40, 32)];
    for seed in Random::seeds(4000) {
        eprintln!("KVO_TEST_SEED={seed}");
        let mut random = Random::new(seed);
        let list = List::random(&mut random);
        let (ctas, threads) = shapes[random.below(shapes.len())];
        let entries = if list.is_aligned { &Entry::ALL[..] } else { &[Entry::Any] };
        for &entry in entries {
            assert!(answer(&mut host, entry, ctas, threads, &list) == list.after, "{entry:?}");
        }
    }
    drop(host.stdin.take());
    assert!(host.wait().unwrap().success());
}
