//! Which chunks are let in.

use std::time::Duration;

use kvo_core::{OffloadPolicy, RequestContext, RequestId, SecondaryTier, TierCompletion};

use super::{CHUNK_BYTES, Rig, keys};
use crate::{Admission, AdmissionRule, NvmeOptions};

fn rig(admission: Admission) -> Rig {
    let options = NvmeOptions::new("unused", 8, CHUNK_BYTES as u64);
    Rig::with_options(NvmeOptions { admission, reads_inflight_max: 1, ..options })
}

#[track_caller]
fn check_write(rig: &mut Rig, req: u64, ns: &[u64], refused: &[u64]) {
    rig.announce(req);
    let job = rig.write(req, ns);
    rig.run_all(&[]);
    assert_eq!(rig.poll(), [TierCompletion::except(job, keys(refused.iter().copied()))]);
    rig.store.on_request_finished(RequestId(req));
}

#[test]
fn a_chunk_is_let_in_at_its_second_offer() {
    let rule = AdmissionRule::SecondOffer { keys_max: 100 };
    let mut rig = rig(Admission { rule, ..Admission::default() });
    assert_eq!(rig.store.on_new_request(&RequestContext::new(RequestId(9))), OffloadPolicy::RequestLevel);
    check_write(&mut rig, 1, &[1, 2], &[1, 2]);
    check_write(&mut rig, 2, &[1, 2, 3], &[3]);
    check_write(&mut rig, 3, &[1, 2, 3, 4], &[4]);
    rig.get(4, &[1, 2, 3], &[]);
    let stats = rig.store.stats();
    assert_eq!((stats.chunks_unadmitted, stats.chunks_refused), (4, 0));
}

#[test]
fn a_budget_lets_the_head_in_and_fills_up_again() {
    let bytes_per_day_max = Some(24 * 2 * CHUNK_BYTES as u64);
    let mut rig = rig(Admission { bytes_per_day_max, ..Admission::default() });
    check_write(&mut rig, 1, &[1], &[1]);
    rig.clock.advance(Duration::from_hours(1));
    check_write(&mut rig, 2, &[1, 2, 3], &[3]);
    rig.clock.advance(Duration::from_mins(30));
    check_write(&mut rig, 3, &[1, 2, 3, 4], &[4]);
}

#[test]
fn nothing_is_let_in_while_reads_wait() {
    let mut rig = rig(Admission { skip_while_reads_wait: true, ..Admission::default() });
    check_write(&mut rig, 1, &[1, 2], &[]);
    rig.read(2, &[1, 2]);
    let job = rig.write(3, &[3]);
    assert_eq!(rig.poll(), [TierCompletion::except(job, keys([3]))]);
    rig.run_all(&[]);
    assert_eq!(rig.poll().len(), 1);
    check_write(&mut rig, 4, &[3], &[]);
}

#[test]
fn any_number_of_reads_at_once_can_be_asked_for() {
    let admission = Admission { skip_while_reads_wait: true, ..Admission::default() };
    let options = NvmeOptions::new("unused", 8, CHUNK_BYTES as u64);
    let dirs = vec!["unused".into(), "unused, too".into()];
    let mut rig =
        Rig::with_options(NvmeOptions { admission, dirs, reads_inflight_max: usize::MAX, ..options });
    check_write(&mut rig, 1, &[1], &[]);
}
