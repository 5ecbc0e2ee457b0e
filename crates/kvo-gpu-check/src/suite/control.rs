//! Control runs: devices with a defect, and the cases that find it. A suite that nothing can fail says nothing.

use std::{
    cell::RefCell,
    fmt, thread,
    time::{Duration, Instant},
};

use kvo_core::{
    AttachError, ComputePoint, DeviceBackend, DeviceHealth, DeviceInfo, DeviceSpan, Direction, DrainError,
    EventHandle, Fence, FenceError, MarkOrder, RegionId, StreamHandle, SubmitError, Ticket, Transfer,
    TransferCompletion, TransferFailure,
};
use kvo_cuda::CopyPath;

use super::{Case, Failure};
use crate::bed::{BedMaker, BedOptions, Hold, TestBed};

/// What other systems were found to do wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Defect {
    /// Stores do not wait for compute.
    StoresDoNotWait,
    /// Loads do not wait for compute that still reads.
    LoadsDoNotWait,
    /// The fence behind an event is taken only when something waits for it, so recording the event again moves it.
    FencesAreLate,
    /// Of what ended since the last poll only the first few are reported.
    CompletionsAreLost,
    /// After an error open tickets stay open.
    TicketsStayOpen,
}

/// A defect, and a case that has to fail with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Control {
    /// The defect.
    pub defect: Defect,
    /// The case's name.
    pub case: &'static str,
    /// What the case says then, for this is what it is there for.
    pub because: &'static str,
}

const BY_CHANCE: &str = "random_transfers_beside_compute_come_to_the_byte";

/// Every defect, with cases that find it.
pub fn controls() -> Vec<Control> {
    let control = |defect, case, because| Control { defect, case, because };
    vec![
        control(
            Defect::StoresDoNotWait,
            "a_store_has_what_compute_wrote_before_its_fence",
            "the slot has what compute wrote: ",
        ),
        control(Defect::StoresDoNotWait, "random_transfers_beside_compute_come_to_the_byte", "bytes differ"),
        control(
            Defect::LoadsDoNotWait,
            "a_load_leaves_a_block_alone_that_compute_still_reads",
            "a load has overwritten what compute still read",
        ),
        control(Defect::LoadsDoNotWait, "random_transfers_beside_compute_come_to_the_byte", "differ"),
        control(
            Defect::FencesAreLate,
            "a_fence_behind_an_event_that_is_recorded_again_holds_nobody_up",
            "1 transfers did not end within",
        ),
        control(
            Defect::FencesAreLate,
            "a_fence_does_not_move_with_its_event",
            "the fence stays behind the write",
        ),
        control(
            Defect::CompletionsAreLost,
            "each_ticket_completes_once_however_late_it_is_polled",
            "no completion is lost",
        ),
        control(
            Defect::TicketsStayOpen,
            "a_fault_of_a_kernel_fails_each_open_ticket_once",
            "12 transfers did not end within",
        ),
    ]
}

/// A control run did not show what it is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ControlError {
    /// The case held in spite of the defect.
    Passed,
    /// There is no such case.
    NoCase,
    /// It failed, for another reason.
    OtherReason(Failure),
}

impl fmt::Display for ControlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Passed => f.write_str("the case held in spite of the defect"),
            Self::NoCase => f.write_str("there is no such case"),
            Self::OtherReason(failure) => write!(f, "another reason: {failure}"),
        }
    }
}

impl std::error::Error for ControlError {}

impl fmt::Display for Control {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is found by {}", self.defect, self.case)
    }
}

impl Control {
    /// Whether it breaks the device for good; see [`Case::kills`].
    pub fn kills(&self) -> bool {
        Case::named(self.case).is_some_and(|case| case.kills)
    }

