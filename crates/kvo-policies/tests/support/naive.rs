//! The policies once more, as slowly and as plainly as they can be said: lists in vectors, searched from the old end.
//!
//! Requests are numbers here; the model itself remembers what each has drawn.

use std::cmp::Reverse;

use kvo_core::OffloadKey;
use kvo_policies::{AccessKind, KeyAccess};

/// What a resident chunk is, as far as a policy is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Pending,
    Free,
    Pinned,
}

/// A policy of the model.
pub trait Naive {
    fn insert(&mut self, req: usize, key: OffloadKey, end_token: Option<u32>);
    /// A resident key changes its state.
    fn set(&mut self, key: OffloadKey, state: State);
    fn remove(&mut self, key: OffloadKey);
    /// The victims in order, which are then gone; or nothing has changed.
    fn evict(&mut self, count: usize, spared: &[OffloadKey]) -> Option<Vec<OffloadKey>>;
    fn touch(&mut self, keys: &[OffloadKey]);
    fn store_miss(&mut self, keys: &[OffloadKey]);
    fn access(&mut self, req: usize, keys: &[KeyAccess]);
    fn finish(&mut self, keys: &[KeyAccess]);
    /// Everything goes, what requests have drawn included.
    fn clear(&mut self);
    /// Number `req` now means another request.
    fn forget_request(&mut self, req: usize);
    /// The resident keys and their states.
    fn resident(&self) -> Vec<(OffloadKey, State)>;
    /// The keys with a ghost.
    fn ghosts(&self) -> Vec<OffloadKey> {
        Vec::new()
    }
    /// The state of a resident key.
    fn state(&self, key: OffloadKey) -> Option<State> {
        self.resident().into_iter().find(|(of, _)| *of == key).map(|(_, state)| state)
    }
}

/// One row a resident chunk, in no order.
#[derive(Default)]
pub struct NaiveLru {
    rows: Vec<Row>,
    drawn: u64,
    provisional: Vec<(usize, u64)>,
}

#[derive(Clone, Copy)]
struct Row {
    key: OffloadKey,
    state: State,
    draw: u64,
    /// Among rows of one draw the largest goes first.
    end_token: u32,
}

impl NaiveLru {
    fn draw(&mut self) -> u64 {
        self.drawn += 1;
        self.drawn
    }

    fn provisional(&mut self, req: usize) -> u64 {
        if let Some((_, draw)) = self.provisional.iter().find(|(of, _)| *of == req) {
            return *draw;
        }
        let draw = self.draw();
        self.provisional.push((req, draw));
        draw
    }

    fn row(&mut self, key: OffloadKey) -> Option<&mut Row> {
        self.rows.iter_mut().find(|row| row.key == key)
    }

    fn tail_first(&mut self, keys: impl DoubleEndedIterator<Item = OffloadKey>) {
        for key in keys.rev() {
            if self.row(key).is_some() {
                let draw = self.draw();
                let row = self.row(key).unwrap();
                (row.draw, row.end_token) = (draw, 0);
            }
        }
    }
}

impl Naive for NaiveLru {
    fn insert(&mut self, req: usize, key: OffloadKey, end_token: Option<u32>) {
        let draw = if end_token.is_some() { self.provisional(req) } else { self.draw() };
        self.rows.push(Row { key, state: State::Pending, draw, end_token: end_token.unwrap_or(0) });
    }

    fn set(&mut self, key: OffloadKey, state: State) {
        self.row(key).unwrap().state = state;
    }

    fn remove(&mut self, key: OffloadKey) {
        self.rows.retain(|row| row.key != key);
    }

    fn evict(&mut self, count: usize, spared: &[OffloadKey]) -> Option<Vec<OffloadKey>> {
        let mut rows = self.rows.clone();
        let mut victims = Vec::new();
        while victims.len() < count {
            let victim = rows
                .iter()
                .filter(|row| row.state == State::Free && !spared.contains(&row.key))
                .min_by_key(|row| (row.draw, Reverse(row.end_token), row.key.to_bytes()))?
                .key;
            rows.retain(|row| row.key != victim);
            victims.push(victim);
        }
        self.rows = rows;
        Some(victims)
    }

    fn touch(&mut self, keys: &[OffloadKey]) {
        self.tail_first(keys.iter().copied());
    }

    fn store_miss(&mut self, _: &[OffloadKey]) {}

    fn access(&mut self, req: usize, keys: &[KeyAccess]) {
        for KeyAccess { key, end_token, .. } in keys {
            let (Some(end_token), Some(row)) = (*end_token, self.row(*key).copied()) else { continue };
            let draw = self.provisional(req);
            // Raised only: the newer draw, or nearer the head within the same one.
            if draw > row.draw || (draw == row.draw && end_token < row.end_token) {
                let row = self.row(*key).unwrap();
                (row.draw, row.end_token) = (draw, end_token);
            }
        }
    }

    fn finish(&mut self, keys: &[KeyAccess]) {
        self.tail_first(keys.iter().map(|access| access.key));
    }

    fn clear(&mut self) {
        self.rows.clear();
        self.provisional.clear();
    }

    fn forget_request(&mut self, req: usize) {
        self.provisional.retain(|(of, _)| *of != req);
    }

    fn resident(&self) -> Vec<(OffloadKey, State)> {
        self.rows.iter().map(|row| (row.key, row.state)).collect()
    }
}

