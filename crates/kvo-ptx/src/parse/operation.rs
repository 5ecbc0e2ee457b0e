//! Reads an instruction: its modifiers, then its operands.

use super::{body::Body, cursor::Cursor, type_of};
use crate::{
    ParseError, Reason,
    instruction::{Access, Binary, Comparison, Operation, Register, SPECIAL, Type},
};

/// Says how caches should treat an access. Memory here has no caches.
const CACHE_HINTS: [&str; 12] = [
    "weak",
    "nc",
    "ca",
    "cg",
    "cs",
    "lu",
    "cv",
    "wb",
    "wt",
    "L1::no_allocate",
    "L1::evict_first",
    "L1::evict_last",
];

/// Reads the operands of the instruction `name`, up to its `;`.
pub(super) fn read<'a>(
    body: &mut Body<'_, 'a>,
    cursor: &mut Cursor<'a>,
    name: &'a str,
    line: u32,
) -> Result<Operation, ParseError> {
    let mut reader = Reader { body, cursor, name, line };
    let (operation, modifiers) = name.split_once('.').unwrap_or((name, ""));
    let modifiers: Vec<&str> = modifiers.split('.').collect();
    match (operation, &modifiers[..]) {
        ("ret" | "exit", [""]) => Ok(Operation::Return),
        ("ld", ["param", kind]) => reader.load_param(kind),
        ("ld", [modifiers @ .., kind]) => reader.load(modifiers, kind),
        ("st", [modifiers @ .., kind]) => reader.store(modifiers, kind),
        ("mov", [kind]) => {
            let kind = if *kind == "pred" { reader.bits(kind) } else { reader.calculated(kind) };
            reader.unary(kind?, |_, to, from| Operation::Move { to, from })
        }
        // All of memory is in one space here.
        ("cvta", ["to", "global", kind @ "u64"] | ["global", kind @ "u64"]) => {
            let kind = reader.numbers(kind)?;
            reader.unary(kind, |_, to, from| Operation::Move { to, from })
        }
        ("not", [kind]) => {
            let kind = reader.bits(kind)?;
            reader.unary(kind, |kind, to, from| Operation::Not { kind, to, from })
        }
        ("neg", [kind @ ("s16" | "s32" | "s64")]) => {
            let kind = reader.numbers(kind)?;
            reader.unary(kind, |kind, to, from| Operation::Negate { kind, to, from })
        }
        ("cvt", [kind, from_kind]) => reader.convert(kind, from_kind),
        ("setp", [comparison, kind]) => reader.compare(comparison, kind),
        ("selp", [kind]) => reader.select(kind),
        ("mul", [part, kind]) => {
            let (product, kind) = (reader.product(part)?, reader.numbers(kind)?);
            reader.binary(product, kind)
        }
        ("mad", [part, kind]) => reader.multiply_add(part, kind),
        ("and" | "or" | "xor" | "shl", [kind]) => {
            let kind = reader.bits(kind)?;
            let operator = operator(operation).filter(|_| operation != "shl" || kind.bytes > 0);
            reader.binary(operator.ok_or_else(|| reader.unknown())?, kind)
        }
        ("shr", [kind]) => {
            let kind = reader.calculated(kind)?;
            reader.binary(Binary::ShiftRight, kind)
        }
        (_, [kind]) => {
            let kind = reader.numbers(kind)?;
            reader.binary(operator(operation).ok_or_else(|| reader.unknown())?, kind)
        }
        _ => Err(reader.unknown()),
    }
}

fn operator(name: &str) -> Option<Binary> {
    Some(match name {
        "add" => Binary::Add,
        "sub" => Binary::Subtract,
        "div" => Binary::Divide,
        "rem" => Binary::Remainder,
        "min" => Binary::Min,
        "max" => Binary::Max,
        "and" => Binary::And,
        "or" => Binary::Or,
        "xor" => Binary::Xor,
        "shl" => Binary::ShiftLeft,
        _ => return None,
    })
}

struct Reader<'r, 'p, 'a> {
    body: &'r mut Body<'p, 'a>,
    cursor: &'r mut Cursor<'a>,
    name: &'a str,
    line: u32,
}

