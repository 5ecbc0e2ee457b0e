//! What every device must do: cases that run over any bed, and control runs that must fail.
//!
//! ```text
//!   cases() ──▶ Case::run(maker) ──▶ a bed or two of the maker's ──▶ Ok, or a Failure that says what and where
//!   controls() ─▶ Control::run(maker) ─▶ the same case over a Broken device: Ok only if it failed for its reason
//! ```
//!
//! A case holds the engine's streams up and says in which order things happen; of time it asks only that what has to
//! happen does, within a patience that is long. Guards of a device cannot be switched off from outside of its crate, so
//! the defects of control runs are put around it, as its caller sees them. What is particular to one device, and faults
//! that a driver has to be made to have, are tested beside that device.

mod bytes;
mod classes;
mod control;
mod death;
mod ends;
mod marks;
mod order;
mod refusals;
mod rig;
mod traffic;

use std::{cell::RefCell, error, fmt, panic, sync::Once};

use kvo_cuda::CopyPath;

use self::rig::Ground;
pub use self::{
    control::{Broken, Control, ControlError, Defect, controls},
    traffic::{Traffic, TrafficCounts},
};
use crate::bed::BedMaker;

/// A fact of every device.
#[derive(Clone, Copy)]
pub struct Case {
    /// The fact.
    pub name: &'static str,
    /// The way its copies go. Only makers that have that [way](BedMaker::paths) can run it.
    pub path: Option<CopyPath>,
    /// Whether it breaks the device for good: on a GPU it has to have a process of its own.
    pub kills: bool,
    /// Whether its copies go in batches, with which some drivers end or hang the process: on a GPU it runs last, in a
    /// process of its own.
    pub needs_batches: bool,
    run: fn(&Ground<'_>),
}

impl fmt::Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Case").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Case {
    /// The case of that name.
    pub fn named(name: &str) -> Option<Self> {
        cases().into_iter().find(|case| case.name == name)
    }

    /// Whether beds of this maker can have its copies go its way.
    pub fn runs_on(&self, maker: &dyn BedMaker) -> bool {
        maker.paths().contains(&self.path)
    }

    /// Runs it over beds of its own.
    ///
    /// # Errors
    /// [`Failure`] says what was not as it should be.
    pub fn run(&self, maker: &dyn BedMaker) -> Result<(), Failure> {
        let ground = Ground::new(maker, self.path);
        let panic = caught(|| (self.run)(&ground)).err();
        let complaints = ground.into_complaints();
        if panic.is_none() && complaints.is_empty() {
            return Ok(());
        }
        Err(Failure { case: self.name.to_owned(), panic, complaints })
    }
}

/// A case did not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Its name.
    pub case: String,
    /// What it found wrong, and at which line, if it found something itself.
    pub panic: Option<String>,
    /// What whoever watches the bed has seen that no program may do.
    pub complaints: Vec<String>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} does not hold", self.case)?;
        let said = self.panic.iter().chain(&self.complaints);
        said.into_iter().try_for_each(|said| write!(f, "\n  {said}"))
    }
}

impl error::Error for Failure {}

thread_local! {
    /// What has panicked on this thread, while a case runs on it.
    static PANICS: RefCell<Option<Vec<String>>> = const { RefCell::new(None) };
}

/// Runs `body`, and returns the message and the place of its panic instead of printing them.
pub(crate) fn caught<T>(body: impl FnOnce() -> T) -> Result<T, String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            let message = info.payload_as_str().unwrap_or("something that is no text");
            let place = info.location().map_or_else(String::new, |location| format!(" ({location})"));
            let note = |panics: &RefCell<Option<Vec<String>>>| {
                panics.borrow_mut().as_mut().map(|panics| panics.push(format!("{message}{place}")))
            };
            if PANICS.try_with(note).ok().flatten().is_none() {
                before(info);
            }
        }));
    });
    PANICS.set(Some(Vec::new()));
    let outcome = panic::catch_unwind(panic::AssertUnwindSafe(body));
    let panics = PANICS.take().unwrap_or_default();
    outcome.map_err(|_| panics.join("; then "))
}

