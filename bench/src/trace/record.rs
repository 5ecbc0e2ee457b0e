//! One line of a trace file.

use serde_json::{Map, Value};

use super::{LineError, read::TimeUnit};

/// A line as it stands, numbers checked one by one.
#[derive(Debug)]
pub(super) struct Record {
    fields: Map<String, Value>,
}

/// The published forms that this crate reads. They differ in what a line says besides the four fields that both
/// have, and in their units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// Mooncake: milliseconds, 512-token blocks.
    Mooncake,
    /// Alibaba's Qwen-Bailian: seconds, 16-token blocks; also a `chat_id`, `parent_chat_id`, `type` and `turn`.
    Bailian,
}

impl Form {
    pub(super) fn block_tokens(self) -> u32 {
        match self {
            Self::Mooncake => 512,
            Self::Bailian => 16,
        }
    }

    pub(super) fn time_unit(self) -> TimeUnit {
        match self {
            Self::Mooncake => TimeUnit::Milliseconds,
            Self::Bailian => TimeUnit::Seconds,
        }
    }
}

impl Record {
    pub(super) fn parse(line: &[u8]) -> Result<Self, LineError> {
        let text = std::str::from_utf8(line)
            .map_err(|error| LineError::NotUtf8 { byte: error.valid_up_to() + 1 })?;
        match serde_json::from_str(text.trim()) {
            Ok(Value::Object(fields)) => Ok(Self { fields }),
            Ok(other) => Err(LineError::NotAnObject { detail: format!("it is {}", described(&other)) }),
            Err(error) => Err(LineError::NotAnObject { detail: without_line(&error) }),
        }
    }

    /// What form a file has whose first line this is.
    pub(super) fn form(&self) -> Form {
        if self.fields.contains_key("chat_id") { Form::Bailian } else { Form::Mooncake }
    }

    /// The timestamp in microseconds, rounded.
    pub(super) fn arrival_us(&self, unit: TimeUnit) -> Result<u64, LineError> {
        let value = self.field("timestamp")?;
        let wrong = || wrong("timestamp", value, "a time of at least 0 that fits 64 bits in microseconds");
        let unit_us = unit.microseconds();
        if let Some(units) = value.as_u64() {
            return units.checked_mul(unit_us).ok_or_else(wrong);
        }
        let us = (value.as_f64().ok_or_else(wrong)? * unit_us as f64).round();
        // 2^64 as a float: the first that does not fit.
        if us.is_sign_negative() || us >= 18_446_744_073_709_551_616.0 {
            return Err(wrong());
        }
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "both were just ruled out"
        )]
        Ok(us as u64)
    }

    /// A number of tokens.
    pub(super) fn tokens(&self, field: &'static str) -> Result<u32, LineError> {
        let value = self.field(field)?;
        value
            .as_u64()
            .and_then(|tokens| u32::try_from(tokens).ok())
            .ok_or_else(|| wrong(field, value, "a whole number of tokens from 0 to 4294967295"))
    }

    /// The ids of the blocks, as the file has them.
    pub(super) fn block_ids(&self) -> Result<Vec<u64>, LineError> {
        let value = self.field("hash_ids")?;
        let ids = value.as_array().ok_or_else(|| wrong("hash_ids", value, "an array of whole numbers"))?;
        let id = |(index, id): (usize, &Value)| {
            id.as_u64().ok_or_else(|| {
                wrong(format!("hash_ids[{index}]"), id, "a whole number from 0 to 18446744073709551615")
            })
        };
        ids.iter().enumerate().map(id).collect()
    }

    fn field(&self, field: &'static str) -> Result<&Value, LineError> {
        self.fields.get(field).ok_or(LineError::Missing { field })
    }
}

fn wrong(field: impl Into<String>, value: &Value, expected: &'static str) -> LineError {
    LineError::Value { field: field.into(), found: described(value), expected }
}

/// A value in a few words.
fn described(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(_) | Value::Number(_) => value.to_string(),
        Value::String(text) if text.chars().count() <= 24 => format!("the string {text:?}"),
        Value::String(_) => "a long string".to_owned(),
        Value::Array(_) => "an array".to_owned(),
        Value::Object(_) => "an object".to_owned(),
    }
}

/// The parser's message; its line is always 1 here, and the real one is named beside it.
fn without_line(error: &serde_json::Error) -> String {
    error.to_string().replace(" at line 1 column ", " at column ")
}
