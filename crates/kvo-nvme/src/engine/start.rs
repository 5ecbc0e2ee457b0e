//! The choice of an engine.

use std::{fs::File, sync::Arc};

use crossbeam_channel::Sender;
use kvo_core::HostMemory;
use rustix::fs::{OFlags, fcntl_getfl};

use super::{Engine, Event, pool::Pool, uring::Uring};
use crate::{EngineKind, NvmeOptions, OpenError, options::Geometry, worker::Worker};

/// Which engine a store got, and what it works with.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct EngineInfo {
    /// The engine; never [`EngineKind::Auto`].
    pub kind: EngineKind,
    /// Why it is threads although nobody asked for them; `None` if that was not so.
    pub fallback: Option<String>,
    /// Whether the kernel knows the host memory beforehand, which spares it work. Threads never register it.
    pub registered_buffers: bool,
    /// Whether I/O goes past the page cache, on every device.
    pub direct_io: bool,
}

/// An engine, and what there is to say about it.
pub(crate) struct Started {
    pub(crate) engine: Box<dyn Engine>,
    pub(crate) info: EngineInfo,
}

/// Starts the engine that the options ask for, on `files`, one a device, each as long as the geometry says, and the same
/// that the worker has.
///
/// `io_uring` is tried on each file before it is trusted: a page at 1 MiB, which belongs to no slot, is read, written
/// as it was, and read again. Through the page cache it gains nothing: the ring's thread would copy all bytes itself, one
/// chunk after the other. So it is used there only if it was asked for.
///
/// # Errors
/// [`OpenError::Uring`] if `io_uring` was asked for and does not work; [`OpenError::Thread`]. Then no thread is left.
pub(crate) fn start(
    options: &NvmeOptions,
    files: &[Arc<File>],
    worker: &Worker,
    events: &Sender<Event>,
) -> Result<Started, OpenError> {
    let direct_io =
        files.iter().all(|file| fcntl_getfl(&**file).is_ok_and(|flags| flags.contains(OFlags::DIRECT)));
    let fallback = match options.engine {
        EngineKind::Threads => None,
        EngineKind::Auto if !direct_io => {
            tracing::warn!(tier = options.name, "no direct I/O: threads are used instead of io_uring");
            Some("there is no direct I/O".to_owned())
        }
        EngineKind::Auto | EngineKind::Uring => {
            match start_uring(options, worker.geometry, files, &worker.memory, events) {
                Ok(uring) => {
                    let info = EngineInfo {
                        kind: EngineKind::Uring,
                        fallback: None,
                        registered_buffers: uring.has_registered_buffers(),
                        direct_io,
                    };
                    return Ok(Started { engine: Box::new(uring), info });
                }
                Err(OpenError::Uring { step, source }) if options.engine == EngineKind::Auto => {
                    tracing::warn!(tier = options.name, step, %source, "no io_uring: threads are used instead");
                    Some(format!("it was refused to {step}: {source}"))
                }
                Err(error) => return Err(error),
            }
        }
    };
    let pool = Pool::start(options.num_threads, worker, events)?;
    let info = EngineInfo { kind: EngineKind::Threads, fallback, registered_buffers: false, direct_io };
    Ok(Started { engine: Box::new(pool), info })
}

fn start_uring(
    options: &NvmeOptions,
    geometry: Geometry,
    files: &[Arc<File>],
    memory: &Arc<dyn HostMemory>,
    events: &Sender<Event>,
) -> Result<Uring, OpenError> {
    let Some(memory) = Arc::clone(memory).into_stable() else {
        let source = std::io::ErrorKind::Unsupported.into();
        return Err(OpenError::Uring { step: "use host memory that may move", source });
    };
    Uring::start(options, geometry, files, &memory, events)
}