    /// Runs the case over beds whose devices have the defect, with little patience.
    ///
    /// # Errors
    /// [`ControlError`], unless the case failed as it has to.
    pub fn run(&self, maker: &dyn BedMaker) -> Result<(), ControlError> {
        let case = Case::named(self.case).ok_or(ControlError::NoCase)?;
        let broken = Broken::new(maker, self.defect);
        // Random traffic meets a defect by chance, and a loaded machine leaves it fewer.
        let attempts = if self.case == BY_CHANCE { 20 } else { 1 };
        let mut last = ControlError::Passed;
        for _ in 0..attempts {
            match case.run(&broken) {
                Ok(()) => last = ControlError::Passed,
                Err(failure) if failure.panic.as_ref().is_some_and(|panic| panic.contains(self.because)) => {
                    return Ok(());
                }
                Err(failure) => last = ControlError::OtherReason(failure),
            }
        }
        Err(last)
    }
}

/// Makes beds whose devices have a defect.
pub struct Broken<'a> {
    maker: &'a dyn BedMaker,
    defect: Defect,
}

impl fmt::Debug for Broken<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Broken").field("maker", &self.maker.name()).field("defect", &self.defect).finish()
    }
}

impl<'a> Broken<'a> {
    /// Beds of `maker`, with a defect.
    pub fn new(maker: &'a dyn BedMaker, defect: Defect) -> Self {
        Self { maker, defect }
    }
}

impl BedMaker for Broken<'_> {
    fn name(&self) -> String {
        format!("{}, with {:?}", self.maker.name(), self.defect)
    }

    fn is_model(&self) -> bool {
        self.maker.is_model()
    }

    fn paths(&self) -> Vec<Option<CopyPath>> {
        self.maker.paths()
    }

    fn patience(&self) -> Duration {
        Duration::from_millis(500)
    }

    fn make(&self, options: &BedOptions) -> Box<dyn TestBed> {
        let mut bed = self.maker.make(options);
        let info = bed.device().info().clone();
        // A fence that compute has passed, for those who shall not wait.
        let idle = bed.create_stream();
        let passed = bed.device().record_fence(ComputePoint::Stream(idle));
        let passed = passed.unwrap_or_else(|error| panic!("the fence of a control: {error}"));
        bed.synchronize(idle);
        let bed = RefCell::new(bed);
        let device = BrokenDevice { bed, info, passed, defect: self.defect, late: Vec::new(), num_lost: 0 };
        Box::new(BrokenBed { device })
    }

    fn complaints(&self) -> Vec<String> {
        self.maker.complaints()
    }
}

/// A bed whose device has a defect.
struct BrokenBed {
    device: BrokenDevice,
}

/// The device of a bed, with a defect.
struct BrokenDevice {
    bed: RefCell<Box<dyn TestBed>>,
    info: DeviceInfo,
    passed: Fence,
    defect: Defect,
    /// Events that a fence will be taken behind, by the fences' numbers.
    late: Vec<EventHandle>,
    num_lost: usize,
}

/// From here on the numbers of fences are of those that are taken late.
const LATE: u64 = 1 << 62;

/// Of what ended since the last poll, those that a device reports that loses completions.
const KEPT: usize = 8;

impl BrokenDevice {
    fn inner(&mut self) -> &mut dyn DeviceBackend {
        self.bed.get_mut().device()
    }

    /// What a transfer waits for in the end.
    fn fence_for(&mut self, transfer: &Transfer) -> Result<Fence, FenceError> {
        let waits = match transfer.class.direction() {
            Direction::Store => self.defect != Defect::StoresDoNotWait,
            Direction::Load => self.defect != Defect::LoadsDoNotWait,
        };
        if !waits {
            return Ok(self.passed);
        }
        let late = transfer.after.sequence().checked_sub(LATE).and_then(|nth| usize::try_from(nth).ok());
        match late.and_then(|nth| self.late.get(nth).copied()) {
            Some(event) => self.inner().record_fence(ComputePoint::Event(event)),
            None => Ok(transfer.after),
        }
    }

    /// Moves what the device reports to `done`, as far as it is not lost.
    fn report(&mut self, mut found: Vec<TransferCompletion>, done: &mut Vec<TransferCompletion>) {
        let before = found.len();
        match self.defect {
            Defect::CompletionsAreLost => found.truncate(KEPT),
            Defect::TicketsStayOpen => {
                found.retain(|done| !matches!(done.result, Err(TransferFailure::Device { .. })));
                self.num_lost += before - found.len();
            }
            _ => {}
        }
        done.append(&mut found);
    }
}

