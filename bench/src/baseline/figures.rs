//! The figures of each command's results that can be held against another run's.

use std::fmt;

use crate::{
    Fingerprint, MicroResults, NvmeResults, PoliciesResults, ReplayResults, Spread, nvme::StoreKind,
    short_count,
};

/// Which way is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Better {
    /// Time.
    Less,
    /// Throughput.
    More,
}

/// A figure.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// One number a round.
    Rounds {
        /// The rounds.
        rounds: Vec<f64>,
        /// Which way is better.
        better: Better,
    },
    /// One number a round, of what does not depend on kvo.
    Machine(Vec<f64>),
    /// Taken once.
    Once(f64),
    /// A count or a hash, the same on every run of the same work.
    Exact {
        /// It.
        value: String,
        /// The work that it depends on.
        work: String,
    },
}

/// A figure with its name, which no other figure of the run has.
#[derive(Clone, Debug, PartialEq)]
pub struct NamedFigure {
    /// Its name.
    pub name: String,
    /// Its unit.
    pub unit: &'static str,
    /// The figure.
    pub value: Value,
}

/// Results that can be compared.
pub trait Figures {
    /// All their figures.
    fn figures(&self) -> Vec<NamedFigure>;

    /// What the figures depend on that neither the machine nor the command line says, each with its name.
    fn surroundings(&self) -> Vec<(&'static str, String)> {
        Vec::new()
    }

    /// A hash of all that is counted: equal on every machine for the same work by code that does the same.
    fn counts_hash(&self) -> Fingerprint {
        hash_of(&self.figures())
    }
}

fn hash_of(figures: &[NamedFigure]) -> Fingerprint {
    let mut hash = Fingerprint::EMPTY;
    for figure in figures {
        if let Value::Exact { value, .. } = &figure.value {
            hash.extend(figure.name.bytes().chain(value.bytes()).map(u32::from));
        }
    }
    hash
}

impl Value {
    /// The median, or the number.
    pub(super) fn number(&self) -> Option<f64> {
        match self {
            Self::Rounds { rounds, .. } | Self::Machine(rounds) => {
                Spread::of(rounds).map(|spread| spread.median)
            }
            Self::Once(number) => Some(*number),
            // Equal or not: by how much says nothing.
            Self::Exact { .. } => None,
        }
    }

    fn exact(value: &impl ToString, work: &str) -> Self {
        Self::Exact { value: value.to_string(), work: work.to_owned() }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rounds { rounds, .. } | Self::Machine(rounds) => match Spread::of(rounds) {
                Some(spread) => write!(f, "{:.2} ({:.2}-{:.2})", spread.median, spread.first, spread.third),
                None => Ok(()),
            },
            Self::Once(number) => write!(f, "{number:.2}"),
            Self::Exact { value, .. } => f.write_str(value),
        }
    }
}

fn figure(name: String, unit: &'static str, value: Value) -> NamedFigure {
    NamedFigure { name, unit, value }
}

impl Figures for MicroResults {
    fn figures(&self) -> Vec<NamedFigure> {
        let mut figures = Vec::new();
        for of_size in &self.sizes {
            let size = short_count(of_size.size.into());
            for of_job in &of_size.figures {
                let rounds = of_job.rounds_ns.clone();
                let value = if of_job.subject.starts_with("kvo") {
                    Value::Rounds { rounds, better: Better::Less }
                } else {
                    Value::Machine(rounds)
                };
                let name = format!("{size}, {}, {}", of_job.subject, of_job.job);
                figures.push(figure(name, "ns", value));
            }
            // The hash is of all that was evicted, so it depends on how many rounds each job had.
            let rounds_of = |subject: &str| {
                let of_subject = of_size.figures.iter().filter(|of_job| of_job.subject == subject);
                let rounds = of_subject.map(|of_job| format!("{} x {}", of_job.rounds_ns.len(), of_job.job));
                format!("{}: {}", self.preset, rounds.collect::<Vec<_>>().join(", "))
            };
            for subject in &of_size.subjects {
                let name = format!("{size}, {}", subject.name);
                if let Some(victims) = &subject.victims {
                    let value = Value::exact(victims, &rounds_of(&subject.name));
                    figures.push(figure(format!("{name}, hash of the victims"), "", value));
                }
                if let Some(bytes) = subject.bytes_per_chunk {
                    figures.push(figure(format!("{name}, memory"), "bytes a chunk", Value::Once(bytes)));
                }
            }
        }
        figures
    }
}

impl Figures for PoliciesResults {
    fn figures(&self) -> Vec<NamedFigure> {
        let mut figures = Vec::new();
        for on_trace in &self.traces {
            let trace = &on_trace.trace;
            for cell in &on_trace.cells {
                let work = format!("{} {}", trace.fingerprint, cell.requests);
                let name = format!("{}, {} at {}", trace.name, cell.policy, cell.capacity);
                let counts = [("hits", cell.hits), ("inserts", cell.inserts), ("evictions", cell.evictions)];
                figures.extend(counted(&name, &work, &counts));
                let order = Value::exact(&cell.eviction_order, &work);
                figures.push(figure(format!("{name}, eviction order"), "hash", order));
                if let Some(ns) = cell.ns_per_access {
                    figures.push(figure(format!("{name}, time an access"), "ns", Value::Once(ns)));
                }
            }
            for cell in &on_trace.overlap {
                let work = format!("{} {}", trace.fingerprint, cell.requests);
                let how = if cell.refused.is_empty() { "" } else { ", refused: " };
                let name = format!(
                    "{}, overlapping{how}{}, {} at {}",
                    trace.name, cell.refused, cell.policy, cell.capacity
                );
                let counts =
                    [("hits", cell.hits), ("inserts", cell.inserts), ("refused", cell.offers_refused)];
                figures.extend(counted(&name, &work, &counts));
            }
            for cell in &on_trace.two_tiers {
                let work = format!("{} {}", trace.fingerprint, cell.requests);
                let (gpu, cpu) = (cell.gpu_capacity, cell.cpu_capacity);
                let name = format!("{}, {}, {} at {gpu}+{cpu}", trace.name, cell.fill, cell.policy);
                let counts =
                    [("GPU hits", cell.gpu_hits), ("CPU hits", cell.cpu_hits), ("inserts", cell.cpu_inserts)];
                figures.extend(counted(&name, &work, &counts));
            }
        }
        figures
    }
}

