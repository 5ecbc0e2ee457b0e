//! `machine`: which device, driver and link there are, and whether the driver is one.

use std::path::Path;

use kvo_cuda::{DeviceFacts, DriverFacts, Probe, probe};
use serde_json::json;

use crate::{
    elf,
    ground::{Ground, Outcome},
    rows::row,
};

/// What the driver for tests has, and no other.
const MARK_OF_THE_FAKE: &str = "kvofake_controls";

/// Whether the driver is the one for tests, and how that is known. A driver that cannot be looked at counts as that one:
/// then no figure passes for a GPU's that is none.
pub(crate) fn is_model() -> (bool, String) {
    let Probe::Devices(DriverFacts { library: Some(library), .. }) = probe() else {
        return (true, "it is not known which file the driver was loaded from".to_owned());
    };
    match elf::exports(Path::new(library), MARK_OF_THE_FAKE) {
        Ok(true) => (true, format!("{library} has the symbol {MARK_OF_THE_FAKE}")),
        Ok(false) => (false, format!("{library} has no symbol {MARK_OF_THE_FAKE}")),
        Err(error) => (true, format!("the driver's file could not be read: {error:#}")),
    }
}

pub(crate) fn run(ground: &mut Ground) -> anyhow::Result<Outcome> {
    let found = probe();
    let device = found.devices().get(ground.ordinal as usize);
    let (Probe::Devices(driver), Some(device)) = (found, device) else {
        let absent = match found {
            Probe::Devices(driver) => {
                format!("there is no device {}, but {}", ground.ordinal, driver.devices.len())
            }
            other => other.to_string(),
        };
        ground.tell(&row(json!({"absent": absent})))?;
        return Ok(Outcome::Skipped(absent));
    };
    ground.tell(&row(facts(driver, device)))?;
    Ok(Outcome::Done)
}

fn facts(driver: &DriverFacts, device: &DeviceFacts) -> serde_json::Value {
    let (is_model, why) = is_model();
    let version = format!("CUDA {}.{}", driver.version / 1000, driver.version % 1000 / 10);
    let (major, minor) = device.compute_capability;
    json!({
        "device": device.name,
        // The release of a GPU's kernel module is none of the driver for tests.
        "driver": if is_model { "model" } else { driver.release.as_deref().unwrap_or("unknown") },
        "is_model": is_model,
        "is_model_because": why,
        "driver_version": version,
        "driver_library": driver.library,
        "ordinal": device.ordinal,
        "memory_bytes": device.memory_bytes,
        "compute_capability": format!("{major}.{minor}"),
        "multiprocessors": device.multiprocessors,
        "copy_engines": device.copy_engines,
        "pci_bus_id": device.pci_bus_id,
        "link": device.link,
        "numa_node": device.numa_node,
        "takes_host_pointers": device.takes_host_pointers,
        "kvo_version": env!("CARGO_PKG_VERSION"),
        "kvo_commit": option_env!("KVO_COMMIT").filter(|commit| !commit.is_empty()),
        "cpus": std::thread::available_parallelism().map_or(0, std::num::NonZero::get),
        "kernel": std::fs::read_to_string("/proc/sys/kernel/osrelease").ok().map(|text| text.trim().to_owned()),
    })
}
