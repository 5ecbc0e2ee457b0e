//! Many cells of model R at once, on the cores that there are.

use std::{
    ops::ControlFlow,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

use indicatif::ProgressBar;

use crate::{Contender, Interrupt, ModelError, PolicyResult, Trace, run_model_r, run_opt};

/// The bar moves once in so many requests.
const REQUESTS_PER_TICK: u64 = 64;

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
    let next = AtomicUsize::new(0);
    let worker = || {
        let mut done = Vec::new();
        while let Some((index, &(policy, capacity))) = take(&next, cells) {
            done.push((index, run_cell(trace, policy, capacity, interrupt, progress)));
        }
        done
    };
    let threads = thread::available_parallelism().map_or(1, usize::from).min(cells.len());
    let mut results: Vec<_> = thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(worker)).collect();
        let join = |worker: thread::ScopedJoinHandle<'_, _>| {
            worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        workers.into_iter().flat_map(join).collect()
    });
    results.sort_by_key(|(index, _)| *index);
    results.into_iter().map(|(_, result)| result).collect()
}

fn take<'a, T>(next: &AtomicUsize, cells: &'a [T]) -> Option<(usize, &'a T)> {
    let index = next.fetch_add(1, Ordering::Relaxed);
    Some((index, cells.get(index)?))
}

fn run_cell(
    trace: &Trace,
    policy: Contender,
    capacity: u32,
    interrupt: &Interrupt,
    progress: &ProgressBar,
) -> Result<PolicyResult, ModelError> {
    let mut begun = 0;
    let before_request = || {
        begun += 1;
        if begun % REQUESTS_PER_TICK == 0 {
            progress.inc(REQUESTS_PER_TICK);
        }
        if interrupt.is_set() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let result = match policy {
        Contender::Policy(policy) => run_model_r(trace, policy, capacity, before_request),
        Contender::Opt => Ok(run_opt(trace, capacity, before_request)),
    };
    progress.inc(begun % REQUESTS_PER_TICK);
    result
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
