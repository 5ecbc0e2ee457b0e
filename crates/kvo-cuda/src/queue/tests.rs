//! Facts about the queue, one each. All of it against a naive model is in `tests/model.rs`.

mod model;

use kvo_core::OwnerId;

use super::*;

const NOW: Duration = Duration::ZERO;

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// One region and one slot of 1000 bytes, windows of 10 bytes, pieces of 4 bytes or 3 copies.
fn queue() -> TransferQueue {
    let mut queue = TransferQueue::new(QueueOptions {
        inflight_max: 8,
        window_bytes: 10,
        quantum_bytes: 4,
        piece_ops_max: 3,
        ..QueueOptions::new(1, 1000)
    });
    assert_eq!(queue.add_region(1000), RegionId(0));
    queue
}

fn op(start: u64, bytes: u64) -> CopyOp {
    CopyOp { region: RegionId(0), device_offset: start, slot: SlotId(0), slot_offset: start, bytes }
}

/// Copies of so many bytes each, one behind the other, behind fence 0.
fn transfer(class: TransferClass, lengths: &[u64]) -> Transfer {
    let mut start = 0;
    let next = |bytes: &u64| {
        start += bytes;
        op(start - bytes, *bytes)
    };
    Transfer::new(class, lengths.iter().map(next).collect(), Fence::new(OwnerId::unique(), 0))
}

#[track_caller]
fn submit(queue: &mut TransferQueue, transfer: Transfer) -> Ticket {
    queue.submit(transfer, NOW).unwrap()
}

fn next(queue: &mut TransferQueue, direction: Direction) -> Option<Piece> {
    queue.next_piece(direction, |_, _| FenceState::Passed)
}

/// Gives out all there is room for.
fn fill(queue: &mut TransferQueue, direction: Direction) -> Vec<Piece> {
    std::iter::from_fn(|| next(queue, direction)).collect()
}

fn end_all(queue: &mut TransferQueue, pieces: Vec<Piece>) {
    for piece in pieces {
        queue.end(piece, Ok(()), NOW);
    }
}

fn done(queue: &mut TransferQueue) -> Vec<TransferCompletion> {
    let mut done = Vec::new();
    queue.take_done(&mut done);
    done
}

fn released(queue: &mut TransferQueue) -> Vec<Ticket> {
    let mut released = Vec::new();
    queue.take_released(&mut released);
    released
}

fn ended(ticket: Ticket, result: Result<u64, TransferFailure>) -> TransferCompletion {
    TransferCompletion { ticket, result, held: false }
}

fn held(ticket: Ticket, failure: TransferFailure) -> TransferCompletion {
    TransferCompletion { ticket, result: Err(failure), held: true }
}

#[test]
fn pieces_end_at_marks_and_only_a_long_copy_is_cut() {
    let mut queue = queue();
    queue.options.window_bytes = 1000;
    let marks = vec![0, 2, 2, 5];
    let lengths = [1, 1, 1, 1, 1, 9, 2, 1, 1];
    submit(&mut queue, Transfer { marks, ..transfer(TransferClass::Demand, &lengths) });
    let pieces = fill(&mut queue, Direction::Load);
    let shape: Vec<_> = pieces.iter().map(|piece| (piece.bytes(), piece.marks())).collect();
    assert_eq!(shape, [(2, 1..3), (3, 3..4), (4, 4..4), (4, 4..4), (4, 4..4), (1, 4..4)]);
    let mut ops = Vec::new();
    for piece in &pieces {
        queue.copies(piece, &mut ops);
    }
    let copies: Vec<_> = ops.iter().map(|op| (op.device_offset, op.slot_offset, op.bytes)).collect();
    let expected =
        [(0, 1), (1, 1), (2, 1), (3, 1), (4, 1), (5, 4), (9, 4), (13, 1), (14, 2), (16, 1), (17, 1)];
    assert_eq!(copies, expected.map(|(start, bytes)| (start, start, bytes)));
}

