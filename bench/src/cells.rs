//! Many cells of model R at once, on the cores that there are.

use indicatif::ProgressBar;

use crate::{
    Contender, Interrupt, ModelError, PolicyResult, Ticker, Trace, run_model_r, run_opt, run_parallel,
};

/// Runs each policy and capacity of `cells` on `trace`, and returns the results in the order of the cells.
///
/// `progress` moves by one a request. Once `interrupt` is set every cell stops: those that were running or waiting
/// come back with the requests that they had served.
///
/// # Errors
///
/// The first [`ModelError`] in the order of the cells.
pub fn run_cells(
    trace: &Trace,
    cells: &[(Contender, u32)],
    interrupt: &Interrupt,
    progress: &ProgressBar,
) -> Result<Vec<PolicyResult>, ModelError> {
    let run = |&(policy, capacity): &(Contender, u32)| {
        run_cell(trace, policy, capacity, Ticker::new(interrupt, progress))
    };
    run_parallel(cells, run).into_iter().collect()
}

/// Runs one policy at one capacity.
///
/// # Errors
///
/// As [`run_model_r`].
pub fn run_cell(
    trace: &Trace,
    policy: Contender,
    capacity: u32,
    mut ticker: Ticker<'_>,
) -> Result<PolicyResult, ModelError> {
    match policy {
        Contender::Policy(policy) => run_model_r(trace, policy, capacity, || ticker.tick()),
        Contender::Opt => Ok(run_opt(trace, capacity, || ticker.tick())),
    }
}

#[cfg(test)]
mod tests {
    use kvo_policies::PolicyKind;

    use super::*;
    use crate::kvo_synth;

    const LRU: Contender = Contender::Policy(PolicyKind::Lru);

    #[test]
    fn results_come_in_the_order_of_the_cells() {
        let trace = kvo_synth(60, 1);
        let cells: Vec<_> =
            (1..40).rev().flat_map(|capacity| [(LRU, capacity), (Contender::Opt, capacity)]).collect();
        let progress = ProgressBar::hidden();
        let results = run_cells(&trace, &cells, &Interrupt::manual(), &progress).unwrap();
        let capacities: Vec<_> = results.iter().map(|result| result.capacity).collect();
        assert_eq!(capacities, (1..40).rev().flat_map(|capacity| [capacity; 2]).collect::<Vec<_>>());
        assert!(results.iter().all(|result| result.requests == 60));
        assert_eq!(progress.position(), 60 * 78);
    }

    #[test]
    fn an_interrupt_stops_every_cell() {
        let interrupt = Interrupt::manual();
        interrupt.set();
        let cells = [(LRU, 8), (LRU, 16)];
        let results = run_cells(&kvo_synth(60, 1), &cells, &interrupt, &ProgressBar::hidden()).unwrap();
        assert_eq!(results.iter().map(|result| result.requests).collect::<Vec<_>>(), [0, 0]);
    }

    #[test]
    fn no_cell_gives_no_result() {
        let results = run_cells(&kvo_synth(1, 1), &[], &Interrupt::manual(), &ProgressBar::hidden());
        assert_eq!(results, Ok(Vec::new()));
    }
}
