//! Any text is a configuration or an error, and any configuration an offload or an error that names the field: what the
//! fuzzer `config` runs.

#[cfg(test)]
#[path = "../../../fuzz/replay.rs"]
mod replay;

use std::path::Path;

use kvo_connector::{BuildError, EngineIdentity, GroupOptions, NvmeConfig, Offload, OffloadConfig};
use kvo_core::ChunkLayout;
use kvo_cuda::BlockLayout;

const BLOCK_TOKENS: u32 = 4;

/// Of what is built, so that it takes no time and no room; and more than any machine has.
const SMALL_BYTES: u64 = 1 << 20;
const TOO_MANY_BYTES: u64 = 1 << 54;

fn build(config: OffloadConfig) -> Result<Offload, BuildError> {
    let chunk = ChunkLayout::new(2, 2, 4096, 1).unwrap();
    let layout = BlockLayout::layer_first(&chunk, 8, 8 * chunk.block_bytes()).unwrap();
    let identity = EngineIdentity::new("example", "a byte", 1);
    Offload::builder(config, identity, layout, vec![GroupOptions::full(BLOCK_TOKENS)], BLOCK_TOKENS).build()
}

/// Sizes that a machine may have are made small; those that none has stay.
fn small(bytes: u64) -> u64 {
    if bytes > TOO_MANY_BYTES { bytes } else { bytes.min(SMALL_BYTES) }
}

/// Reads a text, after a byte that says in which format, and builds what it says. Stores are in `dir`, which is the
/// caller's, or in a directory that is not there.
pub fn fuzzed(dir: &Path, input: &[u8]) {
    let Some((format, text)) = input.split_first() else { return };
    let Ok(text) = std::str::from_utf8(text) else { return };
    let is_toml = format % 2 == 0;
    let read = if is_toml {
        toml::from_str::<OffloadConfig>(text).map_err(|error| error.to_string())
    } else {
        serde_json::from_str(text).map_err(|error| error.to_string())
    };
    let mut config = match read {
        Ok(config) => config,
        Err(error) => {
            assert!(!error.is_empty());
            return;
        }
    };
    // What was read is written, and read again as the same. TOML has no numbers above 2^63.
    let json = serde_json::to_string(&config).expect("every configuration can be written");
    assert_eq!(serde_json::from_str::<OffloadConfig>(&json).expect("it was written"), config);
    if is_toml {
        let toml = toml::to_string(&config).expect("what came from it can be written");
        assert_eq!(toml::from_str::<OffloadConfig>(&toml).expect("it was written"), config);
    }

    config.cpu.bytes = small(config.cpu.bytes);
    config.cpu.huge_pages = false;
    let store = dir.join("store");
    if let Some(nvme) = &mut config.nvme {
        nvme.bytes = small(nvme.bytes);
        for (nth, dir) in nvme.dirs.iter_mut().enumerate() {
            *dir = if nth == 0 && dir.as_os_str().len() != 1 {
                store.clone()
            } else {
                Path::new("nowhere/at/all").to_owned()
            };
        }
        nvme.dirs.truncate(2);
    }
    std::fs::create_dir_all(&store).unwrap();
    let bytes = (config.cpu.bytes, config.nvme.as_ref().map(|nvme| nvme.bytes));
    match build(config.clone()) {
        Ok(offload) => {
            assert!(bytes.0 <= SMALL_BYTES && bytes.1.is_none_or(|bytes| bytes <= SMALL_BYTES), "{bytes:?}");
            assert!(u64::from(offload.num_slots()) * offload.slot_bytes() <= bytes.0, "{config:?}");
        }
        Err(error) => {
            let words = error.to_string();
            let named = words.split(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != '.');
            let json: serde_json::Value = serde_json::from_str(&json).unwrap();
            assert!(named.into_iter().any(|word| is_field(&json, word)), "no field is named: {words}");
        }
    }
    std::fs::remove_dir_all(&store).unwrap();
}

/// Whether a word is a field of a configuration, with the sections it is in or without.
fn is_field(config: &serde_json::Value, word: &str) -> bool {
    let of = |section: &serde_json::Value| section.as_object().is_some_and(|of| of.contains_key(word));
    let path = format!("/{}", word.replace('.', "/"));
    !word.is_empty()
        && (of(config)
            || config.pointer(&path).is_some()
            || config.as_object().is_some_and(|all| all.values().any(of)))
}

#[test]
fn the_corpus_of_the_fuzzer_is_built_or_refused_with_the_field() {
    let dir = tempfile::tempdir().unwrap();
    replay::replay("config", |input| fuzzed(dir.path(), input));
}

#[test]
fn memory_that_no_machine_has_is_refused_before_anything_is_made_of_it() {
    let error = build(OffloadConfig::new(1 << 45)).unwrap_err();
    assert!(error.to_string().starts_with("cpu.bytes: "), "{error}");
}

#[test]
fn a_store_that_no_disk_has_room_for_is_refused_before_anything_is_made_of_it() {
    let dir = tempfile::tempdir().unwrap();
    let nvme = Some(NvmeConfig::new(dir.path(), 1 << 45));
    let mut config = OffloadConfig { nvme, ..OffloadConfig::new(1 << 20) };
    config.cpu.huge_pages = false;
    let error = build(config).unwrap_err();
    assert!(error.to_string().starts_with("nvme: "), "{error}");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "nothing is left");
}
