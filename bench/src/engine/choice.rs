//! Which device a replay runs on, and why it is that one.

use std::fmt;

use anyhow::bail;
use kvo_cuda::{DeviceFacts, DriverFacts, Probe};
use kvo_gpu_check::is_model;

/// Where the memory of a replay's GPU is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReplayDevice {
    /// In host memory: a model.
    #[default]
    Host,
    /// On a GPU, by the CUDA driver.
    Cuda {
        /// Which, as the probe counts.
        ordinal: u32,
    },
}

/// What was asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum DeviceChoice {
    /// Host memory in a GPU's place
    Host,
    /// A GPU; an error if there is none
    Cuda,
    /// A GPU if there is one, else host memory
    #[default]
    Auto,
}

/// The device that it comes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChosenDevice {
    /// It.
    pub device: ReplayDevice,
    /// In words: `host memory`, or a GPU with its driver and its link.
    pub name: String,
    /// Why, as it follows "because".
    pub reason: String,
    /// Whether its speed says nothing of any GPU.
    pub is_simulated: bool,
}

impl DeviceChoice {
    /// Decides by what a probe has found. `ordinal` says which GPU, if it comes to one.
    ///
    /// # Errors
    /// If a GPU is asked for and there is none, or none with that ordinal. The error names the flag of `kvo-bench`, and
    /// says what was found.
    pub fn decide(self, ordinal: u32, found: &Probe) -> anyhow::Result<ChosenDevice> {
        let facts = match (self, found) {
            (Self::Host, _) => return Ok(ChosenDevice::host("--device host asks for it".to_owned())),
            (Self::Cuda | Self::Auto, Probe::Devices(facts)) => facts,
            (Self::Cuda, _) => bail!("--device cuda: {found}"),
            (Self::Auto, _) => return Ok(ChosenDevice::host(found.to_string())),
        };
        let Some(device) = facts.devices.get(ordinal as usize) else {
            bail!("--device-ordinal {ordinal}: the CUDA driver sees {} device(s)", facts.devices.len());
        };
        let reason = match self {
            Self::Cuda => "--device cuda asks for it",
            Self::Auto | Self::Host => "the probe found it",
        };
        Ok(ChosenDevice {
            device: ReplayDevice::Cuda { ordinal },
            name: name(facts, device),
            reason: reason.to_owned(),
            is_simulated: is_model(device),
        })
    }
}

impl ChosenDevice {
    /// What it is called where the memory is the host's.
    pub const HOST: &'static str = "host memory";

    fn host(reason: String) -> Self {
        Self { device: ReplayDevice::Host, name: Self::HOST.to_owned(), reason, is_simulated: true }
    }
}

impl fmt::Display for ChosenDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "device: {}, because {}", self.name, self.reason)
    }
}

fn name(facts: &DriverFacts, device: &DeviceFacts) -> String {
    let cuda = format!("CUDA {}.{}", facts.version / 1000, facts.version % 1000 / 10);
    let driver = facts.release.clone().unwrap_or_else(|| format!("for {cuda}"));
    let link = device.link.as_ref().map_or_else(String::new, |link| format!(", {link}"));
    format!("{} (cuda:{}, driver {driver}{link})", device.name, device.ordinal)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(name: &str) -> Probe {
        let device = DeviceFacts {
            ordinal: 0,
            name: name.to_owned(),
            memory_bytes: 1 << 30,
            compute_capability: (9, 0),
            multiprocessors: 132,
            copy_engines: 3,
            pci_bus_id: None,
            numa_node: None,
            link: Some("32.0 GT/s PCIe x 16".to_owned()),
            takes_host_pointers: true,
        };
        let release = Some("580.65.06".to_owned());
        Probe::Devices(DriverFacts { version: 13_000, release, library: None, devices: vec![device] })
    }

    fn no_driver() -> Probe {
        Probe::NoDriver { reason: "libcuda.so.1: cannot open shared object file".to_owned() }
    }

    #[track_caller]
    fn check(choice: DeviceChoice, found: &Probe, line: &str, is_simulated: bool) {
        let chosen = choice.decide(0, found).unwrap();
        assert_eq!((chosen.to_string().as_str(), chosen.is_simulated), (line, is_simulated));
        assert_eq!(chosen.device == ReplayDevice::Host, line.contains("host memory"));
    }

    #[track_caller]
    fn check_refused(choice: DeviceChoice, ordinal: u32, found: &Probe, error: &str) {
        assert_eq!(choice.decide(ordinal, found).unwrap_err().to_string(), error);
    }

    #[test]
    fn auto_takes_the_gpu_that_is_there() {
        let line =
            "device: NVIDIA H200 (cuda:0, driver 580.65.06, 32.0 GT/s PCIe x 16), because the probe found it";
        check(DeviceChoice::Auto, &gpu("NVIDIA H200"), line, false);
    }

    #[test]
    fn auto_takes_host_memory_and_says_what_is_missing() {
        let line = "device: host memory, because there is no CUDA driver: libcuda.so.1: cannot open shared object file";
        check(DeviceChoice::Auto, &no_driver(), line, true);
        let line = "device: host memory, because GPUs are turned off by KVO_CUDA";
        check(DeviceChoice::Auto, &Probe::Disabled, line, true);
    }

    #[test]
    fn what_is_asked_for_is_taken_or_refused() {
        check(
            DeviceChoice::Host,
            &gpu("NVIDIA H200"),
            "device: host memory, because --device host asks for it",
            true,
        );
        let line = "device: NVIDIA H200 (cuda:0, driver 580.65.06, 32.0 GT/s PCIe x 16), because --device cuda asks \
                    for it";
        check(DeviceChoice::Cuda, &gpu("NVIDIA H200"), line, false);
        let error = "--device cuda: there is no CUDA driver: libcuda.so.1: cannot open shared object file";
        check_refused(DeviceChoice::Cuda, 0, &no_driver(), error);
        check_refused(
            DeviceChoice::Cuda,
            0,
            &Probe::NoDevice,
            "--device cuda: the CUDA driver sees no device",
        );
        let error = "--device-ordinal 3: the CUDA driver sees 1 device(s)";
        check_refused(DeviceChoice::Cuda, 3, &gpu("NVIDIA H200"), error);
        check_refused(DeviceChoice::Auto, 3, &gpu("NVIDIA H200"), error);
    }

    #[test]
    fn a_gpu_of_a_driver_for_tests_is_a_model() {
        let chosen = DeviceChoice::Auto.decide(0, &gpu("kvo fake device 0 (model)")).unwrap();
        assert!(chosen.is_simulated && chosen.device == ReplayDevice::Cuda { ordinal: 0 });
    }
}
