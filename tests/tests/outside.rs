//! A policy and a tier that are written against the public traits alone drive a whole run.

mod support;

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::{
        Arc,
        mpsc::{Receiver, Sender, channel},
    },
};

use kvo_core::{
    HostMemory, JobRejected, Locality, Medium, OffloadKey, OffloadManager, RequestContext, RequestId,
    SecondaryTier, TierCompletion, TierDirection, TierFilter, TierJob, TierLookup,
};
use support::{
    Backing, Engine, Fifo, LONG, Offered, Rng, Setup, Watched, check_resident, keys, prompt, push_down,
};

/// A tier that keeps everything, far away: it works on a thread of its own, and answers a lookup a step later.
struct Notebook {
    jobs: Sender<TierJob>,
    results: Receiver<(TierJob, Vec<OffloadKey>)>,
    num_open: usize,
    ended: Vec<TierCompletion>,
    written: HashSet<OffloadKey>,
    /// What was asked, and whether the answer is there.
    asked: HashMap<(RequestId, OffloadKey), bool>,
}

impl Notebook {
    fn new(memory: Arc<dyn HostMemory>) -> Self {
        let (jobs, work) = channel::<TierJob>();
        let (report, results) = channel();
        std::thread::spawn(move || {
            let mut pages: HashMap<OffloadKey, Vec<u8>> = HashMap::new();
            for job in work {
                let failed = job.chunks.iter().filter(|chunk| {
                    let copied = match job.direction {
                        TierDirection::Write => memory.with_read(chunk.slot, &mut |bytes| {
                            pages.insert(chunk.key, bytes.to_vec());
                        }),
                        TierDirection::Read => memory.with_write(chunk.slot, &mut |bytes| {
                            bytes.copy_from_slice(&pages[&chunk.key]);
                        }),
                    };
                    copied.is_err()
                });
                let failed = failed.map(|chunk| chunk.key).collect();
                if report.send((job, failed)).is_err() {
                    break;
                }
            }
        });
        let (written, asked) = (HashSet::new(), HashMap::new());
        Self { jobs, results, num_open: 0, ended: Vec::new(), written, asked }
    }

    fn end(&mut self, (job, failed): (TierJob, Vec<OffloadKey>)) {
        self.num_open -= 1;
        if job.direction == TierDirection::Write {
            self.written.extend(job.chunks.iter().map(|chunk| chunk.key).filter(|key| !failed.contains(key)));
        }
        self.ended.push(TierCompletion::except(job.id, failed));
    }
}

impl SecondaryTier for Notebook {
    fn name(&self) -> &'static str {
        "notebook"
    }

    fn medium(&self) -> Medium {
        Medium::Object
    }

    fn locality(&self) -> Locality {
        Locality::Remote
    }

    fn lookup(&mut self, req: RequestId, key: &OffloadKey) -> TierLookup {
        match self.asked.entry((req, *key)).or_insert(false) {
            false => TierLookup::Retry,
            true if self.written.contains(key) => TierLookup::Hit,
            true => TierLookup::Miss,
        }
    }

    fn submit(&mut self, job: TierJob) -> Result<(), JobRejected> {
        self.jobs.send(job).expect("the thread ends with the tier");
        self.num_open += 1;
        Ok(())
    }

    fn poll(&mut self, done: &mut Vec<TierCompletion>) {
        while let Ok(result) = self.results.try_recv() {
            self.end(result);
        }
        done.append(&mut self.ended);
    }

    fn on_request_finished(&mut self, req: RequestId) {
        self.asked.retain(|(of, _), _| *of != req);
    }

    fn on_schedule_end(&mut self) {
        self.asked.values_mut().for_each(|answered| *answered = true);
    }
}

impl Backing for Notebook {
    fn drain(&mut self) {
        while self.num_open > 0 {
            let result = self.results.recv_timeout(LONG).expect("the thread gets its work done");
            self.end(result);
        }
    }
}

fn over_notebook(setup: Setup) -> (Engine, Watched<Notebook>, Fifo) {
    let region = setup.region();
    let policy = Fifo::default();
    let notebook = Watched::new(Notebook::new(Arc::clone(&region)));
    let mut engine = Engine::new(setup, region, Box::new(policy.clone()), vec![]);
    engine.add_tier(notebook.clone());
    (engine, notebook, policy)
}

