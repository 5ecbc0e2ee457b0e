//! How much of a tier lies behind missing heads.

use serde::Serialize;

use crate::Trace;

/// A look is taken once in so many requests.
const REQUESTS_PER_SAMPLE: u32 = 200;

/// Resident chunks of which some chunk before them in their prefix is missing: they take room and give no hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Stranded {
    /// How many they are.
    pub chunks: u32,
    /// Of how many resident ones.
    pub resident: u32,
}

impl Stranded {
    /// Their share of the resident chunks, in percent.
    pub fn percent(&self) -> f64 {
        100.0 * f64::from(self.chunks) / f64::from(self.resident.max(1))
    }
}

/// Which blocks of a trace are resident.
#[derive(Debug)]
pub(crate) struct Residency {
    /// Each block, parents before children, and its parent.
    blocks: Vec<(u32, Option<u32>)>,
    is_resident: Vec<bool>,
    /// Of each block, whether it and all before it are resident; only while a sample is taken.
    is_reachable: Vec<bool>,
    requests: u32,
    worst: Option<Stranded>,
}

impl Residency {
    pub(crate) fn new(trace: &Trace) -> Self {
        let mut is_known = vec![false; trace.num_unique as usize];
        let mut blocks = Vec::with_capacity(is_known.len());
        for request in &trace.requests {
            let mut parent = None;
            for &block in &request.blocks {
                if !std::mem::replace(&mut is_known[block as usize], true) {
                    blocks.push((block, parent));
                }
                parent = Some(block);
            }
        }
        let is_resident = vec![false; is_known.len()];
        Self { blocks, is_reachable: is_resident.clone(), is_resident, requests: 0, worst: None }
    }

    pub(crate) fn add(&mut self, blocks: impl Iterator<Item = u32>) {
        blocks.for_each(|block| self.is_resident[block as usize] = true);
    }

    pub(crate) fn remove(&mut self, blocks: impl Iterator<Item = u32>) {
        blocks.for_each(|block| self.is_resident[block as usize] = false);
    }

    /// Takes a sample if it is time for one.
    pub(crate) fn after_request(&mut self) {
        self.requests += 1;
        if self.requests.is_multiple_of(REQUESTS_PER_SAMPLE) {
            let sample = self.sample();
            self.worst =
                self.worst.into_iter().chain([sample]).max_by(|a, b| a.percent().total_cmp(&b.percent()));
        }
    }

    /// The sample with the largest share.
    pub(crate) fn worst(&self) -> Option<Stranded> {
        self.worst
    }

    fn sample(&mut self) -> Stranded {
        let mut sample = Stranded { chunks: 0, resident: 0 };
        for &(block, parent) in &self.blocks {
            let is_resident = self.is_resident[block as usize];
            let is_reachable = is_resident && parent.is_none_or(|parent| self.is_reachable[parent as usize]);
            self.is_reachable[block as usize] = is_reachable;
            sample.resident += u32::from(is_resident);
            sample.chunks += u32::from(is_resident && !is_reachable);
        }
        sample
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TraceRequest;

    #[test]
    fn everything_behind_a_gap_is_stranded() {
        let request = |blocks: &[u32]| TraceRequest { blocks: blocks.to_vec(), ..TraceRequest::default() };
        let requests = vec![request(&[0, 1, 2, 3]), request(&[0, 4]), request(&[5])];
        let trace = Trace { name: "test".to_owned(), block_tokens: 512, requests, num_unique: 6 };
        let mut residency = Residency::new(&trace);
        residency.add(0..6);
        assert_eq!(residency.sample(), Stranded { chunks: 0, resident: 6 });
        residency.remove([1].into_iter());
        assert_eq!(residency.sample(), Stranded { chunks: 2, resident: 5 });
        residency.remove([0].into_iter());
        assert_eq!(residency.sample(), Stranded { chunks: 3, resident: 4 });
        residency.add([0, 1].into_iter());
        assert_eq!(residency.sample(), Stranded { chunks: 0, resident: 6 });
        assert_eq!(residency.worst(), None);
    }
}
