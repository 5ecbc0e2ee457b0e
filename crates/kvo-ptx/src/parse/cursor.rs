//! Walks over tokens.

use super::lexer::Token;
use crate::{ParseError, Reason};

/// The tokens that are still to be read.
pub(super) struct Cursor<'a> {
    tokens: Vec<Token<'a>>,
    next: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(tokens: Vec<Token<'a>>) -> Self {
        Self { tokens, next: 0 }
    }

    /// The line of the next token; at the end, of the last one.
    pub(super) fn line(&self) -> u32 {
        self.tokens.get(self.next).or(self.tokens.last()).map_or(1, |token| token.line)
    }

    /// The next token's text; empty at the end.
    pub(super) fn peek(&self) -> &'a str {
        self.peek_at(0)
    }

    /// The text of the `nth` token from here, 0 being the next one; empty behind the end.
    pub(super) fn peek_at(&self, nth: usize) -> &'a str {
        self.tokens.get(self.next + nth).map_or("", |token| token.text)
    }

    pub(super) fn is_at_end(&self) -> bool {
        self.next == self.tokens.len()
    }

    /// Takes the next token; empty at the end.
    pub(super) fn take(&mut self) -> &'a str {
        let text = self.peek();
        self.next = (self.next + 1).min(self.tokens.len());
        text
    }

    /// Takes the next token if it is `text`.
    pub(super) fn take_if(&mut self, text: &str) -> bool {
        let is_there = self.peek() == text && !self.is_at_end();
        if is_there {
            self.next += 1;
        }
        is_there
    }

    /// Takes the next token, which has to be `text`.
    pub(super) fn expect(&mut self, text: &'static str) -> Result<(), ParseError> {
        if self.take_if(text) { Ok(()) } else { Err(self.unexpected(text)) }
    }

    /// Takes a name: of a kernel, parameter, label or register.
    pub(super) fn name(&mut self) -> Result<&'a str, ParseError> {
        let is_name = |c: char| c.is_ascii_alphabetic() || "_$%".contains(c);
        if self.peek().starts_with(is_name) { Ok(self.take()) } else { Err(self.unexpected("a name")) }
    }

    /// Takes an integer, decimal, hexadecimal, octal or binary, which may have a sign; a negative one in two's
    /// complement.
    pub(super) fn integer(&mut self) -> Result<u64, ParseError> {
        let line = self.line();
        let is_negative = self.take_if("-");
        let text = self.take();
        let digits = text.strip_suffix('U').unwrap_or(text);
        let parsed = if let Some(digits) = digits.strip_prefix("0x").or(digits.strip_prefix("0X")) {
            u64::from_str_radix(digits, 16)
        } else if let Some(digits) = digits.strip_prefix("0b").or(digits.strip_prefix("0B")) {
            u64::from_str_radix(digits, 2)
        } else if let Some(digits) = digits.strip_prefix('0').filter(|digits| !digits.is_empty()) {
            u64::from_str_radix(digits, 8)
        } else {
            digits.parse()
        };
        match parsed {
            Ok(value) => Ok(if is_negative { value.wrapping_neg() } else { value }),
            Err(_) => Err(ParseError { line, reason: Reason::NotAnInteger { text: text.to_owned() } }),
        }
    }

    /// Takes all up to the next `;`, and it.
    pub(super) fn skip_statement(&mut self) -> Result<(), ParseError> {
        while !self.take_if(";") {
            if self.is_at_end() {
                return Err(self.unexpected(";"));
            }
            self.take();
        }
        Ok(())
    }

    pub(super) fn error(&self, reason: Reason) -> ParseError {
        ParseError { line: self.line(), reason }
    }

    pub(super) fn unexpected(&self, wanted: &'static str) -> ParseError {
        self.error(Reason::Unexpected { found: self.peek().to_owned(), wanted })
    }
}
