//! The bytes of chunks: a function of each chunk's key, so that what comes back can be compared.

use kvo_core::OffloadKey;

/// Writes the bytes of `key`'s chunk.
///
/// Byte n is byte n mod 8 of the word `mix(hash + n / 8)`, so that any two chunks, and any two places of a chunk,
/// differ almost everywhere.
pub(crate) fn fill(key: &OffloadKey, bytes: &mut [u8]) {
    let (words, rest) = bytes.as_chunks_mut::<8>();
    for (place, word) in words.iter_mut().zip(words_of(key)) {
        *place = word.to_le_bytes();
    }
    let rest_word = words_of(key).nth(words.len()).unwrap_or_default().to_le_bytes();
    rest.copy_from_slice(&rest_word[..rest.len()]);
}

/// Whether `bytes` are what the chunk of `key` must hold.
pub(crate) fn holds(key: &OffloadKey, bytes: &[u8]) -> bool {
    let (words, rest) = bytes.as_chunks::<8>();
    let words_hold = words
        .iter()
        .zip(words_of(key))
        .map(|(found, word)| u64::from_le_bytes(*found) ^ word)
        .fold(0, |a, b| a | b)
        == 0;
    let rest_word = words_of(key).nth(words.len()).unwrap_or_default().to_le_bytes();
    words_hold && rest == &rest_word[..rest.len()]
}

fn words_of(key: &OffloadKey) -> impl Iterator<Item = u64> {
    let seed = key.to_bytes().chunks(8).fold(0, |seed, bytes| {
        let mut word = [0; 8];
        word[..bytes.len()].copy_from_slice(bytes);
        mix(seed ^ u64::from_le_bytes(word))
    });
    (0u64..).map(move |index| mix(seed.wrapping_add(index)))
}

/// Spreads a number over 64 bits; the multiplier is the golden ratio's, as in Fibonacci hashing.
fn mix(value: u64) -> u64 {
    let value = (value ^ value >> 32).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    value ^ value >> 29
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key;

    #[test]
    fn a_chunk_holds_its_own_bytes_and_no_others() {
        for len in [1, 7, 8, 64, 65] {
            let mut bytes = vec![0; len];
            fill(&key(7), &mut bytes);
            assert!(holds(&key(7), &bytes));
            assert!(!holds(&key(8), &bytes));
            for index in 0..len {
                bytes[index] ^= 1;
                assert!(!holds(&key(7), &bytes), "byte {index} of {len} differs");
                bytes[index] ^= 1;
            }
        }
    }

    #[test]
    fn words_differ_within_a_chunk_and_between_chunks() {
        let mut seen = std::collections::HashSet::new();
        for chunk in 0..64 {
            assert!(words_of(&key(chunk)).take(64).all(|word| seen.insert(word)));
        }
    }
}
