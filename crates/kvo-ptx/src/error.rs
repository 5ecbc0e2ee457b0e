//! What is wrong with a text, and what goes wrong in a launch.

/// The text is no module that can be run here.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {reason}")]
pub struct ParseError {
    /// Where, from 1.
    pub line: u32,
    /// What.
    #[source]
    pub reason: Reason,
}

/// What is wrong at a line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Reason {
    /// An instruction that is not interpreted, or a form of one.
    #[error("the instruction {instruction} is not interpreted")]
    UnknownInstruction {
        /// The instruction with all its modifiers.
        instruction: String,
    },
    /// A directive that is not understood.
    #[error("the directive {directive} is not understood")]
    UnknownDirective {
        /// The directive.
        directive: String,
    },
    /// A register that nothing declares, or a variable where a register belongs.
    #[error("there is no register {name}")]
    UnknownRegister {
        /// Its name.
        name: String,
    },
    /// A label that stands nowhere in the kernel.
    #[error("there is no label {name}")]
    UnknownLabel {
        /// Its name.
        name: String,
    },
    /// A parameter that the kernel does not declare, or bytes outside it.
    #[error("{bytes} bytes at {offset} are not in a parameter {name}")]
    UnknownParam {
        /// Its name.
        name: String,
        /// Where in the parameter.
        offset: i64,
        /// How many bytes.
        bytes: usize,
    },
    /// A name that is there already.
    #[error("{name} is declared twice")]
    Duplicate {
        /// The name.
        name: String,
    },
    /// A register that is too narrow, or of another width than its instruction.
    #[error("{register} has not the width of {instruction}")]
    WrongWidth {
        /// The register.
        register: String,
        /// The instruction with all its modifiers.
        instruction: String,
    },
    /// Something else should stand there.
    #[error("{found:?} where {wanted} belongs")]
    Unexpected {
        /// What stands there; nothing at the end of the text.
        found: String,
        /// What belongs there.
        wanted: &'static str,
    },
    /// No integer that is understood.
    #[error("{text} is no integer of 64 bits")]
    NotAnInteger {
        /// The text.
        text: String,
    },
    /// Addresses that are not of 64 bits.
    #[error("addresses of {bits} bits")]
    AddressSize {
        /// Their size.
        bits: u64,
    },
    /// More registers, bytes of parameters or instructions than are sensible.
    #[error("too many {what}")]
    TooMany {
        /// Of what.
        what: &'static str,
    },
}

/// Why a launch did not end well. What its threads had stored before stays stored, as on a GPU.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// A dimension is 0, or the block has more threads than the kernel was compiled for, or than a GPU has.
    #[error(
        "no launch has a grid of {grid:?} and a block of {block:?}; a block has at most {threads_max} threads"
    )]
    Shape {
        /// The grid, in CTAs.
        grid: [u32; 3],
        /// The block, in threads.
        block: [u32; 3],
        /// The most threads that a block of this kernel may have.
        threads_max: u32,
    },
    /// Not as many bytes of parameters as the kernel declares.
    #[error("{got} bytes of parameters, the kernel declares {declared}")]
    Params {
        /// What the kernel declares.
        declared: usize,
        /// What was given.
        got: usize,
    },
    /// A load or store at an address that is no multiple of its size.
    #[error("{bytes} bytes at {address:#x} are not aligned, {place}")]
    Misaligned {
        /// The address.
        address: u64,
        /// The size of the access, of all elements of a vector.
        bytes: u32,
        /// Which thread, where.
        place: Place,
    },
    /// The memory refused an access.
    #[error("{bytes} bytes at {address:#x} cannot be reached, {place}")]
    BadAddress {
        /// The address.
        address: u64,
        /// The size of the access.
        bytes: u32,
        /// Whether it was a store.
        is_store: bool,
        /// Which thread, where.
        place: Place,
    },
    /// A division by 0, whose result PTX leaves open.
    #[error("division by 0, {place}")]
    DivisionByZero {
        /// Which thread, where.
        place: Place,
    },
    /// A thread ran longer than it may.
    #[error("more than {max} instructions in a thread, {place}")]
    TooLong {
        /// How many it may run.
        max: u64,
        /// Which thread, where.
        place: Place,
    },
}

/// A thread of a launch, at a line of the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The line, from 1.
    pub line: u32,
    /// The CTA, `%ctaid`.
    pub cta: [u32; 3],
    /// The thread in it, `%tid`.
    pub thread: [u32; 3],
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "line {}, CTA {:?}, thread {:?}", self.line, self.cta, self.thread)
    }
}
