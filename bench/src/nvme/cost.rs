//! What a run costs.

use std::{
    fs,
    time::{Duration, Instant},
};

use rustix::time::{ClockId, clock_gettime};

/// What a run took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// By the wall clock.
    pub wall: Duration,
    /// User and system time of all threads.
    pub cpu: Duration,
    /// What the kernel counted as read from devices and written to them; none where it does not say.
    pub device: Option<DeviceBytes>,
}

/// Bytes between a process and devices, as the kernel counts them.
///
/// What comes from the page cache is no read. A write through the page cache is counted when its page becomes dirty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceBytes {
    /// Read.
    pub read: u64,
    /// Written.
    pub written: u64,
}

/// Measures what this process does from now on.
#[derive(Clone, Copy, Debug)]
pub struct Meter {
    started: Instant,
    cpu: Duration,
    device: Option<DeviceBytes>,
}

impl Meter {
    /// Begins.
    pub fn start() -> Self {
        let device = DeviceBytes::of_this_process();
        Self { cpu: process_time(), device, started: Instant::now() }
    }

    /// What was used since the start.
    pub fn stop(self) -> Cost {
        let wall = self.started.elapsed();
        let cpu = process_time().saturating_sub(self.cpu);
        let device = self.device.zip(DeviceBytes::of_this_process()).map(|(before, after)| DeviceBytes {
            read: after.read.saturating_sub(before.read),
            written: after.written.saturating_sub(before.written),
        });
        Cost { wall, cpu, device }
    }
}

impl Cost {
    /// Megabytes (10^6) a second.
    pub fn mb_per_s(&self, bytes: u64) -> f64 {
        // A clock that stood still would make an infinity.
        bytes as f64 / 1e6 / self.wall.as_secs_f64().max(1e-9)
    }

    /// Seconds of a core a gigabyte (10^9).
    pub fn cpu_s_per_gb(&self, bytes: u64) -> f64 {
        self.cpu.as_secs_f64() / (bytes as f64 / 1e9)
    }
}

impl DeviceBytes {
    fn of_this_process() -> Option<Self> {
        let text = fs::read_to_string("/proc/self/io").ok()?;
        let number = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
        Some(Self { read: number("read_bytes:")?, written: number("write_bytes:")? })
    }
}

/// The CPU time that this process has used so far: user and system, of all threads, those that have ended too.
///
/// It is what `getrusage` says, in nanoseconds instead of in ticks.
pub fn process_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ProcessCPUTime)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_other_threads_counts_and_idle_time_does_not() {
        let meter = Meter::start();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let enough = process_time() + Duration::from_millis(20);
                while process_time() < enough {}
            });
        });
        std::thread::sleep(Duration::from_millis(5));
        let cost = meter.stop();
        assert!(cost.cpu >= Duration::from_millis(20), "{cost:?}");
        assert!(cost.wall >= Duration::from_millis(5), "{cost:?}");
    }

    #[test]
    fn rates_are_of_powers_of_ten() {
        let cost = Cost { wall: Duration::from_millis(500), cpu: Duration::from_millis(40), device: None };
        assert!((cost.mb_per_s(1_000_000_000) - 2000.0).abs() < 1e-6);
        assert!((cost.cpu_s_per_gb(2_000_000_000) - 0.02).abs() < 1e-9);
    }
}
