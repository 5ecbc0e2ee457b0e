//! Dense numbers for blocks, by first appearance.

use std::collections::HashMap;

/// Numbers the ids of a file from 0 up, in the order in which they first appear.
#[derive(Debug, Default)]
pub(super) struct Numbering {
    numbers: HashMap<u64, u32>,
}

impl Numbering {
    /// The number of `id`; `None` if there are more ids than numbers.
    pub(super) fn number(&mut self, id: u64) -> Option<u32> {
        let next = u32::try_from(self.numbers.len()).ok()?;
        Some(*self.numbers.entry(id).or_insert(next))
    }

    /// How many ids have a number.
    pub(super) fn len(&self) -> u32 {
        u32::try_from(self.numbers.len()).unwrap_or(u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_numbered_by_first_appearance() {
        let mut numbering = Numbering::default();
        let numbers: Vec<_> = [u64::MAX, 7, u64::MAX, 0].map(|id| numbering.number(id)).into();
        assert_eq!(numbers, [Some(0), Some(1), Some(0), Some(2)]);
        assert_eq!(numbering.len(), 3);
    }
}
