//! Reads GGUF files, versions 2 and 3: what is said of a model, and its tensors as f32.
//!
//! A file is not trusted: every length is held to the bytes that are there, and nothing is made that a file only
//! claims to have.

use std::collections::HashMap;

use super::GgufError;

mod numbers;
#[cfg(test)]
pub(super) mod tests;

/// Elements of a list, entries of a file, and dimensions of a tensor, at most.
const LIST_MAX: u64 = 1 << 22;
const ENTRIES_MAX: u64 = 1 << 16;
const DIMENSIONS_MAX: u32 = 4;
/// Lists in lists.
const DEPTH_MAX: u32 = 2;
/// Where tensors begin, unless the file says otherwise.
const ALIGNMENT: u64 = 32;

/// Something that is said of a model.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    Unsigned(u64),
    Signed(i64),
    Float(f64),
    Bool(bool),
    Text(String),
    List(Vec<Value>),
}

/// A tensor in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Tensor {
    /// The fastest one first.
    dimensions: Vec<u64>,
    kind: u32,
    /// From the start of the data on.
    offset: u64,
}

/// A file that has been read.
#[derive(Debug)]
pub(super) struct Gguf<'a> {
    said: HashMap<String, Value>,
    tensors: HashMap<String, Tensor>,
    data: &'a [u8],
}

impl<'a> Gguf<'a> {
    /// Reads everything but the tensors' numbers.
    ///
    /// # Errors
    /// [`GgufError`] says where the file is not what it should be.
    pub(super) fn parse(bytes: &'a [u8]) -> Result<Self, GgufError> {
        let mut cursor = Cursor { bytes, at: 0 };
        if cursor.take(4).ok() != Some(b"GGUF") {
            return Err(GgufError::NotGguf);
        }
        let version = cursor.u32()?;
        if !(2..=3).contains(&version) {
            return Err(GgufError::Version { version });
        }
        let num_tensors = cursor.count("tensors", ENTRIES_MAX)?;
        let num_said = cursor.count("entries", ENTRIES_MAX)?;
        let mut said = HashMap::new();
        for _ in 0..num_said {
            let key = cursor.text()?;
            let kind = cursor.u32()?;
            said.insert(key, cursor.value(kind, 0)?);
        }
        let mut tensors = HashMap::new();
        for _ in 0..num_tensors {
            tensors.insert(cursor.text()?, cursor.tensor()?);
        }
        let alignment = match said.get("general.alignment") {
            Some(Value::Unsigned(alignment)) if alignment.is_power_of_two() => *alignment,
            Some(_) => return Err(GgufError::Kind { key: "general.alignment".to_owned() }),
            None => ALIGNMENT,
        };
        let start = (cursor.at as u64).next_multiple_of(alignment);
        let data = usize::try_from(start).ok().and_then(|start| bytes.get(start..)).unwrap_or(&[]);
        Ok(Self { said, tensors, data })
    }

    /// What is said of `key`, if anything.
    pub(super) fn get(&self, key: &str) -> Option<&Value> {
        self.said.get(key)
    }

    /// A whole number that is said of `key`, below 2^32.
    ///
    /// # Errors
    /// [`GgufError::Missing`], or [`GgufError::Kind`] if it is something else.
    pub(super) fn number(&self, key: &str) -> Result<usize, GgufError> {
        let value = self.get(key).ok_or_else(|| GgufError::Missing { key: key.to_owned() })?;
        let number = match value {
            Value::Unsigned(number) => u32::try_from(*number).ok(),
            Value::Signed(number) => u32::try_from(*number).ok(),
            _ => None,
        };
        number.map(|number| number as usize).ok_or_else(|| GgufError::Kind { key: key.to_owned() })
    }

    /// A number with a fraction that is said of `key`.
    ///
    /// # Errors
    /// As [`number`](Self::number).
    pub(super) fn float(&self, key: &str) -> Result<f64, GgufError> {
        match self.get(key) {
            Some(Value::Float(number)) if number.is_finite() => Ok(*number),
            Some(_) => Err(GgufError::Kind { key: key.to_owned() }),
            None => Err(GgufError::Missing { key: key.to_owned() }),
        }
    }

    /// The texts of a list.
    ///
    /// # Errors
    /// As [`number`](Self::number).
    pub(super) fn texts(&self, key: &str) -> Result<Vec<&str>, GgufError> {
        let kind = || GgufError::Kind { key: key.to_owned() };
        match self.get(key) {
            Some(Value::List(list)) => list
                .iter()
                .map(|value| if let Value::Text(text) = value { Ok(&**text) } else { Err(kind()) })
                .collect(),
            Some(_) => Err(kind()),
            None => Err(GgufError::Missing { key: key.to_owned() }),
        }
    }

