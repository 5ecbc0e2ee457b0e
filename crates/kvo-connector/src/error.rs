//! Errors. None of them leaves anything changed, but for [`ConnectorError::Gone`], which says what.

use kvo_core::{
    AttachError, FenceError, GroupIdx, LoadError, RegionId, RequestError, RequestId, TransferClass,
};
use kvo_cuda::GeometryError;

use crate::CopyId;

/// Options that cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OptionsError {
    /// A count or a size that must be at least one is zero.
    #[error("{field} must be at least 1")]
    Zero {
        /// The option.
        field: String,
    },
    /// A group's blocks do not end where hashes do.
    #[error(
        "groups[{group}].block_tokens is {block_tokens}, which is no multiple of hash_tokens, {hash_tokens}"
    )]
    NoMultiple {
        /// The group.
        group: usize,
        /// Its block.
        block_tokens: u32,
        /// Tokens a hash.
        hash_tokens: u32,
    },
    /// A chunk's tokens do not fit 32 bits.
    #[error(
        "groups[{group}]: {blocks_per_chunk} blocks of {block_tokens} tokens are more than 32 bits can count"
    )]
    ChunkTooLarge {
        /// The group.
        group: usize,
        /// Its block.
        block_tokens: u32,
        /// Blocks a chunk.
        blocks_per_chunk: u32,
    },
    /// A rate is not above zero.
    #[error("{field} must be above 0")]
    NoRate {
        /// The option.
        field: &'static str,
    },
    /// All groups have windows of one token: nothing that is computed is attended to later.
    #[error("groups: no token attends to one before it, so there is nothing to load")]
    NothingToLoad,
    /// There is no number of tokens, below 2^32, that is whole blocks in every group.
    #[error("groups: no number of tokens is whole blocks in every group")]
    BlocksDoNotMeet,
}

/// A call that does not fit what the connector knows.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectorError {
    /// The request is not known here, or known already, or finished.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// A load's class cannot be [`TransferClass::Store`].
    #[error("request {req}: {class:?} is no class of loads")]
    NoLoadClass {
        /// The request.
        req: RequestId,
        /// What was given.
        class: TransferClass,
    },
    /// A request of that number has finished with copies open, and [`take_settled`](crate::Connector::take_settled) has not
    /// named it since. Only if the engine [keeps blocks](crate::ConnectorOptions::keeps_blocks) until then.
    #[error("request {req} has finished, and its blocks are kept")]
    Unsettled {
        /// The request.
        req: RequestId,
    },
    /// The request is loading: it is matched again when that is over.
    #[error("request {req} is loading, and has nothing else to do until that is over")]
    Loading {
        /// The request.
        req: RequestId,
    },
    /// Blocks were allocated for a match that was not made in this step.
    #[error("request {req} has no match of this step to allocate blocks for")]
    NoMatch {
        /// The request.
        req: RequestId,
    },
    /// There are not as many tables as groups.
    #[error("request {req}: {given} block tables for {groups} groups")]
    WrongNumberOfTables {
        /// The request.
        req: RequestId,
        /// Tables that were given.
        given: usize,
        /// Groups that there are.
        groups: usize,
    },
    /// A block table is too short for what is to be loaded, or lacks a block there.
    #[error("request {req}, group {}: block {block} of the table is missing", group.0)]
    NoBlock {
        /// The request.
        req: RequestId,
        /// The group.
        group: GroupIdx,
        /// Which block of the table.
        block: usize,
    },
    /// More blocks are said to be kept than the connector knows of: none, of a request that is preempted in the same step.
    #[error("request {req}, group {}: {kept} blocks are kept of {known}", group.0)]
    TooManyKept {
        /// The request.
        req: RequestId,
        /// The group.
        group: GroupIdx,
        /// What was given.
        kept: usize,
        /// What the connector knows of.
        known: usize,
    },
    /// A step schedules a request twice.
    #[error("request {req} is scheduled twice in one step")]
    ScheduledTwice {
        /// The request.
        req: RequestId,
    },
    /// Fewer tokens are final than were before.
    #[error(
        "request {req}: {settled} tokens are settled, and {before} were before: preempt it to take tokens back"
    )]
    TokensTakenBack {
        /// The request.
        req: RequestId,
        /// What was given.
        settled: u32,
        /// What was given before.
        before: u32,
    },
    /// More tokens are said to be computed, or settled, than the request has.
    #[error("request {req}: {computed} tokens are computed of {num_tokens}")]
    TooManyTokens {
        /// The request.
        req: RequestId,
        /// What was given: the larger of the two.
        computed: u32,
        /// Tokens that the request has.
        num_tokens: u32,
    },
    /// The request is said to have more tokens than a load has left that has failed or is void: behind those, blocks may have
    /// anything in them. It computes from there on, or is preempted.
    #[error("request {req}: {computed} tokens are computed, and a load that came to nothing has left {good}")]
    Spoilt {
        /// The request.
        req: RequestId,
        /// What was given.
        computed: u32,
        /// Tokens that are good.
        good: u32,
    },
    /// What was matched in this step cannot be loaded, as two chunks of one copy have one name: the engine has given the same
    /// hash twice. The request is to compute. It has met the chunks of the copies before that one, which may count as a reuse
    /// of them; nothing else has changed.
    #[error("request {req}: what was matched cannot be loaded")]
    Gone {
        /// The request.
        req: RequestId,
        /// What the manager said.
        #[source]
        error: LoadError,
    },
    /// A reset to new weights names those that there are.
    #[error("epoch {epoch} is that of now")]
    SameEpoch {
        /// What was given.
        epoch: u64,
    },
    /// No such copy is open, or that worker has reported it.
    #[error("copy {} is not open at worker {worker}", copy.0)]
    NotOpen {
        /// The copy.
        copy: CopyId,
        /// The worker.
        worker: u32,
    },
}

/// A worker cannot be made, or a stream does not wait.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WorkerError {
    /// There are not as many caches as the layout has regions.
    #[error("{caches} caches for a layout of {regions} regions")]
    NumberOfCaches {
        /// Caches that were given.
        caches: usize,
        /// Regions of the layout.
        regions: usize,
    },
    /// A cache is smaller than its region.
    #[error("cache {nth} has {bytes} bytes, the layout needs {needed}")]
    CacheTooSmall {
        /// Which cache.
        nth: usize,
        /// What it has.
        bytes: u64,
        /// What it needs.
        needed: u64,
    },
    /// The device does not take a cache.
    #[error("cache {nth} cannot be attached")]
    Attach {
        /// Which cache.
        nth: usize,
        /// Why.
        #[source]
        error: AttachError,
    },
    /// Something else was attached to the device before.
    #[error("cache {nth} is region {} of the device, the layout calls it {}", attached.0, region.0)]
    OtherRegion {
        /// Which cache.
        nth: usize,
        /// What the layout calls it.
        region: RegionId,
        /// What the device calls it.
        attached: RegionId,
    },
    /// The device's host memory has fewer slots than the plans may name, or shorter ones.
    #[error(
        "plans name {num_slots} slots of {slot_bytes} bytes, and the device has {of_device} of {bytes_of_device}"
    )]
    HostMemory {
        /// Slots of the manager.
        num_slots: u32,
        /// Bytes of each.
        slot_bytes: u64,
        /// Slots that the device was built over.
        of_device: u32,
        /// Bytes of each.
        bytes_of_device: u64,
    },
    /// The layout and the slots do not fit.
    #[error(transparent)]
    Geometry(#[from] GeometryError),
    /// A stream cannot be made to wait.
    #[error(transparent)]
    Fence(#[from] FenceError),
}