#[test]
fn an_urgent_load_overtakes_what_is_not_on_the_device_and_a_window_bounds_what_is() {
    let mut queue = queue();
    let prefetch = submit(&mut queue, transfer(TransferClass::Prefetch, &[4; 5]));
    let mut on_device = fill(&mut queue, Direction::Load);
    assert_eq!(on_device.len(), 2, "8 of 10 bytes; a third piece has no room");
    let expedited = submit(&mut queue, transfer(TransferClass::Expedited, &[4]));
    let demand = submit(&mut queue, transfer(TransferClass::Demand, &[3]));
    let store = submit(&mut queue, transfer(TransferClass::Store, &[1]));
    assert!(next(&mut queue, Direction::Load).is_none());
    assert_eq!(next(&mut queue, Direction::Store).map(|piece| piece.ticket()), Some(store));
    let mut order = Vec::new();
    while !on_device.is_empty() {
        queue.end(on_device.remove(0), Ok(()), NOW);
        for piece in fill(&mut queue, Direction::Load) {
            order.push(piece.ticket());
            on_device.push(piece);
        }
        assert!(queue.on_device_bytes(Direction::Load) <= 10);
    }
    assert_eq!(order, [demand, expedited, prefetch, prefetch, prefetch]);
    let reported: Vec<_> = done(&mut queue).into_iter().map(|completion| completion.ticket).collect();
    assert_eq!(reported, [demand, expedited, prefetch]);
}

#[test]
fn a_fence_that_is_not_passed_holds_up_its_own_class_only() {
    let mut queue = queue();
    let device = OwnerId::unique();
    let behind = |class, fence| Transfer { after: Fence::new(device, fence), ..transfer(class, &[1]) };
    submit(&mut queue, behind(TransferClass::Demand, 7));
    submit(&mut queue, behind(TransferClass::Demand, 0));
    let prefetch = submit(&mut queue, behind(TransferClass::Prefetch, 0));
    let state = |fence: Fence, _| if fence.sequence() == 0 { FenceState::Passed } else { FenceState::NotYet };
    let piece = queue.next_piece(Direction::Load, state).unwrap();
    assert_eq!((piece.ticket(), piece.wait_for()), (prefetch, None));
    assert!(queue.next_piece(Direction::Load, state).is_none());
    let piece = queue.next_piece(Direction::Load, |_, _| FenceState::OnDevice).unwrap();
    assert_eq!((piece.ticket(), piece.wait_for()), (Ticket(0), Some(Fence::new(device, 7))));
}

#[test]
fn a_transfer_that_is_late_is_reported_once_and_held_until_its_last_piece_ends() {
    let mut queue = queue();
    let limited =
        |deadline| Transfer { deadline: Some(ms(deadline)), ..transfer(TransferClass::Store, &[4; 3]) };
    let on_device = submit(&mut queue, limited(5));
    let mut pieces = fill(&mut queue, Direction::Store);
    let queued = submit(&mut queue, limited(5));
    let in_time = submit(&mut queue, limited(6));
    assert_eq!(queue.next_deadline(), Some(ms(5)));
    queue.on_time(ms(4));
    assert_eq!(done(&mut queue), []);
    queue.on_time(ms(5));
    let timed_out = TransferFailure::TimedOut { after: ms(5) };
    let late = [held(on_device, timed_out.clone()), ended(queued, Err(timed_out))];
    assert_eq!(done(&mut queue), late);
    assert_eq!((queue.num_open(), queue.num_held()), (1, 1));
    assert_eq!(queue.slot_users(SlotId(0)), 2);
    let in_use = AttachError::InUse { region: RegionId(0), inflight: 2 };
    assert_eq!(queue.remove_region(RegionId(0)), Err(in_use));
    assert!(!queue.is_wanted(&pieces[0]));

    queue.end(pieces.pop().unwrap(), Ok(()), ms(6));
    assert_eq!(released(&mut queue), []);
    queue.end(pieces.pop().unwrap(), Err(TransferFailure::Refused { code: 1 }), ms(6));
    assert_eq!(released(&mut queue), [on_device]);
    assert_eq!((done(&mut queue), released(&mut queue)), (vec![], vec![]));
    // The third goes on as if nothing had been.
    while let Some(piece) = next(&mut queue, Direction::Store) {
        assert_eq!(piece.ticket(), in_time);
        queue.end(piece, Ok(()), ms(5));
    }
    assert_eq!(done(&mut queue), [ended(in_time, Ok(12))]);
    assert_eq!(queue.remove_region(RegionId(0)), Ok(()));
    let unknown = AttachError::UnknownRegion { region: RegionId(0) };
    assert_eq!(queue.remove_region(RegionId(0)), Err(unknown));
}