fn counted(name: &str, work: &str, counts: &[(&str, u64)]) -> Vec<NamedFigure> {
    let of =
        |(what, count): &(&str, u64)| figure(format!("{name}, {what}"), "chunks", Value::exact(count, work));
    counts.iter().map(of).collect()
}

impl Figures for ReplayResults {
    fn figures(&self) -> Vec<NamedFigure> {
        let work = format!(
            "{} {} requests, {} {} {} chunks of {} bytes, {}",
            self.trace.fingerprint,
            self.requests,
            self.gpu_blocks,
            self.cpu_chunks,
            self.nvme_chunks,
            self.block_bytes,
            self.policy
        );
        let mut figures = Vec::new();
        for (place, blocks) in self.served() {
            figures.push(figure(format!("prefix, {place}"), "blocks", Value::exact(&blocks, &work)));
        }
        figures.push(figure("mismatches".to_owned(), "blocks", Value::exact(&self.mismatches, "any")));
        // On another device the same moves, and no faster or slower that says anything: its edges have other names.
        for edge in &self.edges {
            // Jobs of the store's edges overlap as its threads have it; what moved does not depend on that.
            let bytes = Value::exact(&edge.bytes, &work);
            figures.push(figure(format!("{}, moved", edge.edge), "bytes", bytes));
            figures.push(figure(format!("{}, rate", edge.edge), "MB/s", Value::Once(edge.mb_per_s)));
        }
        for (what, unit, number) in [
            ("all requests", "s", self.seconds),
            ("scheduler step, p50", "us", self.steps.p50_us),
            ("scheduler step, p99", "us", self.steps.p99_us),
        ] {
            figures.push(figure(what.to_owned(), unit, Value::Once(number)));
        }
        figures
    }

    fn surroundings(&self) -> Vec<(&'static str, String)> {
        vec![("device", self.device.clone())]
    }

    /// The same on every device: the names of its edges do not count.
    fn counts_hash(&self) -> Fingerprint {
        let mut simulated = self.clone();
        for edge in &mut simulated.edges {
            match edge.edge.as_str() {
                "GPU to CPU" => "simulated GPU to CPU".clone_into(&mut edge.edge),
                "CPU to GPU" => "CPU to simulated GPU".clone_into(&mut edge.edge),
                _ => {}
            }
        }
        hash_of(&simulated.figures())
    }
}

impl Figures for NvmeResults {
    fn figures(&self) -> Vec<NamedFigure> {
        let rounds = self.cases.iter().map(|case| case.mb_per_s.len()).collect::<Vec<_>>();
        let work = format!("{}, {} bytes a round, {rounds:?} rounds", self.preset, self.bytes_per_round);
        let mut figures = vec![
            figure("mismatches".to_owned(), "chunks", Value::exact(&self.mismatches, "any")),
            figure("compared".to_owned(), "bytes", Value::exact(&self.verified_bytes, &work)),
        ];
        for case in &self.cases {
            let name = format!("{}, {} of {} KiB", case.subject, case.direction, case.chunk_bytes >> 10);
            if !is_kvo(&case.subject) {
                figures.push(figure(name, "MB/s", Value::Machine(case.mb_per_s.clone())));
                continue;
            }
            let rounds = |rounds: Vec<f64>, better| Value::Rounds { rounds, better };
            figures.push(figure(name.clone(), "MB/s", rounds(case.mb_per_s.clone(), Better::More)));
            let over = rounds(self.over_denominator(case), Better::More);
            figures.push(figure(format!("{name}, over {}", self.denominator), "", over));
            let cpu = rounds(case.cpu_s_per_gb.clone(), Better::Less);
            figures.push(figure(format!("{name}, CPU time"), "s a GB", cpu));
        }
        if let Some(at_rest) = &self.at_rest {
            let copied = Value::exact(&at_rest.copied_bytes, "any");
            figures.push(figure("bytes of chunks copied".to_owned(), "bytes", copied));
            let idle = Value::Once(at_rest.idle_cpu_percent);
            figures.push(figure("CPU while idle".to_owned(), "% of a core", idle));
            if let Some(many) = &at_rest.many {
                let name = |what: &str| format!("{} slots, {what}", many.slots);
                figures.push(figure(name("opened"), "s", Value::Once(many.open_seconds)));
                let rounds = Value::Rounds { rounds: many.hit_ns.clone(), better: Better::Less };
                figures.push(figure(name("a lookup that hits"), "ns", rounds));
            }
        }
        for mixed in &self.mixed {
            for (name, rounds) in mixed.rounds() {
                let (unit, better) =
                    if name.ends_with("us") { ("us", Better::Less) } else { ("MB/s", Better::More) };
                let name = format!("at once, {} KiB: {name}", mixed.chunk_bytes >> 10);
                figures.push(figure(name, unit, Value::Rounds { rounds: rounds.to_vec(), better }));
            }
        }
        figures
    }
}

/// Whether a subject of `nvme` is a store of ours; of the others what the machine gives can be told.
fn is_kvo(subject: &str) -> bool {
    subject == "kvo" || StoreKind::ALL.iter().any(|kind| kind.name() == subject)
}