/// How wide a register has to be, in bytes.
#[derive(Clone, Copy)]
enum Width {
    Exactly(u8),
    AtLeast(u8),
}

/// Where an access goes: a register and what is added to it.
struct Address {
    base: Register,
    offset: i64,
}

impl Reader<'_, '_, '_> {
    fn load_param(&mut self, kind: &str) -> Result<Operation, ParseError> {
        let kind = self.type_of(kind)?;
        let (to, to_bytes) = self.to(Width::AtLeast(kind.bytes))?;
        self.comma()?;
        self.cursor.expect("[")?;
        let name = self.cursor.name()?;
        let offset = self.offset()?;
        self.cursor.expect("]")?;
        let offset = self.param_offset(name, offset, usize::from(kind.bytes))?;
        Ok(Operation::LoadParam { to, to_bytes, offset, kind })
    }

    /// Where `bytes` bytes at `offset` in a parameter are among the bytes of all.
    fn param_offset(&self, name: &str, offset: i64, bytes: usize) -> Result<u32, ParseError> {
        let param = self.body.params.iter().find(|param| param.name == name);
        let place = param.and_then(|param| {
            let within = usize::try_from(offset).ok()?;
            let is_there = within.checked_add(bytes)? <= param.size && within.is_multiple_of(bytes);
            u32::try_from(param.offset + within).ok().filter(|_| is_there)
        });
        place.ok_or_else(|| self.error(Reason::UnknownParam { name: name.to_owned(), offset, bytes }))
    }

    fn load(&mut self, modifiers: &[&str], kind: &str) -> Result<Operation, ParseError> {
        let (num_elements, kind) = self.elements(modifiers, kind)?;
        let mut width = Width::AtLeast(kind.bytes);
        let mut register_bytes = kind.bytes;
        let elements = self.vector(num_elements, |reader| {
            let (to, bytes) = reader.to(width)?;
            (width, register_bytes) = (Width::Exactly(bytes), bytes);
            Ok(to)
        })?;
        self.comma()?;
        let Address { base, offset } = self.address()?;
        Ok(Operation::Load(Access { kind, register_bytes, num_elements, elements, base, offset }))
    }

    fn store(&mut self, modifiers: &[&str], kind: &str) -> Result<Operation, ParseError> {
        let (num_elements, kind) = self.elements(modifiers, kind)?;
        let Address { base, offset } = self.address()?;
        self.comma()?;
        let elements = self.vector(num_elements, |reader| reader.from(kind, Width::AtLeast(kind.bytes)))?;
        let register_bytes = kind.bytes;
        Ok(Operation::Store(Access { kind, register_bytes, num_elements, elements, base, offset }))
    }

    /// How many elements of which type an access has: `global`, hints to caches, then `v2` or `v4`.
    fn elements(&self, modifiers: &[&str], kind: &str) -> Result<(u8, Type), ParseError> {
        let kind = self.type_of(kind)?;
        let (&"global", hints) = modifiers.split_first().ok_or_else(|| self.unknown())? else {
            return Err(self.unknown());
        };
        let (num_elements, hints) = match hints {
            [hints @ .., "v2"] => (2, hints),
            [hints @ .., "v4"] => (4, hints),
            hints => (1, hints),
        };
        let is_known = hints.iter().all(|hint| CACHE_HINTS.contains(hint));
        if is_known && num_elements * kind.bytes <= 16 {
            Ok((num_elements, kind))
        } else {
            Err(self.unknown())
        }
    }

    /// One operand, or 2 or 4 in braces.
    fn vector(
        &mut self,
        num_elements: u8,
        mut operand: impl FnMut(&mut Self) -> Result<Register, ParseError>,
    ) -> Result<[Register; 4], ParseError> {
        let mut elements = [0; 4];
        if num_elements == 1 {
            elements[0] = operand(self)?;
            return Ok(elements);
        }
        self.cursor.expect("{")?;
        for (nth, element) in elements[..usize::from(num_elements)].iter_mut().enumerate() {
            if nth > 0 {
                self.comma()?;
            }
            *element = operand(self)?;
        }
        self.cursor.expect("}")?;
        Ok(elements)
    }

    fn unary(
        &mut self,
        kind: Type,
        operation: impl Fn(Type, Register, Register) -> Operation,
    ) -> Result<Operation, ParseError> {
        let (to, _) = self.to(Width::Exactly(kind.bytes))?;
        self.comma()?;
        let from = self.from(kind, Width::Exactly(kind.bytes))?;
        Ok(operation(kind, to, from))
    }

    fn convert(&mut self, kind: &str, from_kind: &str) -> Result<Operation, ParseError> {
        let (kind, from_kind) = (self.type_of(kind)?, self.type_of(from_kind)?);
        let (to, to_bytes) = self.to(Width::AtLeast(kind.bytes))?;
        self.comma()?;
        let from = self.from(from_kind, Width::AtLeast(from_kind.bytes))?;
        Ok(Operation::Convert { from_kind, kind, to_bytes, to, from })
    }

    fn binary(&mut self, operator: Binary, kind: Type) -> Result<Operation, ParseError> {
        let (to, _) = self.to(Width::Exactly(self.result_bytes(operator, kind)?))?;
        self.comma()?;
        let a = self.from(kind, Width::Exactly(kind.bytes))?;
        self.comma()?;
        let is_shift = matches!(operator, Binary::ShiftLeft | Binary::ShiftRight);
        let b_kind = if is_shift { Type::unsigned(4) } else { kind };
        let b = self.from(b_kind, Width::Exactly(b_kind.bytes))?;
        Ok(Operation::Binary { operator, kind, to, a, b })
    }

    fn multiply_add(&mut self, part: &str, kind: &str) -> Result<Operation, ParseError> {
        let (product, kind) = (self.product(part)?, self.calculated(kind)?);
        let result = Type { bytes: self.result_bytes(product, kind)?, is_signed: kind.is_signed };
        let (to, _) = self.to(Width::Exactly(result.bytes))?;
        self.comma()?;
        let a = self.from(kind, Width::Exactly(kind.bytes))?;
        self.comma()?;
        let b = self.from(kind, Width::Exactly(kind.bytes))?;
        self.comma()?;
        let c = self.from(result, Width::Exactly(result.bytes))?;
        Ok(Operation::MultiplyAdd { product, kind, to, a, b, c })
    }

    fn product(&self, part: &str) -> Result<Binary, ParseError> {
        match part {
            "lo" => Ok(Binary::MultiplyLow),
            "hi" => Ok(Binary::MultiplyHigh),
            "wide" => Ok(Binary::MultiplyWide),
            _ => Err(self.unknown()),
        }
    }

    /// The width of a result. There are no registers for the whole product of 64 bits.
    fn result_bytes(&self, operator: Binary, kind: Type) -> Result<u8, ParseError> {
        match operator {
            Binary::MultiplyWide if kind.bytes == 8 => Err(self.unknown()),
            Binary::MultiplyWide => Ok(kind.bytes * 2),
            _ => Ok(kind.bytes),
        }
    }

    fn compare(&mut self, comparison: &str, kind: &str) -> Result<Operation, ParseError> {
        let kind_name = kind;
        let kind = self.calculated(kind)?;
        let is_unsigned = kind_name.starts_with('u');
        let comparison = match comparison {
            "eq" => Comparison::Equal,
            "ne" => Comparison::NotEqual,
            // Bits have no order.
            _ if kind_name.starts_with('b') => return Err(self.unknown()),
            "lt" => Comparison::Less,
            "le" => Comparison::LessOrEqual,
            "gt" => Comparison::Greater,
            "ge" => Comparison::GreaterOrEqual,
            "lo" if is_unsigned => Comparison::Less,
            "ls" if is_unsigned => Comparison::LessOrEqual,
            "hi" if is_unsigned => Comparison::Greater,
            "hs" if is_unsigned => Comparison::GreaterOrEqual,
            _ => return Err(self.unknown()),
        };
        let (to, _) = self.to(Width::Exactly(0))?;
        self.comma()?;
        let a = self.from(kind, Width::Exactly(kind.bytes))?;
        self.comma()?;
        let b = self.from(kind, Width::Exactly(kind.bytes))?;
        Ok(Operation::Compare { comparison, kind, to, a, b })
    }

    fn select(&mut self, kind: &str) -> Result<Operation, ParseError> {
        let kind = self.calculated(kind)?;
        let (to, _) = self.to(Width::Exactly(kind.bytes))?;
        self.comma()?;
        let a = self.from(kind, Width::Exactly(kind.bytes))?;
        self.comma()?;
        let b = self.from(kind, Width::Exactly(kind.bytes))?;
        self.comma()?;
        let (predicate, _) = self.register(Width::Exactly(0))?;
        Ok(Operation::Select { to, a, b, predicate })
    }

    /// `[%rd1]`, `[%rd1+8]` or `[%rd1+-8]`.
    fn address(&mut self) -> Result<Address, ParseError> {
        self.cursor.expect("[")?;
        let (base, _) = self.register(Width::Exactly(8))?;
        let offset = self.offset()?;
        self.cursor.expect("]")?;
        Ok(Address { base, offset })
    }

    fn offset(&mut self) -> Result<i64, ParseError> {
        if self.cursor.take_if("+") || self.cursor.peek() == "-" {
            Ok(self.cursor.integer()?.cast_signed())
        } else {
            Ok(0)
        }
    }

    /// An operand that is read: a register, or an immediate where no predicate belongs.
    fn from(&mut self, kind: Type, width: Width) -> Result<Register, ParseError> {
        let next = self.cursor.peek();
        if kind.bytes > 0 && (next == "-" || next.starts_with(|c: char| c.is_ascii_digit())) {
            let value = self.cursor.integer()?;
            return self.body.immediate(self.cursor, kind.truncate(value));
        }
        Ok(self.register(width)?.0)
    }

    /// A register that is written, and its width.
    fn to(&mut self, width: Width) -> Result<(Register, u8), ParseError> {
        if SPECIAL.contains(&self.cursor.peek()) {
            return Err(self.cursor.unexpected("a register that can be written"));
        }
        self.register(width)
    }

    /// A register and its width.
    fn register(&mut self, width: Width) -> Result<(Register, u8), ParseError> {
        let name = self.cursor.peek();
        let declared = self.body.declared(self.cursor)?;
        let fits = match width {
            Width::Exactly(bytes) => declared.bytes == bytes,
            Width::AtLeast(bytes) => declared.bytes >= bytes,
        };
        if !fits {
            let (register, instruction) = (name.to_owned(), self.name.to_owned());
            return Err(self.error(Reason::WrongWidth { register, instruction }));
        }
        Ok((declared.place, declared.bytes))
    }

    fn comma(&mut self) -> Result<(), ParseError> {
        self.cursor.expect(",")
    }

    /// A type of integers or bits.
    fn type_of(&self, name: &str) -> Result<Type, ParseError> {
        type_of(name).filter(|kind| kind.bytes > 0).ok_or_else(|| self.unknown())
    }

    /// A type that is calculated in: bytes are only loaded, stored and converted.
    fn calculated(&self, name: &str) -> Result<Type, ParseError> {
        type_of(name).filter(|kind| kind.bytes > 1).ok_or_else(|| self.unknown())
    }

    /// A type of bits, or a predicate.
    fn bits(&self, name: &str) -> Result<Type, ParseError> {
        let kind = if name == "pred" { type_of(name) } else { Some(self.calculated(name)?) };
        kind.filter(|_| name == "pred" || name.starts_with('b')).ok_or_else(|| self.unknown())
    }

    /// A type of numbers.
    fn numbers(&self, name: &str) -> Result<Type, ParseError> {
        let kind = self.calculated(name)?;
        if name.starts_with('b') { Err(self.unknown()) } else { Ok(kind) }
    }

    fn unknown(&self) -> ParseError {
        self.error(Reason::UnknownInstruction { instruction: self.name.to_owned() })
    }

    fn error(&self, reason: Reason) -> ParseError {
        ParseError { line: self.line, reason }
    }
}
