//! What a child has said, and what must therefore be in the store.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    time::Duration,
};

use super::OwedFrom;
use crate::rig::Found;

pub(super) struct Books {
    owed_from: OwedFrom,
    /// The first chunk that nobody has begun to write.
    pub(super) next: u64,
    /// Chunks that have survived a kill.
    old: BTreeSet<u64>,
    /// Chunks of this round.
    new: BTreeMap<u64, New>,
    /// Chunks that may have been evicted without a word, because the child was killed before it could say so.
    untold: usize,
    owed: usize,
    /// Those of them that were written in the same round.
    owed_new: usize,
    evicted: usize,
    /// The most chunks that one kill has cost, and the longest that one of them had been there.
    lost_max: usize,
    lost_age_max: Duration,
}

struct New {
    came_at: Duration,
    is_owed: bool,
}

impl Books {
    pub(super) fn new(owed_from: OwedFrom) -> Self {
        Self {
            owed_from,
            next: 0,
            old: BTreeSet::new(),
            new: BTreeMap::new(),
            untold: 0,
            owed: 0,
            owed_new: 0,
            evicted: 0,
            lost_max: 0,
            lost_age_max: Duration::ZERO,
        }
    }

    /// Takes in what the child of a round has said.
    pub(super) fn take_in(&mut self, said: &str) {
        self.new.clear();
        self.untold = 0;
        // The last line may be half a line.
        let (whole, _) = said.rsplit_once('\n').unwrap_or_default();
        for line in whole.lines() {
            let words: Vec<_> = line.split(' ').collect();
            let number = |at: usize| words[at].parse::<u64>().unwrap();
            match words[0] {
                // A job evicts no more chunks than it has.
                "begin" => {
                    self.untold = usize::try_from(number(1)).unwrap();
                    self.next = number(2);
                }
                "begun" => self.untold = 0,
                "stored" => {
                    let came_at = Duration::from_micros(number(2));
                    let is_owed = self.owed_from == OwedFrom::Start;
                    self.new.insert(number(1), New { came_at, is_owed });
                }
                "written" => self.new.get_mut(&number(1)).expect("it is there").is_owed = true,
                "gone" => {
                    self.evicted += 1;
                    self.old.remove(&number(1));
                    self.new.remove(&number(1));
                }
                // What the harness says, and that all is written.
                _ => {}
            }
        }
    }

    /// Whatever is owed must have been found.
    #[track_caller]
    pub(super) fn compare(&mut self, found: &Found, killed_at: Duration) {
        let hits: BTreeSet<u64> = found.hits.iter().copied().collect();
        let owed_new = self.new.iter().filter(|(_, new)| new.is_owed).map(|(n, _)| *n);
        let owed: BTreeSet<u64> = owed_new.chain(self.old.iter().copied()).collect();
        let missing: Vec<_> = owed.difference(&hits).collect();
        assert!(missing.len() <= self.untold, "{} may be gone, missing are {missing:?}", self.untold);
        self.owed += owed.len();
        self.owed_new += owed.difference(&self.old).count();
        let lost: Vec<_> = self
            .new
            .iter()
            .filter(|(n, new)| !new.is_owed && !hits.contains(n))
            .map(|(_, new)| new.came_at)
            .collect();
        self.lost_max = self.lost_max.max(lost.len());
        let ages = lost.into_iter().map(|came_at| killed_at.saturating_sub(came_at));
        self.lost_age_max = self.lost_age_max.max(ages.max().unwrap_or_default());
        self.old = hits;
    }

    #[track_caller]
    pub(super) fn assert_enough(&self) {
        assert!(
            self.owed_new > 100 && self.owed > 1000,
            "so few chunks that were owed prove nothing: {self}"
        );
        assert!(self.evicted > 0, "nothing was evicted");
    }
}

impl fmt::Display for Books {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { next, owed, owed_new, evicted, lost_max, lost_age_max, .. } = self;
        write!(
            f,
            "{next} chunks written, {owed} owed and there ({owed_new} of the same round), {evicted} evicted; \
             a kill cost {lost_max} that were not owed yet, {lost_age_max:?} old, at the most"
        )
    }
}
