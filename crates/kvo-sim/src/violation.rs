//! What a run that fails has violated, and how it gets out of the depths of a run.

use std::{
    cell::RefCell,
    fmt,
    panic::{AssertUnwindSafe, catch_unwind, panic_any, set_hook, take_hook},
    sync::Once,
};

/// What always holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rule {
    /// The parts of a tier add up to its capacity, and are what open jobs have of it; a block is in one place.
    Counts,
    /// When nothing is under way nothing is left: no pin, no state of a request, no open job, no block that is kept.
    Quiescence,
    /// A job has one result; a second one, or one of no job, is counted and changes nothing.
    OneResult,
    /// What a copy may touch is neither used for anything else nor given back.
    InUse,
    /// Bytes are right, or a failure is reported.
    Bytes,
    /// What is asked for is decided, in time.
    Progress,
    /// What is refused changes nothing; who is held off is given no copy.
    Refusal,
    /// Events tell what is there.
    Events,
    /// An assertion of the code that ships has failed, or of the simulated disk, which says what.
    Panic,
}

/// A rule that a run has violated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The rule.
    pub rule: Rule,
    /// What was found.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.rule, self.what)
    }
}

/// Ends the run here if `holds` is false.
#[track_caller]
pub(crate) fn check(holds: bool, rule: Rule, what: impl FnOnce() -> String) {
    if !holds {
        violated(rule, what());
    }
}

/// Ends the run here.
#[track_caller]
pub(crate) fn violated(rule: Rule, what: String) -> ! {
    panic_any(Violation { rule, what })
}

thread_local! {
    static WATCH: RefCell<Watch> = const { RefCell::new(Watch::Nothing) };
}

/// What is known of the run that is under way on a thread.
enum Watch {
    /// There is none.
    Nothing,
    /// It has not panicked.
    Quiet,
    /// It has, about this first.
    Panicked(String),
}

/// Runs something that may end with a violation, and prints nothing of it.
pub(crate) fn caught<T>(run: impl FnOnce() -> T) -> Result<T, Violation> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let hook = take_hook();
        set_hook(Box::new(move |info| {
            WATCH.with_borrow_mut(|watch| match watch {
                Watch::Nothing => hook(info),
                Watch::Quiet => *watch = Watch::Panicked(info.to_string()),
                // What is thrown on the way out is not what was wrong first.
                Watch::Panicked(_) => {}
            });
        }));
    });
    WATCH.set(Watch::Quiet);
    let result = catch_unwind(AssertUnwindSafe(run));
    let watch = WATCH.replace(Watch::Nothing);
    result.map_err(|payload| match (payload.downcast::<Violation>(), watch) {
        (Ok(violation), _) => *violation,
        (Err(_), Watch::Panicked(what)) => Violation { rule: Rule::Panic, what },
        (Err(_), _) => Violation { rule: Rule::Panic, what: String::new() },
    })
}
