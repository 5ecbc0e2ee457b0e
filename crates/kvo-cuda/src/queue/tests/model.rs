//! The queue against a model that keeps one state a byte.

use proptest::prelude::*;

use super::*;

const SLOTS: u32 = 4;
const REGIONS: u32 = 3;
const WINDOW: u64 = 12;
const QUANTUM: u64 = 5;
const OPS_MAX: usize = 3;
const INFLIGHT_MAX: usize = 6;

#[derive(Clone, Debug)]
enum Op {
    Submit {
        class: usize,
        lengths: Vec<u64>,
        marks: Vec<u32>,
        deadline: Option<u64>,
        place: u32,
    },
    /// Compute passes one more fence.
    Pass,
    Next {
        load: bool,
    },
    /// Some piece on the device ends.
    End {
        nth: usize,
        refused: bool,
    },
    Tick {
        ms: u64,
    },
    Take,
    Detach {
        region: u32,
    },
    ShutDown,
    Die,
}

fn any_op() -> impl Strategy<Value = Op> {
    let submit = (
        0..4_usize,
        prop::collection::vec(1..=13_u64, 1..7),
        prop::collection::vec(0..=6_u32, 0..4),
        prop::option::of(1..40_u64),
        0..12_u32,
    );
    prop_oneof![
        10 => submit.prop_map(|(class, lengths, mut marks, deadline, place)| {
            marks.retain(|mark| *mark as usize <= lengths.len());
            marks.sort_unstable();
            Op::Submit { class, lengths, marks, deadline, place }
        }),
        6 => Just(Op::Pass),
        16 => any::<bool>().prop_map(|load| Op::Next { load }),
        14 => (any::<prop::sample::Index>(), 0..20_u32)
            .prop_map(|(nth, refused)| Op::End { nth: nth.index(64), refused: refused == 0 }),
        4 => (0..15_u64).prop_map(|ms| Op::Tick { ms }),
        4 => Just(Op::Take),
        2 => (0..REGIONS).prop_map(|region| Op::Detach { region }),
        1 => prop_oneof![9 => Just(Op::Take), 1 => Just(Op::ShutDown)],
        1 => prop_oneof![9 => Just(Op::Take), 1 => Just(Op::Die)],
    ]
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Byte {
    Queued,
    /// On the device, in the piece of this number.
    Out(usize),
    Copied,
}

/// A transfer as the model sees it: its bytes, one behind the other.
struct Modelled {
    ticket: Ticket,
    transfer: Transfer,
    submitted: u64,
    bytes: Vec<Byte>,
    /// By byte: its copy.
    op_of: Vec<usize>,
    refused: bool,
    reported: bool,
    gone: bool,
}

impl Modelled {
    fn is_out(&self) -> bool {
        self.bytes.iter().any(|byte| matches!(byte, Byte::Out(_)))
    }

    fn has_begun(&self) -> bool {
        self.bytes[0] != Byte::Queued
    }

    fn first_queued(&self) -> Option<usize> {
        self.bytes.iter().position(|byte| *byte == Byte::Queued)
    }

    /// The bytes that the next piece takes.
    fn next_len(&self) -> usize {
        let start = self.first_queued().unwrap();
        let first = self.op_of[start];
        let rest_of = |op: usize| (start..self.bytes.len()).filter(|byte| self.op_of[*byte] == op).count();
        let quantum = usize::try_from(QUANTUM).unwrap();
        if rest_of(first) > quantum {
            return quantum;
        }
        let (mut len, mut op) = (rest_of(first), first + 1);
        while op < self.transfer.ops.len()
            && op - first < OPS_MAX
            && !self.transfer.marks.contains(&u32::try_from(op).unwrap())
            && len + rest_of(op) <= quantum
        {
            len += rest_of(op);
            op += 1;
        }
        len
    }

    fn mark(&self, mark: u32) -> MarkState {
        let before = |byte: &usize| self.op_of[*byte] < self.transfer.marks[mark as usize] as usize;
        let bytes: Vec<Byte> = (0..self.bytes.len()).filter(before).map(|byte| self.bytes[byte]).collect();
        if self.reported {
            MarkState::Over
        } else if bytes.contains(&Byte::Queued) {
            MarkState::Queued
        } else if bytes.iter().all(|byte| *byte == Byte::Copied) {
            MarkState::Copied
        } else {
            MarkState::Issued
        }
    }
}

fn out_of(piece: &Piece, direction: Direction) -> usize {
    let is_of = piece.class().direction() == direction;
    if is_of { usize::try_from(piece.bytes()).unwrap() } else { 0 }
}

struct Model {
    queue: TransferQueue,
    device: OwnerId,
    transfers: Vec<Modelled>,
    pieces: Vec<(usize, Piece)>,
    num_pieces: usize,
    passed: u64,
    now: u64,
    health: DeviceHealth,
    attached: [bool; REGIONS as usize],
    done: Vec<TransferCompletion>,
    released: Vec<Ticket>,
}

impl Model {
    fn new() -> Self {
        let options = QueueOptions {
            inflight_max: INFLIGHT_MAX,
            window_bytes: WINDOW,
            quantum_bytes: QUANTUM,
            piece_ops_max: OPS_MAX,
            ..QueueOptions::new(SLOTS, 200)
        };
        let mut queue = TransferQueue::new(options);
        for region in 0..REGIONS {
            assert_eq!(queue.add_region(200), RegionId(region));
        }
        Self {
            queue,
            device: OwnerId::unique(),
            transfers: Vec::new(),
            pieces: Vec::new(),
            num_pieces: 0,
            passed: 0,
            now: 0,
            health: DeviceHealth::Healthy,
            attached: [true; REGIONS as usize],
            done: Vec::new(),
            released: Vec::new(),
        }
    }

    /// Fences come in three kinds: the device waits for every third itself.
    fn state(passed: u64, fence: Fence) -> FenceState {
        match fence.sequence() {
            n if n < passed => FenceState::Passed,
            n if n % 3 == 0 => FenceState::OnDevice,
            _ => FenceState::NotYet,
        }
    }

    fn run(&mut self, op: Op) {
        match op {
            Op::Submit { class, lengths, marks, deadline, place } => {
                self.submit(class, &lengths, marks, deadline, place);
            }
            Op::Pass => self.passed += 1,
            Op::Next { load } => self.next(if load { Direction::Load } else { Direction::Store }),
            Op::End { nth, refused } => self.end(nth, refused),
            Op::Tick { ms } => self.tick(ms),
            Op::Take => self.take(),
            Op::Detach { region } => self.detach(RegionId(region)),
            Op::ShutDown => {
                if self.health == DeviceHealth::Healthy {
                    self.health = DeviceHealth::ShutDown;
                    self.fail(|transfer| !transfer.has_begun(), |_| TransferFailure::ShutDown);
                }
                self.queue.shut_down(ms(self.now));
            }
            Op::Die => {
                if !matches!(self.health, DeviceHealth::Dead { .. }) {
                    self.health = DeviceHealth::Dead { code: 9 };
                    self.fail(|_| true, |_| TransferFailure::Device { code: 9 });
                }
                self.queue.die(9, ms(self.now));
            }
        }
        self.check();
    }

    fn submit(&mut self, class: usize, lengths: &[u64], marks: Vec<u32>, deadline: Option<u64>, place: u32) {
        let mut end = 0;
        let op = |bytes: &u64| {
            end += bytes;
            let (region, slot, start) = (RegionId(place % REGIONS), SlotId(place / REGIONS), end - bytes);
            CopyOp { region, device_offset: start, slot, slot_offset: start, bytes: *bytes }
        };
        let ops: Vec<CopyOp> = lengths.iter().map(op).collect();
        let num_transfers = self.transfers.len() as u64;
        let transfer = Transfer {
            class: TransferClass::ALL[class],
            ops,
            marks,
            after: Fence::new(self.device, num_transfers),
            deadline: deadline.map(ms),
        };
        let open = self.transfers.iter().filter(|transfer| !transfer.reported).count();
        let expected = if self.health != DeviceHealth::Healthy {
            Some(SubmitErrorReason::Unhealthy(self.health))
        } else if open + self.done.len() >= INFLIGHT_MAX {
            Some(SubmitErrorReason::Full { inflight: open + self.done.len(), inflight_max: INFLIGHT_MAX })
        } else if !self.attached[(place % REGIONS) as usize] {
            Some(SubmitErrorReason::UnknownRegion { index: 0 })
        } else {
            None
        };
        match (self.queue.submit(transfer.clone(), ms(self.now)), expected) {
            (Ok(ticket), None) => {
                let op_of: Vec<usize> =
                    lengths.iter().enumerate().flat_map(|(op, len)| (0..*len).map(move |_| op)).collect();
                let bytes = vec![Byte::Queued; op_of.len()];
                self.transfers.push(Modelled {
                    ticket,
                    transfer,
                    submitted: self.now,
                    bytes,
                    op_of,
                    refused: false,
                    reported: false,
                    gone: false,
                });
            }
            (Err(error), Some(reason)) => assert_eq!((error.reason, error.transfer), (reason, transfer)),
            (result, expected) => panic!("{result:?}, but the model says {expected:?}"),
        }
    }

    /// The transfer that is next in a direction.
    fn expected_next(&self, direction: Direction) -> Option<usize> {
        let wanted = |transfer: &&Modelled| {
            !transfer.reported && !transfer.refused && transfer.first_queued().is_some()
        };
        let of = |class: TransferClass| {
            let head =
                self.transfers.iter().filter(wanted).find(|transfer| transfer.transfer.class == class)?;
            let waits = Self::state(self.passed, head.transfer.after) == FenceState::NotYet;
            (head.has_begun() || !waits).then_some(head)
        };
        let mut classes = TransferClass::ALL.into_iter().filter(|class| class.direction() == direction);
        let head = classes.find_map(of)?;
        let out: usize = self.pieces.iter().map(|(_, piece)| out_of(piece, direction)).sum();
        let fits = out == 0 || (out + head.next_len()) as u64 <= WINDOW;
        fits.then(|| self.transfers.iter().position(|transfer| transfer.ticket == head.ticket).unwrap())
    }

    fn next(&mut self, direction: Direction) {
        let expected = self.expected_next(direction);
        let passed = self.passed;
        let piece = self.queue.next_piece(direction, |fence, _| Self::state(passed, fence));
        assert_eq!(
            piece.as_ref().map(Piece::ticket),
            expected.map(|index| self.transfers[index].ticket),
            "what is next"
        );
        let (Some(piece), Some(index)) = (piece, expected) else { return };
        let number = self.num_pieces;
        self.num_pieces += 1;
        let transfer = &mut self.transfers[index];
        let waits =
            !transfer.has_begun() && Self::state(passed, transfer.transfer.after) != FenceState::Passed;
        assert_eq!(piece.wait_for(), waits.then_some(transfer.transfer.after));
        let marks = 0..u32::try_from(transfer.transfer.marks.len()).unwrap();
        let queued = |transfer: &Modelled| {
            marks.clone().filter(|mark| transfer.mark(*mark) == MarkState::Queued).collect::<Vec<u32>>()
        };
        let mut newly_issued = queued(transfer);
        let start = transfer.first_queued().unwrap();
        let len = transfer.next_len();
        assert_eq!(piece.bytes(), len as u64);
        let mut ops = Vec::new();
        self.queue.copies(&piece, &mut ops);
        let copied: Vec<u64> =
            ops.iter().flat_map(|op| op.device_offset..op.device_offset + op.bytes).collect();
        assert_eq!(copied, (start as u64..(start + len) as u64).collect::<Vec<_>>());
        transfer.bytes[start..start + len].fill(Byte::Out(number));
        let still_queued = queued(transfer);
        newly_issued.retain(|mark| !still_queued.contains(mark));
        assert_eq!(piece.marks().collect::<Vec<u32>>(), newly_issued);
        self.pieces.push((number, piece));
    }

    fn end(&mut self, nth: usize, refused: bool) {
        if self.pieces.is_empty() {
            return;
        }
        let (number, piece) = self.pieces.swap_remove(nth % self.pieces.len());
        let ticket = piece.ticket();
        let transfer = self.transfers.iter_mut().find(|transfer| transfer.ticket == ticket).unwrap();
        let wanted = !transfer.reported && !transfer.refused;
        assert_eq!(self.queue.is_wanted(&piece), wanted);
        for byte in transfer.bytes.iter_mut().filter(|byte| **byte == Byte::Out(number)) {
            *byte = Byte::Copied;
        }
        transfer.refused |= refused;
        if !transfer.is_out() {
            if transfer.reported {
                transfer.gone = true;
                self.released.push(ticket);
            } else if transfer.refused || transfer.first_queued().is_none() {
                transfer.reported = true;
                transfer.gone = true;
                let bytes = transfer.bytes.len() as u64;
                let result =
                    if transfer.refused { Err(TransferFailure::Refused { code: 3 }) } else { Ok(bytes) };
                self.done.push(ended(ticket, result));
            }
        }
        let result = if refused { Err(TransferFailure::Refused { code: 3 }) } else { Ok(()) };
        self.queue.end(piece, result, ms(self.now));
    }

    fn tick(&mut self, by: u64) {
        self.now += by;
        let now = self.now;
        let late = |transfer: &Modelled| {
            transfer.transfer.deadline.is_some_and(|after| ms(transfer.submitted) + after <= ms(now))
        };
        self.fail(late, |transfer| TransferFailure::TimedOut { after: transfer.transfer.deadline.unwrap() });
        self.queue.on_time(ms(now));
    }

    fn fail(&mut self, which: impl Fn(&Modelled) -> bool, failure: impl Fn(&Modelled) -> TransferFailure) {
        for transfer in self.transfers.iter_mut().filter(|transfer| !transfer.reported && which(transfer)) {
            let refused = TransferFailure::Refused { code: 3 };
            let failure = if transfer.refused { refused } else { failure(transfer) };
            let is_out = transfer.is_out();
            transfer.reported = true;
            transfer.gone = !is_out;
            self.done.push(TransferCompletion {
                ticket: transfer.ticket,
                result: Err(failure),
                held: is_out,
            });
        }
    }

    fn take(&mut self) {
        assert_eq!(done(&mut self.queue), std::mem::take(&mut self.done));
        assert_eq!(released(&mut self.queue), std::mem::take(&mut self.released));
    }

    fn users(&self, names: impl Fn(&CopyOp) -> bool) -> usize {
        let present = self.transfers.iter().filter(|transfer| !transfer.gone);
        present.filter(|transfer| transfer.transfer.ops.iter().any(&names)).count()
    }

    fn detach(&mut self, region: RegionId) {
        let attached = &self.attached[region.0 as usize];
        let expected = match self.users(|op| op.region == region) {
            _ if !attached => Err(AttachError::UnknownRegion { region }),
            0 => Ok(()),
            inflight => Err(AttachError::InUse { region, inflight }),
        };
        assert_eq!(self.queue.remove_region(region), expected);
        self.attached[region.0 as usize] &= expected.is_err();
    }

    fn check(&self) {
        let open = self.transfers.iter().filter(|transfer| !transfer.reported).count();
        let held = self.transfers.iter().filter(|transfer| transfer.reported && !transfer.gone).count();
        assert_eq!((self.queue.num_open(), self.queue.num_held()), (open, held));
        assert_eq!(self.queue.inflight(), open + self.done.len());
        assert_eq!(self.queue.health(), self.health);
        assert_eq!(self.queue.has_done(), !self.done.is_empty());
        for slot in (0..SLOTS).map(SlotId) {
            assert_eq!(self.queue.slot_users(slot), self.users(|op| op.slot == slot));
        }
        for transfer in &self.transfers {
            for mark in 0..u32::try_from(transfer.transfer.marks.len()).unwrap() {
                assert_eq!(self.queue.mark(transfer.ticket, mark), Ok(transfer.mark(mark)), "mark {mark}");
            }
        }
    }

    /// Lets everything end: then nothing is open or held, and each ticket was reported once.
    fn finish(mut self) {
        self.passed = u64::MAX;
        loop {
            let before = self.num_pieces;
            self.run(Op::Next { load: true });
            self.run(Op::Next { load: false });
            if self.pieces.is_empty() && self.num_pieces == before {
                break;
            }
            self.run(Op::End { nth: 0, refused: false });
        }
        self.run(Op::Take);
        assert_eq!((self.queue.num_open(), self.queue.num_held()), (0, 0));
        assert!(self.transfers.iter().all(|transfer| transfer.reported && transfer.gone));
        let on_device = [Direction::Store, Direction::Load].map(|side| self.queue.on_device_bytes(side));
        assert_eq!(on_device, [0, 0]);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    /// `PROPTEST_RNG_SEED` replays a run; a failure prints the smallest list of operations.
    #[test]
    fn the_queue_does_what_a_model_of_single_bytes_does(ops in prop::collection::vec(any_op(), 1..150)) {
        let mut model = Model::new();
        for op in ops {
            model.run(op);
        }
        model.finish();
    }
}
