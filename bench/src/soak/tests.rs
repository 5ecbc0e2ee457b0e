use kvo_core::TierOutcome;

use super::*;

fn options(duration: Duration) -> SoakOptions {
    SoakOptions { duration, chunk_bytes: 8192, capacity_chunks: 200, policy: PolicyKind::Lru, seed: 7 }
}

#[test]
fn a_store_under_churn_counts_as_its_user_does() {
    let dir = tempfile::tempdir().unwrap();
    let mut seen = 0;
    let options = options(Duration::from_millis(400));
    let result = run_soak(dir.path(), &options, &Interrupt::manual(), |_| seen += 1).unwrap();
    assert_eq!(result.problems, Vec::<String>::new());
    assert_eq!((seen, result.samples.len()), (SAMPLES as usize, SAMPLES as usize));
    let ledger = result.ledger;
    assert!(ledger.chunks_loaded > 200 && result.stats.chunks_evicted > 0, "{ledger:?}");
    let loaded_percent = 100 * ledger.chunks_loaded / (ledger.chunks_loaded + ledger.chunks_written());
    // The chunks that filled the store count as stored.
    assert!((50..=72).contains(&loaded_percent), "{loaded_percent} % were loads");
}

#[test]
fn an_interrupt_ends_it_with_what_there_is() {
    let dir = tempfile::tempdir().unwrap();
    let interrupt = Interrupt::manual();
    interrupt.set();
    let result = run_soak(dir.path(), &options(Duration::from_hours(1)), &interrupt, |_| ()).unwrap();
    assert!(result.samples.is_empty() && result.problems.is_empty(), "{:?}", result.problems);
    assert_eq!(result.stats.counts.evictable, 200, "the store was filled");
}

#[test]
fn a_chunk_with_other_bytes_and_one_that_is_lost_are_seen() {
    let host = HostChunks::new(CHUNKS_PER_JOB_MAX, 4096, 0).unwrap();
    let keys = vec![key(1), key(2), key(3)];
    let lane = Lane { number: 0, req: RequestId(1), direction: TierDirection::Write, keys };
    lane.prepare(&host).unwrap();
    let lane = Lane { direction: TierDirection::Read, keys: vec![key(1), key(5), key(3)], ..lane };
    let mut ledger = Ledger::default();
    let outcome = TierOutcome::Partial { failed: vec![key(3)] };
    ledger.compared = ledger.count_ended(&lane, &outcome, |arrived| lane.compare(&host, arrived)).unwrap();
    assert_eq!(ledger.compared, Checked { right_bytes: 4096, wrong_chunks: 1 });
    assert_eq!((ledger.chunks_loaded, ledger.chunks_lost), (2, 1));
    let problems = ledger.problems(&kvo_nvme::StoreStats::default(), 4096);
    for part in ["chunks with other bytes: 1", "no load brought: 1", "chunks loaded: 0 instead of 2"] {
        assert!(problems.iter().any(|problem| problem.contains(part)), "{part} is not in {problems:?}");
    }
}

#[test]
fn growth_is_that_of_the_second_half() {
    let sample = |resident_bytes, counts_add_up| SoakSample {
        seconds: 0.0,
        chunks_loaded: 0,
        chunks_offered: 0,
        chunks_evicted: 0,
        resident_bytes,
        open_files: Some(5),
        threads: None,
        counts_add_up,
    };
    let mut samples: Vec<_> = [1, 50, 90, 100, 100, 101, 100, 102].map(|mib| sample(mib << 20, true)).into();
    assert_eq!(resident_growth(&samples), Some(1 << 20), "warming up is no growth");
    assert_eq!(samples::problems(&samples), Vec::<String>::new());
    samples[6..].iter_mut().for_each(|sample| sample.resident_bytes += 20 << 20);
    samples[7].open_files = Some(6);
    samples[2].counts_add_up = false;
    let problems = samples::problems(&samples);
    assert_eq!(problems.len(), 3, "{problems:?}");
    assert_eq!(resident_growth(&samples[1..]), None);
}
