//! Independent jobs on the cores that there are.

use std::{
    ops::ControlFlow,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

use indicatif::ProgressBar;

use crate::Interrupt;

/// The bar moves once in so many requests.
const REQUESTS_PER_MOVE: u64 = 64;

/// Runs each of `jobs` once, on as many threads as the machine has cores, and returns what came out in their order.
///
/// Jobs are taken in order. A panic of one is passed on when the others have ended.
pub fn run_parallel<T: Sync, R: Send>(jobs: &[T], run: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let worker = || {
        let mut done = Vec::new();
        while let Some((index, job)) = take(&next, jobs) {
            done.push((index, run(job)));
        }
        done
    };
    let threads = thread::available_parallelism().map_or(1, usize::from).min(jobs.len());
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

fn take<'a, T>(next: &AtomicUsize, jobs: &'a [T]) -> Option<(usize, &'a T)> {
    let index = next.fetch_add(1, Ordering::Relaxed);
    Some((index, jobs.get(index)?))
}

/// Counts the requests of one job on a bar that all jobs share, and tells the job when to stop.
#[derive(Debug)]
pub struct Ticker<'a> {
    interrupt: &'a Interrupt,
    progress: &'a ProgressBar,
    begun: u64,
}

impl<'a> Ticker<'a> {
    /// One for a job that begins.
    pub fn new(interrupt: &'a Interrupt, progress: &'a ProgressBar) -> Self {
        Self { interrupt, progress, begun: 0 }
    }

    /// To be called before every request: whether to serve it.
    pub fn tick(&mut self) -> ControlFlow<()> {
        self.begun += 1;
        if self.begun.is_multiple_of(REQUESTS_PER_MOVE) {
            self.progress.inc(REQUESTS_PER_MOVE);
        }
        if self.interrupt.is_set() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

impl Drop for Ticker<'_> {
    fn drop(&mut self) {
        self.progress.inc(self.begun % REQUESTS_PER_MOVE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_come_in_the_order_of_the_jobs() {
        let jobs: Vec<u64> = (0..200).collect();
        let squares = run_parallel(&jobs, |n| n * n);
        assert_eq!(squares, jobs.iter().map(|n| n * n).collect::<Vec<_>>());
        assert!(run_parallel(&[], |n: &u64| *n).is_empty());
    }

    #[test]
    fn every_request_moves_the_bar_once() {
        let (interrupt, progress) = (Interrupt::manual(), ProgressBar::hidden());
        for requests in [1, 63, 64, 130] {
            progress.reset();
            let mut ticker = Ticker::new(&interrupt, &progress);
            for _ in 0..requests {
                assert!(ticker.tick().is_continue());
            }
            drop(ticker);
            assert_eq!(progress.position(), requests);
        }
        interrupt.set();
        assert!(Ticker::new(&interrupt, &progress).tick().is_break());
    }
}