impl DeviceBackend for BrokenDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn attach(&mut self, span: DeviceSpan) -> Result<RegionId, AttachError> {
        self.inner().attach(span)
    }

    fn detach(&mut self, region: RegionId) -> Result<(), AttachError> {
        self.inner().detach(region)
    }

    fn record_fence(&mut self, point: ComputePoint) -> Result<Fence, FenceError> {
        match point {
            ComputePoint::Event(event) if self.defect == Defect::FencesAreLate => {
                self.late.push(event);
                Ok(Fence::new(self.info.id, LATE + self.late.len() as u64 - 1))
            }
            point => self.inner().record_fence(point),
        }
    }

    fn submit(&mut self, transfer: Transfer) -> Result<Ticket, SubmitError> {
        let after = transfer.after;
        let fence = self.fence_for(&transfer).unwrap_or(after);
        self.inner().submit(Transfer { after: fence, ..transfer }).map_err(|error| SubmitError {
            transfer: Transfer { after, ..error.transfer },
            reason: error.reason,
        })
    }

    fn order_after(
        &mut self,
        ticket: Ticket,
        mark: u32,
        stream: StreamHandle,
    ) -> Result<MarkOrder, FenceError> {
        self.inner().order_after(ticket, mark, stream)
    }

    fn poll(&mut self, done: &mut Vec<TransferCompletion>) {
        let mut found = Vec::new();
        self.inner().poll(&mut found);
        self.report(found, done);
    }

    fn wait(&mut self, timeout: Duration, done: &mut Vec<TransferCompletion>) {
        let (start, before) = (Instant::now(), done.len());
        let mut found = Vec::new();
        self.inner().wait(timeout, &mut found);
        self.report(found, done);
        if done.len() == before && self.num_lost > 0 {
            thread::sleep(timeout.saturating_sub(start.elapsed()));
        }
    }

    fn take_released(&mut self, released: &mut Vec<Ticket>) {
        self.inner().take_released(released);
    }

    fn health(&self) -> DeviceHealth {
        self.bed.borrow_mut().device().health()
    }

    fn drain(&mut self, timeout: Duration) -> Result<(), DrainError> {
        self.inner().drain(timeout)?;
        match self.num_lost {
            0 => Ok(()),
            inflight => Err(DrainError { inflight, waited: timeout }),
        }
    }
}

impl TestBed for BrokenBed {
    fn device(&mut self) -> &mut dyn DeviceBackend {
        &mut self.device
    }

    fn host(&self) -> std::sync::Arc<kvo_cpu::HostRegion> {
        self.device.bed.borrow().host()
    }

    fn allocate(&mut self, bytes: u64) -> DeviceSpan {
        self.device.bed.get_mut().allocate(bytes)
    }

    fn create_stream(&mut self) -> StreamHandle {
        self.device.bed.get_mut().create_stream()
    }

    fn create_event(&mut self) -> EventHandle {
        self.device.bed.get_mut().create_event()
    }

    fn record(&mut self, event: EventHandle, stream: StreamHandle) {
        self.device.bed.get_mut().record(event, stream);
    }

    fn fill(&mut self, stream: StreamHandle, address: u64, bytes: u64, seed: u64) {
        self.device.bed.get_mut().fill(stream, address, bytes, seed);
    }

    fn check(&mut self, stream: StreamHandle, address: u64, bytes: u64, seed: u64) {
        self.device.bed.get_mut().check(stream, address, bytes, seed);
    }

    fn hold(&mut self, stream: StreamHandle) -> Hold {
        self.device.bed.get_mut().hold(stream)
    }

    fn fault(&mut self, stream: StreamHandle) {
        self.device.bed.get_mut().fault(stream);
    }

    fn synchronize(&mut self, stream: StreamHandle) -> u64 {
        self.device.bed.get_mut().synchronize(stream)
    }

    fn read(&mut self, address: u64, bytes: &mut [u8]) {
        self.device.bed.get_mut().read(address, bytes);
    }

    fn write(&mut self, address: u64, bytes: &[u8]) {
        self.device.bed.get_mut().write(address, bytes);
    }

    fn complaints(&mut self) -> Vec<String> {
        self.device.bed.get_mut().complaints()
    }
}
