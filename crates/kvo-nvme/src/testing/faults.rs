//! What can go wrong, and how often it does under one seed.

use std::collections::VecDeque;

use rustix::io::Errno;

use super::rng::Rng;

/// What can go wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The device fails: `EIO`.
    Device,
    /// `ENOSPC`.
    Full,
    /// `EDQUOT`.
    Quota,
    /// `EROFS`.
    ReadOnly,
    /// `EAGAIN`.
    Again,
    /// `EINTR`.
    Interrupted,
    /// `EINVAL`.
    Invalid,
    /// A call moves a part, to any sector.
    Short,
    /// A call moves nothing.
    Zero,
    /// A write is said to have ended, and nothing was written.
    Lost,
    /// A write is said to have ended, and some sectors are as they were.
    Torn,
    /// A write goes to the place of another slot.
    Misdirected,
    /// A bit of what a read gives is another than on the disk.
    ReadFlip,
    /// A sector of what a read gives is as it was before the last writes.
    Stale,
    /// A bit changes where it lies, between two steps.
    Decay,
    /// A transfer takes many times as long as others.
    Slow,
    /// A transfer never ends.
    Stuck,
    /// A record cannot be written.
    Record,
    /// A sync fails.
    Sync,
    /// An opening or a close is killed.
    CutOff,
}

impl Kind {
    /// All of it.
    pub const ALL: [Self; 20] = [
        Self::Device,
        Self::Full,
        Self::Quota,
        Self::ReadOnly,
        Self::Again,
        Self::Interrupted,
        Self::Invalid,
        Self::Short,
        Self::Zero,
        Self::Lost,
        Self::Torn,
        Self::Misdirected,
        Self::ReadFlip,
        Self::Stale,
        Self::Decay,
        Self::Slow,
        Self::Stuck,
        Self::Record,
        Self::Sync,
        Self::CutOff,
    ];

    /// Whether the disk says that all went well, or says nothing at all.
    fn is_lie(self) -> bool {
        matches!(self, Self::Lost | Self::Torn | Self::Misdirected | Self::Decay)
    }
}

/// How often each thing goes wrong under one seed, and how often it has.
///
/// Each seed has its own few kinds of trouble, so that some seeds have a lot of one kind and none of another: an even
/// mix of everything would hardly ever get far enough into any of them.
#[derive(Clone, Debug)]
pub struct Faults {
    /// Once in so many times; 0 is never.
    one_in: [u64; Kind::ALL.len()],
    struck: [u64; Kind::ALL.len()],
    enabled: bool,
}

impl Faults {
    /// Nothing goes wrong.
    pub fn none() -> Self {
        Self { one_in: [0; Kind::ALL.len()], struck: [0; Kind::ALL.len()], enabled: true }
    }

    /// Each kind once in so many times.
    pub fn of(kinds: &[(Kind, u64)]) -> Self {
        let mut faults = Self::none();
        for &(kind, one_in) in kinds {
            faults.one_in[kind as usize] = one_in;
        }
        faults
    }

    /// A few kinds, which ones and how often is drawn from `seed`.
    pub fn drawn(seed: u64) -> Self {
        Self::draw(&mut Rng::new(seed))
    }

    /// The same without a kind.
    #[must_use]
    pub fn without(mut self, kind: Kind) -> Self {
        self.one_in[kind as usize] = 0;
        self
    }

    /// Whether a kind may happen.
    pub fn has(&self, kind: Kind) -> bool {
        self.one_in[kind as usize] > 0
    }

    pub(crate) fn draw(rng: &mut Rng) -> Self {
        let mut faults = Self::none();
        // A fifth of all seeds has a perfect disk, a quarter one that does not lie.
        let perfect = rng.one_in(5);
        let honest = rng.one_in(4);
        for kind in Kind::ALL {
            if !(perfect || honest && kind.is_lie()) && rng.one_in(3) {
                faults.one_in[kind as usize] = rng.pick(&[4, 15, 40, 120, 400]);
            }
        }
        faults
    }

