//! Policies by name.

use std::{collections::TryReserveError, fmt, str::FromStr};

use crate::{
    Arc, Aslru, CachePolicy, Fifo, GhostHits, Lru, S3Fifo, S3FifoOptions, Slru, Ylru, policy::MEMORY,
};

/// A policy by name, for command lines and configuration files: a name, then its options, as in `slru:protected=20`.
///
/// | name | options, the default first |
/// |---|---|
/// | `lru` | |
/// | `arc` | `ghost-hits=t1`, `t2` or `canonical`; `arc:canonical` for short |
/// | `slru` | `protected=20`, in percent, 1 to 99 |
/// | `aslru` | |
/// | `ylru` | |
/// | `s3fifo` | `small=30`, in percent, 1 to 99; `threshold=1`, to 3; `leaf-only=true` or `false` |
/// | `fifo` | |
///
/// ```
/// use kvo_policies::PolicyKind;
///
/// # fn main() -> Result<(), kvo_policies::PolicyNameError> {
/// let policy = "s3fifo:small=10,threshold=2".parse::<PolicyKind>()?.build(1024);
/// let error = "slru:protected=120".parse::<PolicyKind>().unwrap_err();
/// assert_eq!(
///     error.to_string(),
///     "policy \"slru:protected=120\": protected cannot be \"120\": use a whole percentage from 1 to 99"
/// );
/// # let _ = policy;
/// # Ok(())
/// # }
/// ```
///
/// The default is [`Ylru`], which had the most hits over all traces at hand, one after the other and overlapping; why, and
/// what it costs, is in `docs/POLICIES.md`. [`Lru`] is exact to vLLM 0.33.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PolicyKind {
    /// [`Lru`].
    Lru,
    /// [`Arc`].
    Arc(GhostHits),
    /// [`Slru`].
    Slru {
        /// Share of the capacity that is protected at most, in percent.
        protected_pct: u8,
    },
    /// [`Aslru`].
    Aslru,
    /// [`Ylru`].
    #[default]
    Ylru,
    /// [`S3Fifo`].
    S3Fifo(S3FifoOptions),
    /// [`Fifo`].
    Fifo,
}

/// Every name, for messages.
const NAMES: &str = "lru, arc, slru, aslru, ylru, s3fifo or fifo";
const PROTECTED_PCT: u8 = 20;

impl PolicyKind {
    /// Makes the policy for a tier of `capacity` chunks.
    ///
    /// # Panics
    /// If there is no memory for its tables, or if an option is out of its range, which none that was parsed is.
    pub fn build(self, capacity: u32) -> Box<dyn CachePolicy> {
        self.try_build(capacity).expect(MEMORY)
    }

    /// As [`build`](Self::build), for a capacity that comes from a configuration.
    ///
    /// # Errors
    /// If there is no memory for its tables.
    ///
    /// # Panics
    /// If an option is out of its range, which none that was parsed is.
    pub fn try_build(self, capacity: u32) -> Result<Box<dyn CachePolicy>, TryReserveError> {
        Ok(match self {
            Self::Lru => Box::new(Lru::try_new(capacity)?),
            Self::Arc(ghost_hits) => Box::new(Arc::try_new(capacity, ghost_hits)?),
            Self::Slru { protected_pct } => Box::new(Slru::try_new(capacity, protected_pct)?),
            Self::Aslru => Box::new(Aslru::try_new(capacity)?),
            Self::Ylru => Box::new(Ylru::try_new(capacity)?),
            Self::S3Fifo(options) => Box::new(S3Fifo::try_new(capacity, options)?),
            Self::Fifo => Box::new(Fifo::try_new(capacity)?),
        })
    }

    /// The policy of this name, with its defaults.
    fn of(name: &str) -> Option<Self> {
        Some(match name {
            "lru" => Self::Lru,
            "arc" => Self::Arc(GhostHits::default()),
            "slru" => Self::Slru { protected_pct: PROTECTED_PCT },
            "aslru" => Self::Aslru,
            "ylru" => Self::Ylru,
            "s3fifo" => Self::S3Fifo(S3FifoOptions::default()),
            "fifo" => Self::Fifo,
            _ => return None,
        })
    }