/// Hands the cases that leave the way of copies to the device to a macro, as `group { case .. }`: for tests that have the
/// names of cases. Those of the group `death` kill.
#[macro_export]
macro_rules! each_case {
    ($to:ident) => {
        $to! {
            order {
                a_store_has_what_compute_wrote_before_its_fence
                a_load_leaves_a_block_alone_that_compute_still_reads
                a_fence_behind_an_event_that_is_recorded_again_holds_nobody_up
                a_fence_does_not_move_with_its_event
                a_fence_waits_for_nothing_but_what_was_on_its_stream
                an_event_that_was_never_recorded_holds_nobody_up
                any_number_of_transfers_wait_for_a_fence_before_and_after_it_is_passed
                a_block_that_is_rewritten_behind_its_store_was_stored_as_it_was
                fences_that_are_too_many_are_refused_until_compute_goes_on
            }
            ends {
                each_ticket_completes_once_however_it_is_polled
                each_ticket_completes_once_however_late_it_is_polled
                a_wait_with_nothing_in_flight_returns_at_once
                a_wait_without_time_returns_at_once
                a_drain_that_takes_too_long_says_what_is_left
                a_slot_is_free_when_its_transfer_has_completed
                a_slot_in_use_fails_its_transfer_alone
                a_late_transfer_is_reported_once_and_kept_until_it_is_released
                a_transfer_may_be_late_at_any_moment
                a_dropped_device_ends_its_work_and_frees_its_slots
            }
            refusals {
                a_full_device_hands_the_transfer_back_until_a_completion_is_polled
                a_refused_transfer_is_handed_back_and_changes_nothing
                only_memory_of_the_device_that_is_no_region_yet_is_attached
                a_region_is_let_go_when_no_transfer_names_it_and_its_id_never_comes_again
                handles_of_another_device_are_refused
                handles_of_nothing_are_refused
            }
            classes {
                an_urgent_load_overtakes_those_that_are_queued
                loads_of_a_class_start_in_the_order_of_submission
                stores_and_loads_do_not_wait_for_one_another
                a_class_that_waits_holds_up_none_that_is_more_urgent
            }
            marks {
                compute_behind_a_mark_finds_what_is_before_it
                marks_come_in_their_order
                a_mark_that_is_not_on_its_way_is_asked_for_again
                marks_that_are_not_there_or_over_are_said
            }
            bytes {
                a_transfer_may_name_several_regions_and_parts_of_allocations
                copies_of_any_alignment_and_length_come_to_the_byte
                pages_at_constant_steps_come_to_the_byte
                thousands_of_copies_come_to_the_byte
                copies_longer_than_a_window_come_whole
            }
            traffic {
                random_transfers_beside_compute_come_to_the_byte
            }
            death {
                a_fault_of_a_kernel_fails_each_open_ticket_once
                memory_and_other_devices_outlive_a_dead_one
            }
        }
    };
}

/// As [`each_case`], for those that there are also once for each way of copies, with names that end with it.
#[macro_export]
macro_rules! each_case_of_a_path {
    ($to:ident) => {
        $to! {
            bytes {
                copies_of_any_alignment_and_length_come_to_the_byte
                pages_at_constant_steps_come_to_the_byte
                thousands_of_copies_come_to_the_byte
                copies_longer_than_a_window_come_whole
            }
            traffic {
                random_transfers_beside_compute_come_to_the_byte
            }
        }
    };
}

/// All cases: those of batches last, and before them those that break the device.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    macro_rules! plain {
        ($($group:ident { $($name:ident)* })*) => {
            $($(cases.push(Case {
                name: stringify!($name),
                path: None,
                kills: stringify!($group) == "death",
                needs_batches: false,
                run: $group::$name,
            });)*)*
        };
    }
    macro_rules! of_paths {
        ($($group:ident { $($name:ident)* })*) => {
            $($(for (path, name) in [
                (CopyPath::Memcpy, concat!(stringify!($name), "_by_memcpy")),
                (CopyPath::Rows, concat!(stringify!($name), "_by_rows")),
                (CopyPath::Kernel, concat!(stringify!($name), "_by_kernel")),
                (CopyPath::Batch, concat!(stringify!($name), "_by_batch")),
            ] {
                let needs_batches = path == CopyPath::Batch;
                let run = $group::$name;
                cases.push(Case { name, path: Some(path), kills: false, needs_batches, run });
            })*)*
        };
    }
    each_case!(plain);
    each_case_of_a_path!(of_paths);
    cases.sort_by_key(|case| (case.needs_batches, case.kills));
    cases
}