#[test]
fn a_death_fails_every_open_ticket_once_and_its_late_ends_are_only_releases() {
    let mut queue = queue();
    let over = submit(&mut queue, transfer(TransferClass::Store, &[1]));
    let pieces = fill(&mut queue, Direction::Store);
    end_all(&mut queue, pieces);
    let on_device = submit(&mut queue, transfer(TransferClass::Demand, &[4]));
    let for_ever = submit(&mut queue, transfer(TransferClass::Demand, &[4]));
    let mut pieces = fill(&mut queue, Direction::Load);
    let queued = submit(&mut queue, transfer(TransferClass::Store, &[4]));
    queue.die(700, NOW);
    queue.die(701, NOW);
    let dead = TransferFailure::Device { code: 700 };
    let expected = [
        ended(over, Ok(1)),
        held(on_device, dead.clone()),
        held(for_ever, dead.clone()),
        ended(queued, Err(dead)),
    ];
    assert_eq!(done(&mut queue), expected);
    assert!(next(&mut queue, Direction::Store).is_none());
    queue.end(pieces.remove(0), Ok(()), NOW);
    assert_eq!((done(&mut queue), released(&mut queue)), (vec![], vec![on_device]));
    assert_eq!((queue.num_open(), queue.num_held()), (0, 1), "the device never says of the other");
    let health = DeviceHealth::Dead { code: 700 };
    let refused = queue.submit(transfer(TransferClass::Store, &[1]), NOW).unwrap_err();
    assert_eq!(refused.reason, SubmitErrorReason::Unhealthy(health));
}

#[test]
fn what_a_dead_device_held_is_released_once_it_has_done_all_also_what_never_ended() {
    let mut queue = queue();
    let tickets = [
        submit(&mut queue, transfer(TransferClass::Demand, &[4, 4])),
        submit(&mut queue, transfer(TransferClass::Store, &[4])),
    ];
    let queued = submit(&mut queue, transfer(TransferClass::Store, &[8]));
    // As if the thread that had them were gone.
    fill(&mut queue, Direction::Load);
    next(&mut queue, Direction::Store);
    queue.die(999, NOW);
    let dead = TransferFailure::Device { code: 999 };
    let ends = [held(tickets[0], dead.clone()), held(tickets[1], dead.clone()), ended(queued, Err(dead))];
    assert_eq!(done(&mut queue), ends);
    assert!(queue.remove_region(RegionId(0)).is_err());
    queue.end_all();
    assert_eq!(released(&mut queue), tickets);
    assert_eq!((queue.num_held(), queue.on_device_bytes(Direction::Load)), (0, 0));
    queue.remove_region(RegionId(0)).unwrap();
    queue.end_all();
    assert_eq!(released(&mut queue), []);
}

#[test]
fn a_piece_that_is_refused_fails_its_transfer_when_the_others_have_ended() {
    let mut queue = queue();
    let ticket = submit(&mut queue, transfer(TransferClass::Store, &[4; 4]));
    let mut pieces = fill(&mut queue, Direction::Store);
    let refused = TransferFailure::Refused { code: 1 };
    queue.end(pieces.pop().unwrap(), Err(refused.clone()), NOW);
    assert!(next(&mut queue, Direction::Store).is_none(), "nothing more is given out of it");
    assert_eq!(done(&mut queue), []);
    queue.end(pieces.pop().unwrap(), Ok(()), NOW);
    assert_eq!(done(&mut queue), [ended(ticket, Err(refused))]);
    let stats = queue.stats();
    assert_eq!((stats.stores.jobs_failed, stats.stores.bytes, stats.inflight), (1, 0, 0));
}

#[test]
fn a_shut_down_fails_what_has_not_begun_and_lets_the_rest_end() {
    let mut queue = queue();
    let begun = submit(&mut queue, transfer(TransferClass::Store, &[4; 4]));
    let pieces = fill(&mut queue, Direction::Store);
    let queued = submit(&mut queue, transfer(TransferClass::Store, &[4]));
    queue.shut_down(NOW);
    assert_eq!(done(&mut queue), [ended(queued, Err(TransferFailure::ShutDown))]);
    end_all(&mut queue, pieces);
    let pieces = fill(&mut queue, Direction::Store);
    end_all(&mut queue, pieces);
    assert_eq!(done(&mut queue), [ended(begun, Ok(16))]);
    assert_eq!(queue.health(), DeviceHealth::ShutDown);
    assert!(queue.submit(transfer(TransferClass::Store, &[1]), NOW).is_err());
}

