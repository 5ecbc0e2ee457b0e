//! What a section stands on: its device, its sizes, its time, and where its rows go.

use std::{
    io::Write,
    time::{Duration, Instant},
};

use anyhow::Context;
use kvo_gpu_check::CudaBeds;
use serde_json::json;

use crate::{
    machine,
    rows::{Row, row},
};

/// What a section works with.
pub(crate) struct Ground {
    pub(crate) ordinal: u32,
    pub(crate) is_model: bool,
    pub(crate) is_quick: bool,
    /// The rows of the sections before.
    pub(crate) earlier: Vec<Row>,
    deadline: Instant,
    failures: usize,
    num_left_out: usize,
}

/// How a section ended that did not break.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Done,
    /// There was nothing to do it with.
    Skipped(String),
}

impl Ground {
    pub(crate) fn new(ordinal: u32, is_quick: bool, time: Duration, earlier: Vec<Row>) -> Self {
        let (is_model, _) = machine::is_model();
        let deadline = Instant::now() + time;
        Self { ordinal, is_model, is_quick, earlier, deadline, failures: 0, num_left_out: 0 }
    }

    /// A size: in full, quick, or for a model, whose speed says nothing, and whose kernels are interpreted.
    pub(crate) fn pick<T>(&self, full: T, quick: T, model: T) -> T {
        match (self.is_model, self.is_quick) {
            (true, _) => model,
            (false, true) => quick,
            (false, false) => full,
        }
    }

    pub(crate) fn beds(&self) -> CudaBeds {
        CudaBeds::new(format!("device {}", self.ordinal), self.ordinal, self.is_model)
    }

    pub(crate) fn time_left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    /// Whether there is time for one more point; if not, it counts as left out.
    pub(crate) fn has_time(&mut self) -> bool {
        let has_time = !self.time_left().is_zero();
        self.num_left_out += usize::from(!has_time);
        has_time
    }

    /// A row of these fields, at once.
    pub(crate) fn tell(&mut self, row: &Row) -> anyhow::Result<()> {
        self.failures += usize::from(row.contains_key("failure"));
        let mut line = serde_json::to_string(row)?;
        line.push('\n');
        let mut out = std::io::stdout().lock();
        out.write_all(line.as_bytes()).and_then(|()| out.flush()).context("the rows' pipe")
    }

    /// The last row of a section.
    pub(crate) fn end(&mut self, outcome: Outcome) -> anyhow::Result<()> {
        let mut last = match outcome {
            Outcome::Done if self.failures > 0 => {
                let what =
                    if self.failures == 1 { "row says what is wrong" } else { "rows say what is wrong" };
                row(json!({"outcome": "failed", "reason": format!("{} {what}", self.failures)}))
            }
            Outcome::Done => row(json!({"outcome": "passed"})),
            Outcome::Skipped(why) => row(json!({"outcome": "skipped", "reason": why})),
        };
        if self.num_left_out > 0 {
            last.insert("left_out_for_want_of_time".to_owned(), json!(self.num_left_out));
        }
        self.tell(&last)
    }
}
