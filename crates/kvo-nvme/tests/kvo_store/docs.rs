//! `docs/KVO-STORE.md` names every field of the JSON.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::rig::{Store, run};

const DOCS: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/KVO-STORE.md"));

/// The fields that the section of a command names, in the first column of its table.
fn documented(command: &str) -> BTreeSet<String> {
    let (_, section) = DOCS.split_once(&format!("\n### `{command}`\n")).unwrap();
    let section = section.split("\n### ").next().unwrap().split("\n## ").next().unwrap();
    let rows = section.lines().filter_map(|line| line.strip_prefix("| `")?.split_once('`'));
    rows.map(|(name, _)| name.to_owned()).collect()
}

/// The fields of a value: `a`, `a.b`, and `a[].b` in lists.
fn fields(value: &Value, prefix: &str, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(members) => {
            for (name, member) in members {
                let path = if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
                found.insert(path.clone());
                fields(member, &path, found);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| fields(item, &format!("{prefix}[]"), found)),
        _ => {}
    }
}

#[track_caller]
fn check(command: &str, value: &Value) {
    let mut found = BTreeSet::new();
    fields(value, "", &mut found);
    assert_eq!(found, documented(command), "{command}");
}

#[test]
fn the_docs_name_the_fields_of_every_command() {
    let store = Store::with_chunks(1, 6);
    store.flip_record(2);
    store.flip_payload(3);
    check("stat", &store.json("stat", &[], 1));
    check("ls", &store.json("ls", &[], 0));
    check("verify", &store.json("verify", &[], 1));
    check("repair", &store.json("repair", &["--verify"], 1));
    check("wipe", &store.json("wipe", &[], 0));
    let create = ["--chunk-bytes=8KiB", "--capacity-chunks=4", "--empty"];
    let mut made = store.json("create", &create, 0);
    // All of `stat`, and one more.
    let preinit = made.as_object_mut().unwrap().remove("preinit");
    assert!(preinit.is_some() && documented("create").len() == 1 && documented("create").contains("preinit"));
    made["damage"] = serde_json::json!([{ "what": "", "message": "" }]);
    check("stat", &made);
    let bench = ["bench", "--json", "--chunk-bytes=64KiB", "--round-bytes=64KiB", "--rounds=1"];
    let ran = run([&bench[..], &[store.dir().to_str().unwrap()]].concat());
    check("bench", &serde_json::from_str(&ran.out).unwrap());
    let ran = run(["stat", "--json", "no/such/directory"]);
    check("error", &serde_json::from_str(&ran.out).unwrap());
}

#[test]
fn the_commands_of_the_readme_run() {
    let readme = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../README.md"));
    let dir = tempfile::tempdir().unwrap();
    let mut commands = Vec::new();
    for line in readme.lines().filter_map(|line| line.strip_prefix("kvo-store ")) {
        let command = line.split('#').next().unwrap();
        let small = command.replace("/mnt/nvme", dir.path().to_str().unwrap()).replace("100GiB", "20MiB");
        let mut args: Vec<_> = small.split_whitespace().map(str::to_owned).collect();
        if args[0] == "bench" {
            args.extend(["--round-bytes=2MiB", "--rounds=1"].map(str::to_owned));
        }
        let ran = run(&args);
        assert_eq!(ran.status, 0, "{line}: {}{}", ran.out, ran.err);
        commands.push(args.swap_remove(0));
    }
    assert_eq!(commands, ["create", "stat", "ls", "verify", "repair", "bench"]);
}