#[test]
fn a_mark_is_queued_then_issued_then_copied_then_over() {
    let mut queue = queue();
    let marks = vec![0, 1, 3];
    let ticket = submit(&mut queue, Transfer { marks, ..transfer(TransferClass::Demand, &[2; 4]) });
    let all = |queue: &TransferQueue| [0, 1, 2].map(|mark| queue.mark(ticket, mark).unwrap());
    assert_eq!(all(&queue), [MarkState::Copied, MarkState::Queued, MarkState::Queued]);
    let first = next(&mut queue, Direction::Load).unwrap();
    assert_eq!(all(&queue), [MarkState::Copied, MarkState::Issued, MarkState::Queued]);
    let second = next(&mut queue, Direction::Load).unwrap();
    let third = next(&mut queue, Direction::Load).unwrap();
    queue.end(second, Ok(()), NOW);
    assert_eq!(all(&queue), [MarkState::Copied, MarkState::Issued, MarkState::Issued], "the first is before");
    queue.end(first, Ok(()), NOW);
    assert_eq!(all(&queue), [MarkState::Copied; 3]);
    queue.end(third, Ok(()), NOW);
    assert_eq!(all(&queue), [MarkState::Over; 3]);
    let unknown = |ticket, mark| Err(FenceError::UnknownMark { ticket, mark });
    assert_eq!(queue.mark(Ticket(1), 0), unknown(Ticket(1), 0));
    let other = submit(&mut queue, transfer(TransferClass::Demand, &[1]));
    assert_eq!(queue.mark(other, 0), unknown(other, 0));
}

/// A layer without copies is as far as the one before.
#[test]
fn equal_marks_end_parts_without_copies() {
    use MarkState::{Copied, Issued, Over, Queued};
    let mut queue = queue();
    let marks = vec![0, 1, 1, 1, 2, 2];
    let ticket = submit(&mut queue, Transfer { marks, ..transfer(TransferClass::Demand, &[1, 1]) });
    let states = |queue: &TransferQueue| [0, 1, 2, 3, 4, 5].map(|mark| queue.mark(ticket, mark).unwrap());
    assert_eq!(states(&queue), [Copied, Queued, Queued, Queued, Queued, Queued]);
    let first = next(&mut queue, Direction::Load).unwrap();
    assert_eq!((first.bytes(), first.marks()), (1, 1..4));
    assert_eq!(states(&queue), [Copied, Issued, Issued, Issued, Queued, Queued]);
    queue.end(first, Ok(()), NOW);
    assert_eq!(states(&queue), [Copied, Copied, Copied, Copied, Queued, Queued]);
    let last = next(&mut queue, Direction::Load).unwrap();
    assert_eq!((last.bytes(), last.marks()), (1, 4..6));
    queue.end(last, Ok(()), NOW);
    assert_eq!(states(&queue), [Over; 6]);
    assert_eq!(done(&mut queue), [ended(ticket, Ok(2))]);
}

#[test]
fn a_full_queue_hands_the_transfer_back_until_a_completion_is_taken() {
    let mut queue = queue();
    queue.options.inflight_max = 2;
    for _ in 0..2 {
        submit(&mut queue, transfer(TransferClass::Store, &[1]));
    }
    let pieces = fill(&mut queue, Direction::Store);
    end_all(&mut queue, pieces);
    let refused = queue.submit(transfer(TransferClass::Store, &[2]), NOW).unwrap_err();
    assert_eq!(refused.reason, SubmitErrorReason::Full { inflight: 2, inflight_max: 2 });
    assert_eq!(done(&mut queue).len(), 2);
    queue.submit(refused.transfer, NOW).unwrap();
}

/// As of an engine whose compute hangs: what waits for its fence is given up by its deadline, and forgotten.
#[test]
fn what_was_given_up_behind_a_fence_that_is_never_passed_is_forgotten() {
    let mut queue = queue();
    submit(&mut queue, transfer(TransferClass::Store, &[1]));
    for nth in 0..1000 {
        let late = Transfer { deadline: Some(ms(1)), ..transfer(TransferClass::Store, &[1]) };
        queue.submit(late, ms(2 * nth)).unwrap();
        assert!(queue.next_piece(Direction::Store, |_, _| FenceState::NotYet).is_none());
        queue.on_time(ms(2 * nth + 1));
        assert_eq!(done(&mut queue).len(), 1);
    }
    let queued = queue.queued[TransferClass::Store as usize].len();
    assert!(queued <= 2 * queue.options.inflight_max, "{queued} places of one transfer");
}
