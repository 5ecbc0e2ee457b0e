//! Defects that are put in on purpose, to see that the oracle finds them.

use kvo_nvme::testing;

/// A defect. Where it is, what ships does something that it must not, or is told something that is not so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Plant {
    /// The store takes a wrong checksum for a right one.
    ChecksumIgnored,
    /// The store reports a write when it begins.
    WriteReportedEarly,
    /// Of two records of a chunk the store recovers the older one.
    OlderRecovered,
    /// A sync of the store does nothing.
    SyncsSkipped,
    /// A durable store takes for safe what a killed one had only told the system.
    OpenedUnsynced,
    /// A read of a tier that has failed is reported as done.
    FailedReadTakenForDone,
    /// A tier reports a job as done whose transfers go on.
    ReportedBeforeItsEnd,
    /// A tier lets go of a slot that its transfer still has.
    LetGoTooEarly,
    /// A tier never reports a job.
    TierReportLost,
    /// The engine does not wait for the copies that use its blocks.
    WaitsIgnored,
    /// A store does not wait for the compute that writes its blocks.
    StoreWithoutFence,
    /// A worker's report is lost.
    WorkerReportLost,
    /// What one worker has done is told of another too.
    WorkerReportForAnother,
    /// The engine takes a load that has failed for one that has not.
    FailedLoadTakenForDone,
    /// Blocks of prompts that differ in their last token have one hash.
    HashesShared,
    /// What a tier brings back goes to the workers in another order.
    WorkersSwapped,
    /// The connector is told one salt, whichever a request has.
    SaltsShared,
    /// The loads of requests that were aborted are not ended at the manager.
    PinsLeaked,
    /// An offer that is refused evicts a chunk all the same.
    RefusalEvicts,
    /// The engine takes blocks for free that it keeps for a copy.
    BlocksFreedTwice,
    /// Nobody is told of an eviction.
    EvictionUntold,
    /// The connector's clock stands still.
    DeadlinesIgnored,
    /// The connector is not told that other weights compute.
    WeightsUntold,
    /// Slots are wiped whoever uses them.
    WipedInUse,
    /// The connector is not told that the engine shuts down.
    ShutDownUntold,
}

impl Plant {
    /// All of them.
    pub const ALL: [Self; 25] = [
        Self::ChecksumIgnored,
        Self::WriteReportedEarly,
        Self::OlderRecovered,
        Self::SyncsSkipped,
        Self::OpenedUnsynced,
        Self::FailedReadTakenForDone,
        Self::ReportedBeforeItsEnd,
        Self::LetGoTooEarly,
        Self::TierReportLost,
        Self::WaitsIgnored,
        Self::StoreWithoutFence,
        Self::WorkerReportLost,
        Self::WorkerReportForAnother,
        Self::FailedLoadTakenForDone,
        Self::HashesShared,
        Self::WorkersSwapped,
        Self::SaltsShared,
        Self::PinsLeaked,
        Self::RefusalEvicts,
        Self::BlocksFreedTwice,
        Self::EvictionUntold,
        Self::DeadlinesIgnored,
        Self::WeightsUntold,
        Self::WipedInUse,
        Self::ShutDownUntold,
    ];

    /// The store's share of it.
    pub(crate) fn of_store(self) -> Option<testing::Plant> {
        match self {
            Self::ChecksumIgnored => Some(testing::Plant::ChecksumIgnored),
            Self::WriteReportedEarly => Some(testing::Plant::ReportedEarly),
            Self::OlderRecovered => Some(testing::Plant::OlderRecovered),
            Self::SyncsSkipped => Some(testing::Plant::SyncsSkipped),
            Self::OpenedUnsynced => Some(testing::Plant::OpenedUnsynced),
            _ => None,
        }
    }
}
