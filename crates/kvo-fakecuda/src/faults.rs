//! Errors that a test asks for.

use crate::abi::Code;

/// A run of calls that fail.
struct Rule {
    name: &'static str,
    /// Calls that are let through before.
    passes: u64,
    times: u64,
    code: Code,
}

#[derive(Default)]
pub(crate) struct Faults {
    calls: Vec<Rule>,
    /// Copies that still run, and what the device dies of at the next one.
    at_copy: Option<(u64, Code)>,
    /// The member at which the next batch fails.
    batch: Option<(usize, Code)>,
}

impl Faults {
    /// From the `nth` call on, counted from 1, `times` calls of `name` fail.
    pub(crate) fn add(&mut self, name: &'static str, nth: u64, times: u64, code: Code) {
        self.calls.push(Rule { name, passes: nth.saturating_sub(1), times, code });
    }

    /// What this call fails with.
    pub(crate) fn of_call(&mut self, name: &str) -> Option<Code> {
        let mut failure = None;
        for rule in self.calls.iter_mut().filter(|rule| rule.name == name) {
            if rule.passes > 0 {
                rule.passes -= 1;
            } else if rule.times > 0 && failure.is_none() {
                rule.times -= 1;
                failure = Some(rule.code);
            }
        }
        self.calls.retain(|rule| rule.times > 0);
        failure
    }

    pub(crate) fn kill_at_copy(&mut self, nth: u64, code: Code) {
        self.at_copy = Some((nth.saturating_sub(1), code));
    }

    /// What the device dies of instead of making this copy.
    pub(crate) fn of_copy(&mut self) -> Option<Code> {
        let (left, code) = self.at_copy.as_mut()?;
        if *left > 0 {
            *left -= 1;
            return None;
        }
        let code = *code;
        self.at_copy = None;
        Some(code)
    }

    pub(crate) fn fail_batch(&mut self, member: usize, code: Code) {
        self.batch = Some((member, code));
    }

    /// Where a batch of `count` members fails, and with what.
    pub(crate) fn of_batch(&mut self, count: usize) -> Option<(usize, Code)> {
        let (member, _) = self.batch?;
        if member < count { self.batch.take() } else { None }
    }
}