    /// Sets an option, or says what is wrong.
    fn set(&mut self, option: &str) -> Result<(), Wrong> {
        let (name, value) = option.split_once('=').unwrap_or((option, ""));
        match self {
            Self::Arc(ghost_hits) => match (name, value) {
                ("canonical", "") if option == name => *ghost_hits = GhostHits::Canonical,
                ("ghost-hits", "t1") => *ghost_hits = GhostHits::T1,
                ("ghost-hits", "t2") => *ghost_hits = GhostHits::T2,
                ("ghost-hits", "canonical") => *ghost_hits = GhostHits::Canonical,
                ("ghost-hits", _) => return Err(Wrong::value(name, value, "t1, t2 or canonical")),
                _ => return Err(Wrong::option(option, "ghost-hits=t1, t2 or canonical")),
            },
            Self::Slru { protected_pct } => match name {
                "protected" => *protected_pct = percentage(name, value)?,
                _ => return Err(Wrong::option(option, "protected=PERCENT")),
            },
            Self::S3Fifo(options) => match name {
                "small" => options.small_pct = percentage(name, value)?,
                "threshold" => {
                    options.threshold =
                        number(value, 1, 3).ok_or_else(|| Wrong::value(name, value, "1, 2 or 3"))?;
                }
                "leaf-only" => {
                    options.leaf_only =
                        value.parse().map_err(|_| Wrong::value(name, value, "true or false"))?;
                }
                _ => {
                    return Err(Wrong::option(
                        option,
                        "small=PERCENT, threshold=1, 2 or 3, leaf-only=true or false",
                    ));
                }
            },
            Self::Lru | Self::Aslru | Self::Ylru | Self::Fifo => return Err(Wrong::option(option, "none")),
        }
        Ok(())
    }
}

fn percentage(option: &str, value: &str) -> Result<u8, Wrong> {
    number(value, 1, 99).ok_or_else(|| Wrong::value(option, value, "a whole percentage from 1 to 99"))
}

/// A number in digits alone, within bounds.
fn number(value: &str, min: u8, max: u8) -> Option<u8> {
    let is_plain = value.bytes().all(|byte| byte.is_ascii_digit()) && !value.starts_with('0');
    value.parse().ok().filter(|number| is_plain && (min..=max).contains(number))
}

/// The shortest name that is parsed to the same policy.
impl fmt::Display for PolicyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lru => f.write_str("lru"),
            Self::Arc(GhostHits::T1) => f.write_str("arc"),
            Self::Arc(GhostHits::T2) => f.write_str("arc:ghost-hits=t2"),
            Self::Arc(GhostHits::Canonical) => f.write_str("arc:canonical"),
            Self::Slru { protected_pct: PROTECTED_PCT } => f.write_str("slru"),
            Self::Slru { protected_pct } => write!(f, "slru:protected={protected_pct}"),
            Self::Aslru => f.write_str("aslru"),
            Self::Ylru => f.write_str("ylru"),
            Self::S3Fifo(options) => {
                let default = S3FifoOptions::default();
                let S3FifoOptions { small_pct, threshold, leaf_only } = options;
                f.write_str("s3fifo")?;
                let mut separator = ':';
                let mut option = |name: &str, value: &dyn fmt::Display, is_default: bool| {
                    if is_default {
                        return Ok(());
                    }
                    write!(f, "{}{name}={value}", std::mem::replace(&mut separator, ','))
                };
                option("small", small_pct, *small_pct == default.small_pct)?;
                option("threshold", threshold, *threshold == default.threshold)?;
                option("leaf-only", leaf_only, *leaf_only == default.leaf_only)
            }
            Self::Fifo => f.write_str("fifo"),
        }
    }
}

impl FromStr for PolicyKind {
    type Err = PolicyNameError;

    fn from_str(text: &str) -> Result<Self, PolicyNameError> {
        let error = |wrong| PolicyNameError { text: text.to_owned(), wrong };
        let (name, options) = match text.split_once(':') {
            Some((name, options)) => (name, Some(options)),
            None => (text, None),
        };
        let mut kind = Self::of(name).ok_or_else(|| error(Wrong::Name))?;
        let mut set = Vec::new();
        for option in options.into_iter().flat_map(|options| options.split(',')) {
            kind.set(option).map_err(error)?;
            let name = option.split('=').next().unwrap_or(option);
            if set.contains(&name) {
                return Err(error(Wrong::Repeated { option: name.to_owned() }));
            }
            set.push(name);
        }
        Ok(kind)
    }
}

