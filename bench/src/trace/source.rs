//! Where a trace comes from, as a command line says it.

use std::{fmt, path::PathBuf, str::FromStr};

use super::{ReadOptions, Trace, TraceError, kvo_synth, read_trace};

/// About 20 million blocks: a day and a half of traffic.
pub(super) const SYNTH_REQUESTS_MAX: u32 = 1_000_000;

/// Generated traffic or a file.
///
/// ```
/// use kvo_bench::TraceSource;
///
/// # fn main() -> Result<(), kvo_bench::TraceError> {
/// let source: TraceSource = "synth:400:7".parse()?;
/// assert_eq!(source, TraceSource::Synth { requests: 400, seed: 7 });
/// assert_eq!(source.load(Default::default())?.requests.len(), 400);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TraceSource {
    /// [`kvo_synth`], written `synth:REQUESTS:SEED`.
    Synth {
        /// Number of requests.
        requests: u32,
        /// Seed of the random source.
        seed: u64,
    },
    /// A file for [`read_trace`]; any text that does not start with `synth:` is its path.
    File(PathBuf),
}

impl TraceSource {
    /// Generates or reads the trace. The options count for files only.
    ///
    /// # Errors
    ///
    /// As [`read_trace`]; generating cannot fail.
    pub fn load(&self, options: ReadOptions) -> Result<Trace, TraceError> {
        match self {
            Self::Synth { requests, seed } => Ok(kvo_synth(*requests, *seed)),
            Self::File(path) => read_trace(path, options),
        }
    }
}

impl Default for TraceSource {
    /// The traffic that is replayed when nothing else is asked for.
    fn default() -> Self {
        Self::Synth { requests: 4000, seed: 42 }
    }
}

impl fmt::Display for TraceSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Synth { requests, seed } => write!(f, "synth:{requests}:{seed}"),
            Self::File(path) => path.display().fmt(f),
        }
    }
}

impl FromStr for TraceSource {
    type Err = TraceError;

    fn from_str(given: &str) -> Result<Self, TraceError> {
        let Some(parameters) = given.strip_prefix("synth:") else {
            return Ok(Self::File(PathBuf::from(given)));
        };
        let wrong = |field, found: &str| TraceError::Synth {
            given: given.to_owned(),
            field,
            found: found.to_owned(),
        };
        let (requests, seed) =
            parameters.split_once(':').ok_or_else(|| wrong("the part after synth:", parameters))?;
        let count = requests.parse().ok().filter(|count| (1..=SYNTH_REQUESTS_MAX).contains(count));
        Ok(Self::Synth {
            requests: count.ok_or_else(|| wrong("the number of requests", requests))?,
            seed: seed.parse().map_err(|_| wrong("the seed", seed))?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_survive_their_text() {
        for text in ["synth:4000:42", "synth:1:18446744073709551615", "traces/a.jsonl.gz", "./synth:1:2"] {
            assert_eq!(text.parse::<TraceSource>().unwrap().to_string(), text);
        }
        assert_eq!(TraceSource::default().to_string(), "synth:4000:42");
    }

    #[track_caller]
    fn check_wrong(text: &str, part: &str) {
        let message = text.parse::<TraceSource>().expect_err("a wrong source was taken").to_string();
        assert!(message.contains(part) && message.contains("synth:4000:42"), "{message}");
    }

    #[test]
    fn a_wrong_generator_is_told_what_would_be_right() {
        check_wrong("synth:", "the part after synth: is \"\"");
        check_wrong("synth:4000", "the part after synth: is \"4000\"");
        check_wrong("synth:x:42", "the number of requests is \"x\"");
        check_wrong("synth:0:42", "the number of requests is \"0\"");
        check_wrong("synth:-4:42", "the number of requests is \"-4\"");
        check_wrong("synth:1000001:42", "the number of requests is \"1000001\"");
        check_wrong("synth:4000:forty", "the seed is \"forty\"");
        check_wrong("synth:4000:42:1", "the seed is \"42:1\"");
    }
}
