//! Instructions as they are run: all operands are places in one file of registers.
//!
//! A register holds its value extended with zeros to 64 bits, a predicate 0 or 1. Special registers and immediates have
//! places in the same file, so that running an instruction never asks what kind of operand it has.

/// A place in a thread's file of registers.
pub(crate) type Register = u32;

/// Registers that a launch sets for each thread, from place 0 on in this order.
pub(crate) const SPECIAL: [&str; 13] = [
    "%tid.x",
    "%tid.y",
    "%tid.z",
    "%ntid.x",
    "%ntid.y",
    "%ntid.z",
    "%ctaid.x",
    "%ctaid.y",
    "%ctaid.z",
    "%nctaid.x",
    "%nctaid.y",
    "%nctaid.z",
    "%laneid",
];

/// One instruction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Instruction {
    /// Where it stands in the text.
    pub(crate) line: u32,
    pub(crate) guard: Option<Guard>,
    pub(crate) operation: Operation,
}

/// `@%p` or `@!%p`: the instruction is run only if the predicate is `wanted`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Guard {
    pub(crate) predicate: Register,
    pub(crate) wanted: u64,
}

/// A scalar type. Bit types are unsigned here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Type {
    /// 0 for a predicate, else 1, 2, 4 or 8.
    pub(crate) bytes: u8,
    pub(crate) is_signed: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    /// `bytes` bytes of the parameters.
    LoadParam {
        to: Register,
        to_bytes: u8,
        offset: u32,
        kind: Type,
    },
    Load(Access),
    Store(Access),
    Move {
        to: Register,
        from: Register,
    },
    Not {
        kind: Type,
        to: Register,
        from: Register,
    },
    Negate {
        kind: Type,
        to: Register,
        from: Register,
    },
    Convert {
        from_kind: Type,
        kind: Type,
        to_bytes: u8,
        to: Register,
        from: Register,
    },
    Binary {
        operator: Binary,
        kind: Type,
        to: Register,
        a: Register,
        b: Register,
    },
    /// `to = a * b + c`
    MultiplyAdd {
        product: Binary,
        kind: Type,
        to: Register,
        a: Register,
        b: Register,
        c: Register,
    },
    Compare {
        comparison: Comparison,
        kind: Type,
        to: Register,
        a: Register,
        b: Register,
    },
    Select {
        to: Register,
        a: Register,
        b: Register,
        predicate: Register,
    },
    /// To the instruction of that number.
    Branch {
        target: u32,
    },
    Return,
}

/// A load or store of 1, 2 or 4 neighbouring elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Access {
    pub(crate) kind: Type,
    /// The width of the registers, for loads, which may be wider than the type.
    pub(crate) register_bytes: u8,
    pub(crate) num_elements: u8,
    pub(crate) elements: [Register; 4],
    pub(crate) base: Register,
    pub(crate) offset: i64,
}

/// Operators with two operands and one result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Binary {
    Add,
    Subtract,
    /// The lower half of the product.
    MultiplyLow,
    /// The upper half.
    MultiplyHigh,
    /// The whole product, twice as wide as the operands.
    MultiplyWide,
    Divide,
    Remainder,
    And,
    Or,
    Xor,
    ShiftLeft,
    ShiftRight,
    Min,
    Max,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

impl Type {
    /// The value's lower bits, the rest zeros.
    pub(crate) fn truncate(self, value: u64) -> u64 {
        match self.bytes {
            0 => value & 1,
            1 => value & 0xff,
            2 => value & 0xffff,
            4 => value & 0xffff_ffff,
            _ => value,
        }
    }

    /// The value's lower bits, extended to 64 bits by what the type says: its sign, or zeros.
    pub(crate) fn extend(self, value: u64) -> u64 {
        let value = self.truncate(value);
        if !self.is_signed || self.bytes == 0 {
            return value;
        }
        let unused = 64 - self.bits();
        ((value << unused).cast_signed() >> unused).cast_unsigned()
    }

    pub(crate) fn bits(self) -> u32 {
        u32::from(self.bytes) * 8
    }

    /// The unsigned type of that many bytes.
    pub(crate) fn unsigned(bytes: u8) -> Self {
        Self { bytes, is_signed: false }
    }
}
