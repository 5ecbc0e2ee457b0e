//! Reports of `micro` and `compare`.

use serde::Deserialize;

use super::{StoredResults, check_amount, check_rounds};

/// Costs of calls, by size.
#[derive(Clone, Debug, Deserialize)]
pub struct MicroResults {
    /// How long it measured.
    pub preset: String,
    /// What differs from the peer, where there is one.
    pub differences: Option<String>,
    /// By size.
    pub sizes: Vec<MicroSize>,
}

/// Costs at one size.
#[derive(Clone, Debug, Deserialize)]
pub struct MicroSize {
    /// Chunks of the tier.
    pub size: u32,
    /// What was measured.
    pub subjects: Vec<MicroSubject>,
    /// By job and subject.
    pub figures: Vec<MicroFigure>,
}

/// Something that was measured.
#[derive(Clone, Debug, Deserialize)]
pub struct MicroSubject {
    /// Its name.
    pub name: String,
    /// A hash of all that it evicted.
    pub victims: Option<String>,
    /// Memory a chunk.
    pub bytes_per_chunk: Option<f64>,
}

/// A job of a subject.
#[derive(Clone, Debug, Deserialize)]
pub struct MicroFigure {
    /// The job, as `--jobs` has it.
    pub job: String,
    /// The subject's name.
    pub subject: String,
    /// Of what the nanoseconds are.
    pub unit: String,
    /// What it is to cost at most.
    pub target_ns: Option<f64>,
    /// The rounds, in order.
    pub rounds_ns: Vec<f64>,
}

impl StoredResults for MicroResults {
    const COMMANDS: &'static [&'static str] = &["micro", "compare"];

    fn check(&self) -> Result<(), String> {
        for (at, size) in self.sizes.iter().enumerate() {
            let size_field = format!("sizes[{at}]");
            for (at, figure) in size.figures.iter().enumerate() {
                let field = format!("{size_field}.figures[{at}]");
                check_rounds(&format!("{field}.rounds_ns"), &figure.rounds_ns)?;
                check_amount(&format!("{field}.target_ns"), figure.target_ns.unwrap_or_default())?;
            }
            for (at, subject) in size.subjects.iter().enumerate() {
                let field = format!("{size_field}.subjects[{at}].bytes_per_chunk");
                check_amount(&field, subject.bytes_per_chunk.unwrap_or_default())?;
            }
        }
        Ok(())
    }
}
