//! What can be run on a trace, by name.

use std::{fmt, str::FromStr};

use kvo_policies::{PolicyKind, PolicyNameError};

/// A policy, or the most that any policy could have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Contender {
    /// A policy.
    Policy(PolicyKind),
    /// The optimum, `opt`: it knows the rest of the trace.
    Opt,
}

impl fmt::Display for Contender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Policy(policy) => policy.fmt(f),
            Self::Opt => f.write_str("opt"),
        }
    }
}

impl FromStr for Contender {
    type Err = ContenderError;

    fn from_str(name: &str) -> Result<Self, ContenderError> {
        match name {
            "opt" => Ok(Self::Opt),
            _ => name.parse().map(Self::Policy).map_err(ContenderError),
        }
    }
}

/// There is no such contender.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}, or opt for the most that any policy could have")]
pub struct ContenderError(PolicyNameError);

/// Several, with commas between them. Options have commas between them too: what has a `=` and no `:` is one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContenderList(pub Vec<Contender>);

impl FromStr for ContenderList {
    type Err = ContenderError;

    fn from_str(list: &str) -> Result<Self, ContenderError> {
        let mut names: Vec<Vec<&str>> = Vec::new();
        for part in list.split(',') {
            match names.last_mut() {
                Some(name) if part.contains('=') && !part.contains(':') => name.push(part),
                _ => names.push(vec![part]),
            }
        }
        names.iter().map(|name| name.join(",").parse()).collect::<Result<_, _>>().map(Self)
    }
}

#[cfg(test)]
mod tests {
    use kvo_policies::S3FifoOptions;

    use super::*;

    #[test]
    fn options_of_one_stay_together() {
        let options = S3FifoOptions { small_pct: 10, threshold: 2, leaf_only: true };
        assert_eq!(
            "lru,s3fifo:small=10,threshold=2,opt".parse(),
            Ok(ContenderList(vec![
                Contender::Policy(PolicyKind::Lru),
                Contender::Policy(PolicyKind::S3Fifo(options)),
                Contender::Opt,
            ]))
        );
    }

    #[test]
    fn an_unknown_name_is_an_error_that_lists_the_names() {
        let error = "lru,mru".parse::<ContenderList>().unwrap_err().to_string();
        assert!(error.starts_with("unknown policy \"mru\": use lru, arc, "), "{error}");
        assert!(error.ends_with("or opt for the most that any policy could have"), "{error}");
        assert!("threshold=1".parse::<ContenderList>().is_err());
        assert!("".parse::<ContenderList>().is_err());
    }
}
