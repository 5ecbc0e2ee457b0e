//! Which GPUs there are, as a value.

use std::{fmt, fs, panic::catch_unwind, sync::OnceLock};

use super::{
    codes::DriverCode,
    driver::{Driver, Missing},
};

/// Set to `off`, `0`, `no` or `false`, it makes [`probe`] report no device, and no driver is looked for.
const SWITCH: &str = "KVO_CUDA";

/// The oldest driver that is used: the one of CUDA 11.4, which is also the oldest that cudarc has bindings for.
const VERSION_MIN: u32 = 11_040;

/// Numbers of attributes in the driver's header, which keeps them.
const MULTIPROCESSORS: i32 = 16;
const COPY_ENGINES: i32 = 40;
const CAPABILITY_MAJOR: i32 = 75;
const CAPABILITY_MINOR: i32 = 76;
const HOST_POINTER_OF_REGISTERED: i32 = 91;
const HOST_NUMA_ID: i32 = 134;

/// What this process found of CUDA.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Probe {
    /// The environment variable `KVO_CUDA` turns GPUs off.
    Disabled,
    /// There is no driver.
    NoDriver {
        /// In words of the loader.
        reason: String,
    },
    /// The driver is too old.
    DriverTooOld {
        /// Its newest version of CUDA, 1000 x major + 10 x minor; 0 if that is not known.
        version: u32,
        /// A function that it lacks, if that is how it shows.
        missing: Option<&'static str>,
    },
    /// The driver does not work on this machine, for example as its kernel module is of another version.
    Broken {
        /// What it said when it was started.
        code: DriverCode,
    },
    /// There is a driver and no device, or none that this process may see.
    NoDevice,
    /// There are devices.
    Devices(DriverFacts),
}

/// A driver and its devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriverFacts {
    /// The newest version of CUDA that it knows: 1000 x major + 10 x minor.
    pub version: u32,
    /// Its own version, if the kernel says it: for example `580.159.04`.
    pub release: Option<String>,
    /// The file that it was loaded from.
    pub library: Option<String>,
    /// The devices by ordinal; never empty.
    pub devices: Vec<DeviceFacts>,
}

/// A device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceFacts {
    /// Its number, as this process's driver counts.
    pub ordinal: u32,
    /// Its name.
    pub name: String,
    /// Bytes of its memory; 0 if the driver does not say.
    pub memory_bytes: u64,
    /// Its compute capability, major and minor.
    pub compute_capability: (u32, u32),
    /// Its multiprocessors.
    pub multiprocessors: u32,
    /// Its copy engines, which work side by side.
    pub copy_engines: u32,
    /// Its address on the PCI bus, `domain:bus:device.function` in lower case.
    pub pci_bus_id: Option<String>,
    /// The memory node of the host that it is near, if the host has more than one.
    pub numa_node: Option<u32>,
    /// The link that it is on, as `generation x width`, if the kernel says it.
    pub link: Option<String>,
    /// Whether kernels and batches may use host addresses of registered memory as they are.
    pub takes_host_pointers: bool,
}

impl Probe {
    /// The devices; none in every case but one.
    pub fn devices(&self) -> &[DeviceFacts] {
        match self {
            Self::Devices(facts) => &facts.devices,
            _ => &[],
        }
    }
}

impl fmt::Display for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Disabled => write!(f, "GPUs are turned off by {SWITCH}"),
            Self::NoDriver { reason } => write!(f, "there is no CUDA driver: {reason}"),
            Self::DriverTooOld { missing: Some(missing), .. } => {
                write!(f, "the CUDA driver is too old: it lacks {missing}")
            }
            Self::DriverTooOld { version, missing: None } => {
                write!(f, "the CUDA driver is too old: it knows CUDA {}, not 11.4", dotted(*version))
            }
            Self::Broken { code } => write!(f, "the CUDA driver does not work here: {code}"),
            Self::NoDevice => write!(f, "the CUDA driver sees no device"),
            Self::Devices(facts) => write!(
                f,
                "{} device(s), the first a {}, by a driver for CUDA {}",
                facts.devices.len(),
                facts.devices[0].name,
                dotted(facts.version)
            ),
        }
    }
}

fn dotted(version: u32) -> String {
    format!("{}.{}", version / 1000, version % 1000 / 10)
}

