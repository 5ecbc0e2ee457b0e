//! The pattern that compute writes and checks, as `kernels/engine.cu` makes it.

/// Byte `nth` of pattern `seed`.
pub fn byte(seed: u64, nth: u64) -> u8 {
    word(seed, nth / 8).to_le_bytes()[(nth % 8) as usize]
}

/// The first `bytes` bytes of pattern `seed`.
pub fn pattern(seed: u64, bytes: usize) -> Vec<u8> {
    let mut pattern: Vec<u8> =
        (0..bytes.div_ceil(8) as u64).flat_map(|nth| word(seed, nth).to_le_bytes()).collect();
    pattern.truncate(bytes);
    pattern
}

pub(crate) fn word(seed: u64, nth: u64) -> u64 {
    mix(seed.wrapping_add(nth.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
}

fn mix(mut value: u64) -> u64 {
    const FACTOR: u64 = 0xd6e8_feb8_6659_fd93;
    value ^= value >> 32;
    value = value.wrapping_mul(FACTOR);
    value ^= value >> 32;
    value = value.wrapping_mul(FACTOR);
    value ^ (value >> 32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_is_its_bytes() {
        let bytes: Vec<u8> = (0..21).map(|nth| byte(7, nth)).collect();
        assert_eq!(pattern(7, 21), bytes);
        assert_ne!(pattern(8, 21), bytes);
    }
}