/// There is no policy of this name, or it does not take these options. The message says what would be right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyNameError {
    text: String,
    wrong: Wrong,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Wrong {
    Name,
    Option { option: String, allowed: &'static str },
    Value { option: String, value: String, allowed: &'static str },
    Repeated { option: String },
}

impl Wrong {
    fn option(option: &str, allowed: &'static str) -> Self {
        Self::Option { option: option.to_owned(), allowed }
    }

    fn value(option: &str, value: &str, allowed: &'static str) -> Self {
        Self::Value { option: option.to_owned(), value: value.to_owned(), allowed }
    }
}

impl fmt::Display for PolicyNameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { text, wrong } = self;
        match wrong {
            Wrong::Name => write!(f, "unknown policy {text:?}: use {NAMES}"),
            Wrong::Option { option, allowed: "none" } => {
                write!(f, "policy {text:?}: it has no option {option:?}, nor any other")
            }
            Wrong::Option { option, allowed } => {
                write!(f, "policy {text:?}: it has no option {option:?}: use {allowed}")
            }
            Wrong::Value { option, value, allowed } => {
                write!(f, "policy {text:?}: {option} cannot be {value:?}: use {allowed}")
            }
            Wrong::Repeated { option } => write!(f, "policy {text:?}: {option} is given twice: use it once"),
        }
    }
}

impl std::error::Error for PolicyNameError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_name(text: &str, kind: PolicyKind, name: &str) {
        assert_eq!(text.parse(), Ok(kind));
        assert_eq!(kind.to_string(), name);
        assert_eq!(name.parse(), Ok(kind));
    }

    #[test]
    fn names_and_options_are_found_again() {
        let s3fifo = |small_pct, threshold, leaf_only| {
            PolicyKind::S3Fifo(S3FifoOptions { small_pct, threshold, leaf_only })
        };
        check_name("lru", PolicyKind::Lru, "lru");
        check_name("arc:ghost-hits=t1", PolicyKind::Arc(GhostHits::T1), "arc");
        check_name("arc:ghost-hits=t2", PolicyKind::Arc(GhostHits::T2), "arc:ghost-hits=t2");
        check_name("arc:ghost-hits=canonical", PolicyKind::Arc(GhostHits::Canonical), "arc:canonical");
        check_name("slru:protected=20", PolicyKind::Slru { protected_pct: 20 }, "slru");
        check_name("slru:protected=50", PolicyKind::Slru { protected_pct: 50 }, "slru:protected=50");
        check_name("aslru", PolicyKind::Aslru, "aslru");
        check_name("ylru", PolicyKind::Ylru, "ylru");
        check_name("s3fifo:small=30,threshold=1,leaf-only=true", s3fifo(30, 1, true), "s3fifo");
        check_name("s3fifo:small=10", s3fifo(10, 1, true), "s3fifo:small=10");
        check_name(
            "s3fifo:leaf-only=false,threshold=2",
            s3fifo(30, 2, false),
            "s3fifo:threshold=2,leaf-only=false",
        );
        check_name("fifo", PolicyKind::Fifo, "fifo");
    }

    #[track_caller]
    fn check_error(text: &str, parts: &[&str]) {
        let error = text.parse::<PolicyKind>().unwrap_err().to_string();
        assert!(error.contains(&format!("{text:?}")), "{error}");
        for part in parts {
            assert!(error.contains(part), "{part:?} is not in {error}");
        }
    }

    #[test]
    fn every_policy_knows_its_capacity() {
        for name in ["lru", "arc", "slru", "aslru", "ylru", "s3fifo", "fifo"] {
            assert_eq!(name.parse::<PolicyKind>().unwrap().build(7).num_slots_max(), 7, "{name}");
        }
    }

    #[test]
    fn errors_name_the_option_the_value_and_what_would_be_right() {
        check_error("", &["unknown policy", NAMES]);
        check_error("opt", &["unknown policy", NAMES]);
        check_error("lru:protected=20", &["no option \"protected=20\""]);
        check_error("lru:", &["no option \"\""]);
        check_error("arc:ghost-hits=t3", &["ghost-hits", "\"t3\"", "t1, t2 or canonical"]);
        check_error("arc:canonical=", &["no option \"canonical=\"", "ghost-hits="]);
        check_error("slru:protected=0", &["protected", "\"0\"", "1 to 99"]);
        check_error("slru:protected=100", &["protected", "\"100\"", "1 to 99"]);
        check_error("slru:protected=300", &["protected", "\"300\"", "1 to 99"]);
        check_error("slru:protected=+5", &["protected", "\"+5\"", "1 to 99"]);
        check_error("slru:protected", &["protected", "\"\"", "1 to 99"]);
        check_error("slru:small=30", &["no option \"small=30\"", "protected=PERCENT"]);
        check_error("s3fifo:small=1e1", &["small", "\"1e1\"", "1 to 99"]);
        check_error("s3fifo:threshold=4", &["threshold", "\"4\"", "1, 2 or 3"]);
        check_error("s3fifo:leaf-only=yes", &["leaf-only", "\"yes\"", "true or false"]);
        check_error("s3fifo:small=30,small=40", &["small is given twice"]);
    }
}