#[test]
fn a_policy_and_a_tier_from_outside_drive_a_whole_run() {
    let (mut engine, notebook, policy) = over_notebook(Setup { num_groups: 2, ..Setup::new(12) });
    let mut rng = Rng::new(7);
    let mut served: HashSet<u64> = HashSet::new();
    let mut loaded = 0;
    for _ in 0..120 {
        let n = 1 + rng.next() % 5;
        let len = 1 + rng.next() % 4;
        let chunks = prompt(n, len);
        let skip = u32::from(rng.chance(50));
        let known = chunks.iter().take_while(|chunk| served.contains(chunk)).count();
        assert_eq!(engine.serve(&chunks, skip), known, "the tier forgets nothing");
        served.extend(chunks);
        loaded += known;
    }
    let stats = engine.manager().stats();
    assert!(stats.primary.chunks_evicted > 100 && stats.tiers[0].read.chunks > 100, "{stats:?}");
    assert!(stats.tiers[0].retries > 100, "{stats:?}");
    assert!(loaded > 150);
    assert_eq!(notebook.look().backing.written.len(), served.len() * 2);
    let resident = engine.ledger.chunks("cpu");
    assert_eq!(policy.queue().iter().map(|(_, key)| *key).collect::<BTreeSet<_>>(), resident);
    assert_eq!(policy.queue().len(), resident.len());
}

#[test]
fn pins_hold_against_a_policy_that_knows_nothing_of_them() {
    let (mut engine, notebook, _) = over_notebook(Setup::new(6));
    let [cascading, loading, more] = [(1, 3), (2, 3), (3, 3)].map(|(n, len)| prompt(n, len));
    engine.serve(&loading, 0);
    notebook.look().script.hold_jobs = true;
    let mut stores = engine.begin(&cascading);
    engine.compute(&mut stores, 0..3);
    assert!(matches!(engine.offer(&mut stores, 0..3), Offered::Running(_)));
    engine.complete_all();
    let gate = engine.hold_compute();
    let mut loads = engine.begin(&loading);
    assert_eq!(engine.look(&mut loads), (3, false));
    engine.load(&mut loads, 3, 0).unwrap();

    // Three chunks have an internal pin, three have that of a load.
    let mut other = engine.begin(&more);
    engine.compute(&mut other, 0..3);
    for chunks in [0..1, 0..3] {
        let refused = engine.offer(&mut other, chunks);
        assert!(matches!(refused, Offered::Refused(refusal) if refusal.evictable == 0), "{refused:?}");
    }
    check_resident(&engine, &[keys(&cascading, 0), keys(&loading, 0)].concat(), true);
    drop(gate);
    assert!(engine.complete_all()[0].arrived);
    assert!(matches!(engine.offer(&mut other, 0..3), Offered::Running(_)));
    check_resident(&engine, &keys(&cascading, 0), true);
    check_resident(&engine, &keys(&loading, 0), false);
    engine.complete_all();
    notebook.open();
    for req in [&mut stores, &mut loads, &mut other] {
        engine.finish(req);
    }
    engine.settle();
    engine.check_quiet();
    for chunks in [&cascading, &loading, &more] {
        assert_eq!(engine.serve(chunks, 1), 3);
    }
}

#[test]
fn a_request_that_may_not_use_a_remote_tier_does_not_wait_for_it() {
    let (mut engine, notebook, _) = over_notebook(Setup::new(4));
    let chunks = prompt(1, 4);
    engine.serve(&chunks, 0);
    push_down(&mut engine, &keys(&chunks, 0), &[&prompt(2, 4)]);
    let filter = TierFilter::all().only_localities([Locality::Local]);
    let mut local = RequestContext::new(RequestId(1 << 40)).with_tier_filter(filter);
    engine.manager_mut().new_request(&mut local).unwrap();
    for key in keys(&chunks, 0) {
        assert_eq!(engine.manager_mut().lookup(&mut local, &key), kvo_core::LookupResult::Miss);
    }
    engine.manager_mut().on_request_finished(&mut local).unwrap();
    assert_eq!(notebook.finishes(local.id()), 1);
    assert_eq!(engine.serve(&chunks, 1), 4, "others may");
}