    /// The dimensions of a tensor, the fastest one first, if there is one of that name.
    pub(super) fn dimensions(&self, name: &str) -> Option<&[u64]> {
        self.tensors.get(name).map(|tensor| &*tensor.dimensions)
    }

    /// The numbers of a tensor of that shape, the fastest dimension first.
    ///
    /// # Errors
    /// [`GgufError`] if there is none, if it has another shape or a type that is not read, or reaches beyond the file.
    pub(super) fn tensor(&self, name: &str, dimensions: &[usize]) -> Result<Vec<f32>, GgufError> {
        let name = || name.to_owned();
        let tensor = self.tensors.get(&name()).ok_or_else(|| GgufError::Missing { key: name() })?;
        let expected: Vec<u64> = dimensions.iter().map(|&dimension| dimension as u64).collect();
        if tensor.dimensions != expected {
            return Err(GgufError::Shape { name: name(), found: tensor.dimensions.clone(), expected });
        }
        let format = numbers::Format::of_kind(tensor.kind)
            .ok_or_else(|| GgufError::TensorKind { name: name(), kind: tensor.kind })?;
        let row = expected.first().copied().unwrap_or(1);
        let elements = expected.iter().try_fold(1u64, |all, &dimension| all.checked_mul(dimension));
        let bytes = elements
            .filter(|_| row.is_multiple_of(format.block as u64))
            .and_then(|elements| (elements / format.block as u64).checked_mul(format.block_bytes as u64));
        let end = bytes.and_then(|bytes| tensor.offset.checked_add(bytes));
        let range = usize::try_from(tensor.offset).ok().zip(end.and_then(|end| usize::try_from(end).ok()));
        let data = range.and_then(|(start, end)| self.data.get(start..end));
        let data = data.ok_or_else(|| GgufError::BeyondFile { name: name() })?;
        Ok(format.numbers(data))
    }
}

/// Goes through a file, and never beyond it.
struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], GgufError> {
        let end = self.at.checked_add(len).filter(|end| *end <= self.bytes.len());
        let end = end.ok_or(GgufError::Truncated { at: self.at })?;
        let bytes = &self.bytes[self.at..end];
        self.at = end;
        Ok(bytes)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], GgufError> {
        Ok(self.take(N)?.try_into().expect("so many were taken"))
    }

    fn u32(&mut self) -> Result<u32, GgufError> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    fn u64(&mut self) -> Result<u64, GgufError> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    fn count(&mut self, field: &'static str, max: u64) -> Result<u64, GgufError> {
        let count = self.u64()?;
        if count > max { Err(GgufError::TooMany { field, count, max }) } else { Ok(count) }
    }

    fn text(&mut self) -> Result<String, GgufError> {
        let at = self.at;
        let len = self.u64()?;
        let bytes = self.take(usize::try_from(len).map_err(|_| GgufError::Truncated { at })?)?;
        String::from_utf8(bytes.to_vec()).map_err(|_| GgufError::Text { at })
    }

    fn value(&mut self, kind: u32, depth: u32) -> Result<Value, GgufError> {
        Ok(match kind {
            0 => Value::Unsigned(u8::from_le_bytes(self.array()?).into()),
            1 => Value::Signed(i8::from_le_bytes(self.array()?).into()),
            2 => Value::Unsigned(u16::from_le_bytes(self.array()?).into()),
            3 => Value::Signed(i16::from_le_bytes(self.array()?).into()),
            4 => Value::Unsigned(self.u32()?.into()),
            5 => Value::Signed(i32::from_le_bytes(self.array()?).into()),
            6 => Value::Float(f32::from_le_bytes(self.array()?).into()),
            7 => Value::Bool(self.array::<1>()? != [0]),
            8 => Value::Text(self.text()?),
            9 if depth < DEPTH_MAX => {
                let (kind, count) = (self.u32()?, self.count("elements", LIST_MAX)?);
                // Grown as elements come, each of which takes bytes of the file.
                let mut list = Vec::new();
                for _ in 0..count {
                    list.push(self.value(kind, depth + 1)?);
                }
                Value::List(list)
            }
            10 => Value::Unsigned(self.u64()?),
            11 => Value::Signed(i64::from_le_bytes(self.array()?)),
            12 => Value::Float(f64::from_le_bytes(self.array()?)),
            _ => return Err(GgufError::ValueKind { at: self.at, kind }),
        })
    }

    fn tensor(&mut self) -> Result<Tensor, GgufError> {
        let count = self.u32()?;
        if count > DIMENSIONS_MAX {
            let max = DIMENSIONS_MAX.into();
            return Err(GgufError::TooMany { field: "dimensions", count: count.into(), max });
        }
        let dimensions = (0..count).map(|_| self.u64()).collect::<Result<_, _>>()?;
        Ok(Tensor { dimensions, kind: self.u32()?, offset: self.u64()? })
    }
}