/// The four lists, each with its old end first.
pub struct NaiveArc {
    pub capacity: usize,
    pub ghosts_enter_t2: bool,
    pub target: f64,
    pub t1: Vec<(OffloadKey, State)>,
    pub t2: Vec<(OffloadKey, State)>,
    pub b1: Vec<OffloadKey>,
    pub b2: Vec<OffloadKey>,
    /// Of the last misses, the keys that had a ghost: they count as such until they are inserted, even if the
    /// eviction that makes room for them trims the ghost.
    missed_ghosts: Vec<OffloadKey>,
}

impl NaiveArc {
    pub fn new(capacity: usize, ghosts_enter_t2: bool) -> Self {
        Self {
            capacity,
            ghosts_enter_t2,
            target: 0.0,
            t1: vec![],
            t2: vec![],
            b1: vec![],
            b2: vec![],
            missed_ghosts: vec![],
        }
    }

    /// Takes a resident key out: its state and whether it was in T1.
    fn take(&mut self, key: OffloadKey) -> Option<(State, bool)> {
        for (list, is_t1) in [(&mut self.t1, true), (&mut self.t2, false)] {
            if let Some(at) = list.iter().position(|(of, _)| *of == key) {
                return Some((list.remove(at).1, is_t1));
            }
        }
        None
    }

    fn adapt(&mut self, key: OffloadKey) {
        let (b1, b2) = (self.b1.len() as f64, self.b2.len() as f64);
        if let Some(at) = self.b1.iter().position(|of| *of == key) {
            self.target += if b2 > b1 { b2 / b1 } else { 1.0 };
            if self.target > self.capacity as f64 {
                self.target = self.capacity as f64;
            }
            self.b1.remove(at);
            self.b1.push(key);
        } else if let Some(at) = self.b2.iter().position(|of| *of == key) {
            self.target -= if b1 > b2 { b1 / b2 } else { 1.0 };
            if self.target < 0.0 {
                self.target = 0.0;
            }
            self.b2.remove(at);
            self.b2.push(key);
        }
    }
}

impl Naive for NaiveArc {
    fn insert(&mut self, _: usize, key: OffloadKey, _: Option<u32>) {
        let had_ghost = self.b1.contains(&key) || self.b2.contains(&key) || self.missed_ghosts.contains(&key);
        self.missed_ghosts.retain(|of| *of != key);
        self.b1.retain(|of| *of != key);
        self.b2.retain(|of| *of != key);
        let list = if had_ghost && self.ghosts_enter_t2 { &mut self.t2 } else { &mut self.t1 };
        list.push((key, State::Pending));
    }

    fn set(&mut self, key: OffloadKey, state: State) {
        self.t1.iter_mut().chain(&mut self.t2).find(|(of, _)| *of == key).unwrap().1 = state;
    }

    fn remove(&mut self, key: OffloadKey) {
        self.take(key);
    }

    fn evict(&mut self, count: usize, spared: &[OffloadKey]) -> Option<Vec<OffloadKey>> {
        let mut victims = Vec::new();
        let mut t1_size = self.t1.len();
        while victims.len() < count {
            let first = |list: &[(OffloadKey, State)]| {
                let mut may_go = list.iter().filter(|(key, state)| {
                    *state == State::Free && !spared.contains(key) && !victims.contains(key)
                });
                may_go.next().map(|(key, _)| *key)
            };
            let (t1_victim, t2_victim) = (first(&self.t1), first(&self.t2));
            let prefers_t1 = t1_size as f64 >= self.target.floor();
            let victim = if prefers_t1 { t1_victim.or(t2_victim) } else { t2_victim.or(t1_victim) }?;
            if Some(victim) == t1_victim {
                t1_size -= 1;
            }
            victims.push(victim);
        }
        for victim in &victims {
            let (_, from_t1) = self.take(*victim).unwrap();
            if from_t1 { &mut self.b1 } else { &mut self.b2 }.push(*victim);
        }
        while self.b1.len() > self.capacity {
            self.b1.remove(0);
        }
        while self.b2.len() > self.capacity {
            self.b2.remove(0);
        }
        Some(victims)
    }

    fn touch(&mut self, keys: &[OffloadKey]) {
        for key in keys.iter().rev() {
            match self.take(*key) {
                Some((State::Pending, true)) => self.t1.push((*key, State::Pending)),
                Some((state, _)) => self.t2.push((*key, state)),
                None => self.adapt(*key),
            }
        }
    }

    fn store_miss(&mut self, keys: &[OffloadKey]) {
        let ghosts = self.ghosts();
        self.missed_ghosts = keys.iter().filter(|key| ghosts.contains(key)).copied().collect();
        for key in keys.iter().rev() {
            self.adapt(*key);
        }
    }

    fn access(&mut self, _: usize, _: &[KeyAccess]) {}

    fn finish(&mut self, keys: &[KeyAccess]) {
        for KeyAccess { key, kind, .. } in keys.iter().rev() {
            let Some((state, was_t1)) = self.take(*key) else { continue };
            let stays = was_t1 && *kind == AccessKind::Inserted;
            if stays { &mut self.t1 } else { &mut self.t2 }.push((*key, state));
        }
    }

    fn clear(&mut self) {
        *self = Self::new(self.capacity, self.ghosts_enter_t2);
    }

    fn forget_request(&mut self, _: usize) {}

    fn resident(&self) -> Vec<(OffloadKey, State)> {
        self.t1.iter().chain(&self.t2).copied().collect()
    }

    fn ghosts(&self) -> Vec<OffloadKey> {
        self.b1.iter().chain(&self.b2).copied().collect()
    }
}
