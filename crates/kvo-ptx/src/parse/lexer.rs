//! From text to tokens.

use crate::{ParseError, Reason};

/// A token and its line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Token<'a> {
    pub(super) text: &'a str,
    pub(super) line: u32,
}

/// The tokens of a text, without its comments. Names, directives, instructions with their modifiers and numbers are one
/// token each; a string is one with its quotes; all else is one character.
pub(super) fn tokens(text: &str) -> Result<Vec<Token<'_>>, ParseError> {
    let mut tokens = Vec::new();
    let mut line = 1;
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let length = match first {
            c if c.is_whitespace() => c.len_utf8(),
            '/' if rest.starts_with("//") => rest.find('\n').unwrap_or(rest.len()),
            '/' if rest.starts_with("/*") => closed(&rest[2..], "*/", line, "*/")? + 2,
            '"' => closed(&rest[1..], "\"", line, "a closing quote")? + 1,
            _ if word_length(rest) > 0 => word_length(rest),
            c => c.len_utf8(),
        };
        let (text, behind) = rest.split_at(length);
        let is_comment = text.starts_with("//") || text.starts_with("/*");
        if !first.is_whitespace() && !is_comment {
            tokens.push(Token { text, line });
        }
        line += u32::try_from(text.matches('\n').count()).unwrap_or(u32::MAX);
        rest = behind;
    }
    Ok(tokens)
}

/// Where `text` goes on behind `end`.
fn closed(text: &str, end: &str, line: u32, wanted: &'static str) -> Result<usize, ParseError> {
    match text.find(end) {
        Some(at) => Ok(at + end.len()),
        None => Err(ParseError { line, reason: Reason::Unexpected { found: String::new(), wanted } }),
    }
}

/// The length of the name, directive, instruction or number that `text` begins with. `L1::no_allocate` is part of one.
fn word_length(text: &str) -> usize {
    let bytes = text.as_bytes();
    let mut length = 0;
    while let Some(&byte) = bytes.get(length) {
        if byte.is_ascii_alphanumeric() || b"_$%.".contains(&byte) {
            length += 1;
        } else if length > 0 && bytes[length..].starts_with(b"::") {
            length += 2;
        } else {
            break;
        }
    }
    length
}
