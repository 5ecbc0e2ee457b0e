//! A run that fails made smaller: without kinds of trouble, and without operations.

use crate::{
    run::{Failure, Run},
    violation::Rule,
};

/// Runs at most.
const RUNS_MAX: usize = 1500;

/// The smallest run that was found and that violates the same rule, and how it fails.
pub fn shrink(run: &Run, failure: &Failure) -> (Run, Failure) {
    let rule = failure.violation.rule;
    let mut budget = RUNS_MAX;
    let mut best = (run.clone(), failure.clone());
    // What comes behind the operation that has failed is not needed.
    let end = failure.at + 1;
    try_it(&mut best, run.with_ops(|nth| nth < end), rule, &mut budget);
    for trouble in best.0.troubles() {
        let without = best.0.clone().without(trouble);
        try_it(&mut best, without, rule, &mut budget);
    }
    let mut size = best.0.num_ops().div_ceil(2);
    while size > 0 && budget > 0 {
        let mut start = 0;
        let mut has_shrunk = false;
        while start < best.0.num_ops() && budget > 0 {
            let gone = start..start + size;
            let without = best.0.with_ops(|nth| !gone.contains(&nth));
            if try_it(&mut best, without, rule, &mut budget) {
                has_shrunk = true;
            } else {
                start += size;
            }
        }
        if !has_shrunk || size > 1 {
            size /= 2;
        }
    }
    best
}

/// Takes a smaller run for the best one, if it fails in the same way.
fn try_it(best: &mut (Run, Failure), run: Run, rule: Rule, budget: &mut usize) -> bool {
    *budget = budget.saturating_sub(1);
    match run.run() {
        Err(failure) if failure.violation.rule == rule => {
            *best = (run, failure);
            true
        }
        _ => false,
    }
}
