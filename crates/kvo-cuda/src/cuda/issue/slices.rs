//! Copies by the kernel: cut into slices, of which the device reads a list.

use std::{ptr::NonNull, sync::Arc};

use kvo_core::Direction;

use super::{HostCopy, pinned::Pinned};
use crate::{
    copy_kernel::{Grid, Launch, Slice, cut},
    cuda::driver::{CallError, Context, CopyKernel, Stream},
};

const LISTS: usize = 32;
/// More slices than a piece of 8 MiB and 1,024 copies has.
const LIST_LEN: usize = 2048;
const LIST_BYTES: usize = LIST_LEN * Slice::BYTES;

/// The kernel, and lists for so many launches at a time.
pub(crate) struct KernelLists {
    kernel: CopyKernel,
    memory: Pinned,
    /// A bit a list that a launch may still read.
    busy: Lists,
    fragments: Vec<Slice>,
    slices: Vec<Slice>,
    launches: Vec<Launch>,
    grid: Grid,
}

/// A set of lists, a bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Lists(u32);

impl Lists {
    pub(crate) fn join(&mut self, others: Self) {
        self.0 |= others.0;
    }
}

impl KernelLists {
    /// Has the driver compile the kernel, to run on at most so much. The context is current.
    pub(crate) fn new(context: &Arc<Context>, grid: Grid) -> Result<Self, CallError> {
        let kernel = CopyKernel::load(context)?;
        let memory = Pinned::new(context, LISTS * LIST_BYTES)?;
        Ok(Self {
            kernel,
            memory,
            busy: Lists::default(),
            fragments: Vec::new(),
            slices: Vec::new(),
            launches: Vec::new(),
            grid,
        })
    }

    /// Puts copies on `stream` by launches, of which there is one if they are not very many. `address` says by which
    /// address the device knows the host's side of a copy. Gives the list that they read, to be [freed](Self::free) when
    /// the stream has passed them; `None` if none is free, or the copies too many. After an error the list that is given
    /// is in use too, by the launches before.
    pub(crate) fn put(
        &mut self,
        direction: Direction,
        copies: &[HostCopy],
        address: impl Fn(&HostCopy) -> u64,
        stream: &Stream,
    ) -> (Option<Lists>, Result<(), CallError>) {
        self.fragments.clear();
        self.fragments.extend(copies.iter().map(|copy| {
            let (host, bytes) = (address(copy), copy.bytes as u64);
            match direction {
                Direction::Load => Slice { source: host, destination: copy.device, bytes },
                Direction::Store => Slice { source: copy.device, destination: host, bytes },
            }
        }));
        self.slices.clear();
        self.launches.clear();
        cut(&self.fragments, self.grid, &mut self.slices, &mut self.launches);
        let free = self.busy.0.trailing_ones() as usize;
        if self.slices.len() > LIST_LEN || free >= LISTS {
            return (None, Ok(()));
        }
        self.write(free);
        self.busy.0 |= 1 << free;
        let list = self.memory.device() + (free * LIST_BYTES) as u64;
        let put = self.launches.iter().try_for_each(|launch| {
            // SAFETY: the list is not written again before it is freed, which is after the stream has passed the
            // launch. The copies are as in `one_by_one`, on the host by the device's address for it; the queue checked
            // that no two copies of a transfer write the same bytes.
            unsafe { self.kernel.launch(launch, list, stream) }
        });
        (Some(Lists(1 << free)), put)
    }

    /// Writes the slices to a list that no launch reads.
    fn write(&mut self, list: usize) {
        // SAFETY: the caller gives the number of a list, below `LISTS`, so it lies inside of the memory, which `self` owns.
        let to = unsafe { self.memory.first().add(list * LIST_BYTES) };
        let from = NonNull::from(&mut self.slices[..]).cast::<Slice>();
        // SAFETY: the list is not busy, so nobody reads it. It is long enough, aligned to 64 bytes, and other lists lie
        // elsewhere.
        unsafe { to.cast::<Slice>().copy_from_nonoverlapping(from, self.slices.len()) };
    }

    /// The stream has passed the launches that read these.
    pub(crate) fn free(&mut self, lists: Lists) {
        self.busy.0 &= !lists.0;
    }
}

impl KernelLists {
    /// The streams have passed every launch.
    pub(crate) fn free_all(&mut self) {
        self.busy = Lists::default();
    }
}

impl Drop for KernelLists {
    fn drop(&mut self) {
        if self.busy != Lists::default() {
            self.memory.leak();
            self.kernel.leak();
        }
    }
}
