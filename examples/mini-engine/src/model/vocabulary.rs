//! Text to tokens and back, for vocabularies of byte pairs.

use std::collections::HashMap;

use super::{
    GgufError,
    gguf::{Gguf, Value},
};

/// A vocabulary of byte pairs, as GPT-2's: tokens are made of bytes, which are written as one printable character each.
#[derive(Clone, Debug)]
pub struct Vocabulary {
    words: Vec<Vec<u8>>,
    numbers: HashMap<Vec<u8>, u32>,
    /// Pairs that are joined, the first ones before others.
    ranks: HashMap<(Vec<u8>, Vec<u8>), usize>,
    end: Option<u32>,
}

impl Vocabulary {
    /// That of a file, if it has one of byte pairs.
    pub(super) fn of(file: &Gguf<'_>) -> Result<Option<Self>, GgufError> {
        if !matches!(file.get("tokenizer.ggml.model"), Some(Value::Text(name)) if name == "gpt2") {
            return Ok(None);
        }
        let alphabet = alphabet();
        let bytes = |word: &str| -> Vec<u8> {
            let mut utf8 = [0; 4];
            let of_char = |c: char| match alphabet.get(&c) {
                Some(byte) => vec![*byte],
                None => c.encode_utf8(&mut utf8).as_bytes().to_vec(),
            };
            word.chars().flat_map(of_char).collect()
        };
        let words: Vec<Vec<u8>> = file.texts("tokenizer.ggml.tokens")?.into_iter().map(bytes).collect();
        let merges = file.texts("tokenizer.ggml.merges")?;
        let pairs = merges.iter().filter_map(|merge| merge.split_once(' '));
        let ranks = pairs.map(|(left, right)| (bytes(left), bytes(right))).zip(0..).collect();
        let numbers = words.iter().cloned().zip(0..).collect();
        let end = file.number("tokenizer.ggml.eos_token_id").ok();
        let end = end.and_then(|end| u32::try_from(end).ok());
        Ok(Some(Self { words, numbers, ranks, end }))
    }

    /// Tokens there are.
    pub(super) fn len(&self) -> usize {
        self.words.len()
    }

    /// The token that ends an answer.
    pub fn end(&self) -> Option<u32> {
        self.end
    }

    /// The tokens of a text. Words are cut at spaces, digits and changes between letters and others, which is what
    /// vocabularies of this kind were made with but for details; a byte that is no token is left out.
    pub fn tokens(&self, text: &str) -> Vec<u32> {
        words(text).into_iter().flat_map(|word| self.tokens_of_word(word.as_bytes())).collect()
    }

    /// Joins neighbours, the pair of the lowest rank first, until none is known.
    fn tokens_of_word(&self, word: &[u8]) -> Vec<u32> {
        let mut parts: Vec<Vec<u8>> = word.iter().map(|&byte| vec![byte]).collect();
        loop {
            let rank = |pair: &[Vec<u8>]| self.ranks.get(&(pair[0].clone(), pair[1].clone())).copied();
            let ranked = parts.windows(2).enumerate().filter_map(|(nth, pair)| Some((rank(pair)?, nth)));
            let Some((_, nth)) = ranked.min() else { break };
            let right = parts.remove(nth + 1);
            parts[nth].extend(right);
        }
        parts.iter().filter_map(|part| self.numbers.get(part).copied()).collect()
    }

    /// The text of tokens. Bytes that are no UTF-8 are replaced.
    pub fn text(&self, tokens: &[u32]) -> String {
        let bytes: Vec<u8> =
            tokens.iter().filter_map(|&token| self.words.get(token as usize)).flatten().copied().collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

/// Cuts a text: letters with the space before them, digits one by one, runs of others with the space before them, and
/// spaces.
fn words(text: &str) -> Vec<&str> {
    #[derive(PartialEq)]
    enum Kind {
        Letter,
        Digit,
        Space,
        Other,
    }
    let kind = |c: char| match c {
        _ if c.is_alphabetic() => Kind::Letter,
        _ if c.is_numeric() => Kind::Digit,
        _ if c.is_whitespace() => Kind::Space,
        _ => Kind::Other,
    };
    let mut words = Vec::new();
    let (mut start, mut last) = (0, None);
    for (at, c) in text.char_indices() {
        let now = kind(c);
        let joins = match &last {
            Some(Kind::Digit) => false,
            Some(Kind::Space) => {
                // One space goes with the word behind it.
                let is_word = matches!(now, Kind::Letter | Kind::Other);
                if is_word && text[start..at].len() > 1 && text[..at].ends_with(' ') {
                    words.push(&text[start..at - 1]);
                    start = at - 1;
                }
                now == Kind::Space || is_word && &text[start..at] == " "
            }
            Some(last) => *last == now,
            None => true,
        };
        if !joins {
            words.push(&text[start..at]);
            start = at;
        }
        last = Some(now);
    }
    if start < text.len() {
        words.push(&text[start..]);
    }
    words
}

/// Which character stands for which byte: printable ones for themselves, others for those from 256 on in their order.
fn alphabet() -> HashMap<char, u8> {
    let mut next = 256;
    let of_byte = |byte: u8| {
        let printable = matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
        let c = if printable {
            char::from(byte)
        } else {
            next += 1;
            char::from_u32(next - 1).expect("there are characters from 256 to 324")
        };
        (c, byte)
    };
    (0..=255).map(of_byte).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_cut_into_words() {
        let cut = |text| words(text).join("|");
        assert_eq!(cut("The cat, 42 years"), "The| cat|,| |4|2| years");
        assert_eq!(cut("a  b\n\nc"), "a| | b|\n\n|c");
        assert_eq!(cut(" x"), " x");
        assert_eq!(cut(""), "");
        for text in ["  ", "1 2", "né  (ok)\t!", "\n a"] {
            assert_eq!(words(text).concat(), text);
        }
    }

    #[test]
    fn each_byte_has_a_character_of_its_own() {
        let alphabet = alphabet();
        assert_eq!(alphabet.len(), 256);
        assert_eq!((alphabet[&'a'], alphabet[&'Ġ'], alphabet[&'Ċ']), (b'a', b' ', b'\n'));
    }

    #[test]
    fn pairs_are_joined_in_their_order() {
        let words: Vec<Vec<u8>> =
            ["a", "b", "c", "ab", "bc", "abc"].map(|word| word.as_bytes().to_vec()).into();
        let numbers = words.iter().cloned().zip(0..).collect();
        let pair = |left: &str, right: &str| (left.as_bytes().to_vec(), right.as_bytes().to_vec());
        let ranks = [(pair("b", "c"), 0), (pair("a", "b"), 1), (pair("a", "bc"), 2)].into();
        let vocabulary = Vocabulary { words, numbers, ranks, end: None };
        assert_eq!(vocabulary.tokens("abc"), [5]);
        assert_eq!(vocabulary.tokens("abab"), [3, 3]);
        assert_eq!(vocabulary.tokens("cab"), [2, 3]);
        assert_eq!(vocabulary.text(&[5, 1, 99]), "abcb");
    }
}
