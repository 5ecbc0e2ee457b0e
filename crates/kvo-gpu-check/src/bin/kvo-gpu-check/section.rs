//! The sections, and the process that each is.

use std::{
    any::Any,
    panic::{AssertUnwindSafe, catch_unwind},
    process::ExitCode,
    time::Duration,
};

use serde_json::json;

use crate::{
    args::{How, SectionArgs},
    batches, calibration, conformance,
    ground::{Ground, Outcome},
    head_of_line, identity, limit, machine, matrix, overlap,
    program::BROKEN,
    rows::{self, row},
    sticky,
};

/// What is looked at, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Section {
    /// What there is.
    Machine,
    /// Bytes there and back.
    Identity,
    /// What every device must do.
    Conformance,
    /// What the link can do.
    Limit,
    /// Sizes, ways, directions.
    Matrix,
    /// Whether the device chooses well.
    Calibration,
    /// Copies beside compute.
    Overlap,
    /// Demand loads behind prefetches.
    HeadOfLine,
    /// A context that breaks.
    Sticky,
    /// Copies in batches, which break some drivers.
    Batches,
}

impl Section {
    pub(crate) const ALL: [Self; 10] = [
        Self::Machine,
        Self::Identity,
        Self::Conformance,
        Self::Limit,
        Self::Matrix,
        Self::Calibration,
        Self::Overlap,
        Self::HeadOfLine,
        Self::Sticky,
        Self::Batches,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Machine => "machine",
            Self::Identity => "identity",
            Self::Conformance => "conformance",
            Self::Limit => "limit",
            Self::Matrix => "matrix",
            Self::Calibration => "calibration",
            Self::Overlap => "overlap",
            Self::HeadOfLine => "head-of-line",
            Self::Sticky => "sticky",
            Self::Batches => "batches",
        }
    }

    /// Its share of the time, beside those of the others.
    pub(crate) fn share(self) -> u32 {
        match self {
            Self::Machine => 5,
            Self::Identity => 20,
            Self::Conformance => 60,
            Self::Limit => 15,
            Self::Matrix => 80,
            Self::Calibration => 10,
            Self::Overlap => 30,
            Self::HeadOfLine => 25,
            Self::Sticky => 20,
            Self::Batches => 35,
        }
    }

    fn work(self, ground: &mut Ground) -> anyhow::Result<Outcome> {
        match self {
            Self::Machine => machine::run(ground),
            Self::Identity => identity::run(ground),
            Self::Conformance => conformance::run(ground),
            Self::Limit => limit::run(ground),
            Self::Matrix => matrix::run(ground),
            Self::Calibration => calibration::run(ground),
            Self::Overlap => overlap::run(ground),
            Self::HeadOfLine => head_of_line::run(ground),
            Self::Sticky => sticky::run(ground),
            Self::Batches => batches::run(ground),
        }
    }
}

/// The process of a section. Beds panic where a call fails, so that is a failure like any other.
pub(crate) fn run(args: &SectionArgs) -> ExitCode {
    let earlier = args.rows.as_deref().and_then(|path| rows::read(path).ok()).unwrap_or_default();
    let time = Duration::try_from_secs_f64(args.seconds).unwrap_or_default();
    let mut ground = Ground::new(args.device, args.quick, time, earlier);
    let worked = catch_unwind(AssertUnwindSafe(|| {
        if let Some(how) = args.inject {
            inject(how, &mut ground)?;
        }
        args.section.work(&mut ground)
    }));
    let failure = match worked {
        Ok(Ok(outcome)) => return told(ground.end(outcome)),
        Ok(Err(error)) => format!("{error:#}"),
        Err(panic) => words_of(&*panic),
    };
    told(ground.tell(&row(json!({"failure": failure}))).and_then(|()| ground.end(Outcome::Done)))
}

fn told(told: anyhow::Result<()>) -> ExitCode {
    // Whoever read the rows is gone; nobody else wants to know.
    told.map_or(ExitCode::from(BROKEN), |()| ExitCode::SUCCESS)
}

/// What a panic says.
pub(crate) fn words_of(panic: &(dyn Any + Send)) -> String {
    let words = panic.downcast_ref::<String>().map(String::as_str);
    let words = words.or_else(|| panic.downcast_ref::<&str>().copied());
    words.unwrap_or("a panic without words").to_owned()
}

fn inject(how: How, ground: &mut Ground) -> anyhow::Result<()> {
    match how {
        How::Row => ground.tell(&row(json!({"failure": "injected: a byte is wrong"}))),
        How::Panic => panic!("injected: a panic"),
        How::Abort => std::process::abort(),
        How::Hang => loop {
            std::thread::park();
        },
    }
}
