//! Whether pages share a byte.

/// The pages of `count` blocks, evenly spaced: page `n` is `bytes` bytes from `base + n * stride` on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    pub(super) base: u64,
    pub(super) stride: u64,
    pub(super) bytes: u64,
    pub(super) count: u32,
}

impl Row {
    /// Where its last page ends. All rows were found to end within 63 bits.
    pub(super) fn end(&self) -> u64 {
        self.base + u64::from(self.count - 1) * self.stride + self.bytes
    }

    /// Whether page `i` of this row shares a byte with page `j` of the other, for any `i` and `j`; where the same block
    /// may be in both, for any that are not equal.
    pub(super) fn meets(&self, other: &Self, same_block_may: bool) -> bool {
        if self.stride == other.stride && self.count > 1 && other.count > 1 {
            return self.meets_in_step(other, same_block_may);
        }
        if self.count > 1 && other.count > 1 && self.never_near(other) {
            return false;
        }
        let (few, many) = if self.count <= other.count { (self, other) } else { (other, self) };
        (0..few.count).any(|nth| {
            let start = i128::from(few.base) + i128::from(nth) * i128::from(few.stride);
            let first = div_floor(start - i128::from(many.base) - i128::from(many.bytes), many.stride) + 1;
            let last = div_floor(start + i128::from(few.bytes) - i128::from(many.base) - 1, many.stride);
            let (first, last) = (first.max(0), last.min(i128::from(many.count) - 1));
            holds_any_but(first, last, same_block_may.then_some(i128::from(nth)))
        })
    }

    /// As [`meets`](Self::meets) for equal strides: only the distance between the two block numbers matters.
    fn meets_in_step(&self, other: &Self, same_block_may: bool) -> bool {
        let ahead = i128::from(other.base) - i128::from(self.base);
        let first = div_floor(-ahead - i128::from(other.bytes), self.stride) + 1;
        let last = div_floor(i128::from(self.bytes) - ahead - 1, self.stride);
        let (first, last) = (first.max(-(i128::from(self.count) - 1)), last.min(i128::from(other.count) - 1));
        holds_any_but(first, last, same_block_may.then_some(0))
    }

    /// Whether no two pages of these strides come near one another, however many blocks there were.
    fn never_near(&self, other: &Self) -> bool {
        let step = i128::from(gcd(self.stride, other.stride));
        let behind = (i128::from(other.base) - i128::from(self.base)).rem_euclid(step);
        behind >= i128::from(self.bytes) && step - behind >= i128::from(other.bytes)
    }
}

/// Whether there is a number from `first` to `last` other than `but`.
fn holds_any_but(first: i128, last: i128, but: Option<i128>) -> bool {
    let num = (last - first + 1).max(0);
    num > i128::from(but.is_some_and(|but| (first..=last).contains(&but)))
}

fn div_floor(dividend: i128, divisor: u64) -> i128 {
    dividend.div_euclid(i128::from(divisor))
}

fn gcd(mut one: u64, mut other: u64) -> u64 {
    while other > 0 {
        (one, other) = (other, one % other);
    }
    one
}

/// Two of the stretches `(start, bytes, whose)` that share a byte, by whose they are. Sorts them.
pub(super) fn overlap<T: Copy + Ord>(stretches: &mut [(u64, u64, T)]) -> Option<(T, T)> {
    stretches.sort_unstable();
    let pair = stretches.windows(2).find(|pair| pair[0].0 + pair[0].1 > pair[1].0)?;
    Some((pair[0].2.min(pair[1].2), pair[0].2.max(pair[1].2)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares with all pairs of pages, for every distance of two rows.
    #[test]
    fn rows_meet_exactly_if_two_pages_share_a_byte() {
        let shapes =
            [(1, 0, 4), (1, 9, 4), (2, 4, 4), (3, 7, 4), (3, 8, 4), (4, 11, 3), (5, 22, 6), (2, 12, 5)];
        for (count, stride, bytes) in shapes {
            for (other_count, other_stride, other_bytes) in shapes {
                for base in 0..120 {
                    let one = Row { base: 60, stride: stride.max(1), bytes, count };
                    let other =
                        Row { base, stride: other_stride.max(1), bytes: other_bytes, count: other_count };
                    for same_block_may in [false, true] {
                        let shared = (0..count).any(|i| {
                            (0..other_count).any(|j| {
                                let start = one.base + u64::from(i) * one.stride;
                                let other_start = other.base + u64::from(j) * other.stride;
                                !(same_block_may && i == j)
                                    && start < other_start + other_bytes
                                    && other_start < start + bytes
                            })
                        });
                        assert_eq!(one.meets(&other, same_block_may), shared, "{one:?} {other:?}");
                        assert_eq!(other.meets(&one, same_block_may), shared, "{other:?} {one:?}");
                    }
                }
            }
        }
    }
}
