//! Bytes a chunk.

use std::fs;

use super::{CHAIN, Job, MicroError, Subject, Sweep, chains};

/// Bytes of memory that this process has now.
///
/// # Errors
/// If the system does not say.
pub fn resident_bytes() -> Result<u64, MicroError> {
    let status = fs::read_to_string("/proc/self/status").map_err(MicroError::Memory)?;
    status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix("kB")?.trim().parse::<u64>().ok())
        .map(|kib| kib * 1024)
        .ok_or_else(|| MicroError::Memory(std::io::ErrorKind::InvalidData.into()))
}

/// Fills a subject of `chunks`, a chain at a time, and turns half of it over.
///
/// # Errors
/// If the subject fails.
pub fn fill_once(subject: &mut dyn Subject, chunks: u32, sweep: &mut Sweep) -> Result<(), MicroError> {
    let num_chains = u64::from(chunks) / CHAIN as u64;
    for chain in 0..num_chains + num_chains / 2 {
        subject.run(Job::Cycle32, &chains([chain]), sweep)?;
    }
    Ok(())
}