/// Looks for the driver and its devices, unless the environment variable `KVO_CUDA` is `off`, `0`, `no` or `false`. The first call of a process does it, in about 0.1 s where there is a device;
/// what it found stays. Never panics, and creates no context on any device.
pub fn probe() -> &'static Probe {
    static FOUND: OnceLock<Probe> = OnceLock::new();
    FOUND.get_or_init(|| {
        if is_off(std::env::var(SWITCH).ok().as_deref()) {
            return Probe::Disabled;
        }
        // Nothing in there panics; were it to, an engine would better run without a GPU than not at all.
        catch_unwind(look).unwrap_or_else(|_| Probe::NoDriver { reason: "the probe panicked".to_owned() })
    })
}

fn is_off(switch: Option<&str>) -> bool {
    switch.is_some_and(|value| ["off", "0", "no", "false"].iter().any(|off| value.eq_ignore_ascii_case(off)))
}

fn look() -> Probe {
    let driver = match Driver::get() {
        Ok(driver) => driver,
        Err(Missing::Library(reason)) => return Probe::NoDriver { reason: reason.clone() },
        Err(Missing::Symbol(symbol)) => return Probe::DriverTooOld { version: 0, missing: Some(*symbol) },
    };
    match driver.init() {
        Ok(()) => {}
        Err(DriverCode::NO_DEVICE) => return Probe::NoDevice,
        Err(code @ DriverCode::STUB_LIBRARY) => return Probe::NoDriver { reason: code.to_string() },
        Err(code) => return Probe::Broken { code },
    }
    let version = match driver.version() {
        Ok(version) if version < VERSION_MIN => return Probe::DriverTooOld { version, missing: None },
        Ok(version) => version,
        Err(code) => return Probe::Broken { code },
    };
    match driver.device_count() {
        Ok(0) | Err(DriverCode::NO_DEVICE) => Probe::NoDevice,
        Err(code) => Probe::Broken { code },
        Ok(count) => match (0..count).map(|ordinal| facts_of(driver, ordinal)).collect() {
            Ok(devices) => Probe::Devices(DriverFacts {
                version,
                release: fs::read_to_string("/proc/driver/nvidia/version").ok().as_deref().and_then(release),
                library: driver.path(),
                devices,
            }),
            Err(code) => Probe::Broken { code },
        },
    }
}

fn facts_of(driver: &Driver, ordinal: u32) -> Result<DeviceFacts, DriverCode> {
    let device = driver.device(ordinal)?;
    let attribute = |number| driver.attribute(device, number);
    let pci_bus_id = driver.pci_bus_id(device).ok();
    let of_bus = |file: &str| {
        let text =
            fs::read_to_string(format!("/sys/bus/pci/devices/{}/{file}", pci_bus_id.as_ref()?)).ok()?;
        Some(text.trim().to_owned())
    };
    let numa_node = of_bus("numa_node").and_then(|node| node.parse().ok());
    let link = of_bus("max_link_speed").zip(of_bus("max_link_width"));
    Ok(DeviceFacts {
        ordinal,
        name: driver.device_name(device)?,
        memory_bytes: driver.total_memory(device).unwrap_or(0),
        compute_capability: (attribute(CAPABILITY_MAJOR)?, attribute(CAPABILITY_MINOR)?),
        multiprocessors: attribute(MULTIPROCESSORS)?,
        copy_engines: attribute(COPY_ENGINES)?,
        numa_node: numa_node.or_else(|| attribute(HOST_NUMA_ID).ok()),
        link: link.map(|(speed, width)| format!("{speed} x {width}")),
        takes_host_pointers: attribute(HOST_POINTER_OF_REGISTERED).is_ok_and(|value| value != 0),
        pci_bus_id,
    })
}

/// The driver's own version in the words of its kernel module.
fn release(text: &str) -> Option<String> {
    let is_release = |word: &&str| {
        word.contains('.')
            && word.split('.').all(|part| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit()))
    };
    text.lines().next()?.split_whitespace().find(is_release).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_release_is_the_first_version_that_the_kernel_module_names() {
        let text = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (x)  Mon\n\
                    GCC version:  gcc version 13.3.0\n";
        assert_eq!(release(text).as_deref(), Some("580.159.04"));
        assert_eq!(release("NVRM version: none"), None);
        assert_eq!(release(""), None);
    }

    #[test]
    fn only_words_for_no_turn_gpus_off() {
        for off in ["off", "OFF", "0", "no", "false"] {
            assert!(is_off(Some(off)), "{off}");
        }
        for on in [None, Some(""), Some("on"), Some("1"), Some("auto")] {
            assert!(!is_off(on), "{on:?}");
        }
    }

    #[test]
    fn what_was_found_can_be_read() {
        let too_old = Probe::DriverTooOld { version: 10_020, missing: None };
        assert_eq!(too_old.to_string(), "the CUDA driver is too old: it knows CUDA 10.2, not 11.4");
        assert!(too_old.devices().is_empty());
    }
}
