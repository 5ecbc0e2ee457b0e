//! `--check`: the results against what is published.

use std::io::{Write, stdout};

use anyhow::bail;
use kvo_bench::golden::Golden;

use super::run::{Plan, Ran};
use crate::Outcome;

/// Holds all results against what is published.
pub(super) fn check(ran: &[Ran]) -> anyhow::Result<Outcome> {
    let (mut agree, mut differ, mut unknown) = (0, 0, Vec::new());
    let mut out = stdout();
    for Ran { plan: Plan { trace, cells, .. }, results, .. } in ran {
        let fingerprint = trace.fingerprint();
        let before = agree + differ;
        for (&(policy, capacity), result) in cells.iter().zip(results) {
            let Some(golden) = Golden::of(fingerprint, policy, capacity) else { continue };
            if golden.agrees(result) {
                agree += 1;
            } else {
                differ += 1;
                let (name, published) = (&trace.name, published(&golden));
                writeln!(out, "DIFFERS: {policy} at {capacity} on {name}: published are {published}")?;
            }
        }
        if agree + differ == before {
            unknown.push(trace.name.as_str());
        }
    }
    writeln!(out, "published figures: {agree} cells agree, {differ} differ")?;
    if !unknown.is_empty() {
        bail!("--check: nothing is published for these policies and capacities on {}", unknown.join(", "));
    }
    Ok(if differ == 0 { Outcome::Passed } else { Outcome::Failed })
}

fn published(golden: &Golden) -> String {
    let evictions = golden
        .evictions
        .map(|(evictions, order)| format!(" and {evictions} evictions in the order {order:016x}"))
        .unwrap_or_default();
    format!("{} hits{evictions}", golden.hits)
}
