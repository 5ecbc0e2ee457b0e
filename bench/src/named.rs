//! Tells the first mention of a block in a request from repeats.

/// Prefix-chained traces name a block once in a request, but a file may hold anything.
#[derive(Debug)]
pub(crate) struct Named {
    /// Of each block, the request that named it last, counted from 1.
    last: Vec<u32>,
    request: u32,
}

impl Named {
    /// For blocks below `num_unique`.
    pub(crate) fn new(num_unique: u32) -> Self {
        Self { last: vec![0; num_unique as usize], request: 0 }
    }

    /// Begins another request.
    pub(crate) fn begin(&mut self) {
        self.request += 1;
    }

    /// Names a block: whether for the first time in this request.
    pub(crate) fn is_first(&mut self, block: u32) -> bool {
        std::mem::replace(&mut self.last[block as usize], self.request) != self.request
    }

    /// Whether this request has named the block.
    pub(crate) fn contains(&self, block: u32) -> bool {
        self.last[block as usize] == self.request
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_request_names_a_block_for_the_first_time_once() {
        let mut named = Named::new(3);
        for _ in 0..2 {
            named.begin();
            assert_eq!([2, 0, 2, 2].map(|block| named.is_first(block)), [true, true, false, false]);
            assert_eq!([0, 1, 2].map(|block| named.contains(block)), [true, false, true]);
        }
    }
}