    /// From now on nothing goes wrong any more.
    pub(crate) fn stop(&mut self) {
        self.enabled = false;
    }

    /// Whether `kind` happens now.
    pub(crate) fn strikes(&mut self, kind: Kind, rng: &mut Rng) -> bool {
        let strikes = self.enabled && rng.one_in(self.one_in[kind as usize]);
        self.struck[kind as usize] += u64::from(strikes);
        strikes
    }

    /// How often each kind has happened.
    pub(crate) fn struck(&self) -> [u64; Kind::ALL.len()] {
        self.struck
    }
}

/// How one call of positional I/O ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    /// After so many bytes, if there are more.
    Short(usize),
    /// With an error of the system.
    Error(Errno),
}

/// What happens to the bytes of a transfer that the disk says nothing about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lie {
    None,
    Lost,
    /// The sectors whose bits are set are not written.
    Torn(u64),
    /// Goes into another slot, so many places further.
    Misdirected(u32),
    ReadFlip(u64),
    Stale(u64),
}

/// How a transfer ends: its calls one after the other, and whole ones after that.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) calls: VecDeque<Call>,
    pub(crate) lie: Lie,
}

impl Plan {
    pub(crate) fn good() -> Self {
        Self { calls: VecDeque::new(), lie: Lie::None }
    }

    #[cfg(test)]
    pub(crate) fn ending(call: Call) -> Self {
        Self { calls: VecDeque::from([call]), lie: Lie::None }
    }

    #[cfg(test)]
    pub(crate) fn lying(lie: Lie) -> Self {
        Self { calls: VecDeque::new(), lie }
    }

    pub(crate) fn draw(faults: &mut Faults, rng: &mut Rng, is_write: bool) -> Self {
        let mut plan = Self::good();
        while plan.calls.len() < 4 && faults.strikes(Kind::Short, rng) {
            plan.calls.push_back(Call::Short(512 * (1 + rng.index(6))));
        }
        for (kind, error) in [(Kind::Interrupted, Errno::INTR), (Kind::Again, Errno::AGAIN)] {
            while plan.calls.len() < 8 && faults.strikes(kind, rng) {
                plan.calls.push_back(Call::Error(error));
            }
        }
        plan.calls.extend(Self::draw_end(faults, rng, is_write));
        plan.lie = Self::draw_lie(faults, rng, is_write);
        plan
    }

    /// What ends the transfer before its last byte.
    fn draw_end(faults: &mut Faults, rng: &mut Rng, is_write: bool) -> Option<Call> {
        let everywhere = [(Kind::Device, Errno::IO), (Kind::Invalid, Errno::INVAL)];
        let writes = [(Kind::Full, Errno::NOSPC), (Kind::Quota, Errno::DQUOT), (Kind::ReadOnly, Errno::ROFS)];
        for (kind, error) in everywhere.into_iter().chain(writes.into_iter().filter(|_| is_write)) {
            if faults.strikes(kind, rng) {
                return Some(Call::Error(error));
            }
        }
        faults.strikes(Kind::Zero, rng).then_some(Call::Short(0))
    }

    fn draw_lie(faults: &mut Faults, rng: &mut Rng, is_write: bool) -> Lie {
        let kinds: &[Kind] = if is_write {
            &[Kind::Lost, Kind::Torn, Kind::Misdirected]
        } else {
            &[Kind::ReadFlip, Kind::Stale]
        };
        let Some(&kind) = kinds.iter().find(|&&kind| faults.strikes(kind, rng)) else { return Lie::None };
        match kind {
            Kind::Lost => Lie::Lost,
            Kind::Torn => Lie::Torn(rng.next() | 1 << rng.below(2)),
            Kind::Misdirected => Lie::Misdirected(1 + u32::try_from(rng.below(64)).expect("small")),
            Kind::ReadFlip => Lie::ReadFlip(rng.next()),
            _ => Lie::Stale(rng.next()),
        }
    }
}
