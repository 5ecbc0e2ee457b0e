//! What is wrong with a model.

/// A model cannot be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// A size is zero.
    #[error("{field} of the model must not be 0")]
    Zero {
        /// The field of [`ModelConfig`](crate::ModelConfig).
        field: &'static str,
    },
    /// A size does not go with the others.
    #[error("{field} of the model cannot be {value}")]
    Shape {
        /// The field of [`ModelConfig`](crate::ModelConfig).
        field: &'static str,
        /// Its value.
        value: usize,
    },
    /// A file cannot be read.
    #[error("the model cannot be read")]
    Read(#[from] std::io::Error),
    /// A file has no model that is understood.
    #[error(transparent)]
    Gguf(#[from] GgufError),
}

/// A GGUF file is not one, or has no model that is understood.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GgufError {
    /// It does not begin like one.
    #[error("the file is no GGUF file")]
    NotGguf,
    /// It is of another version.
    #[error("GGUF version {version} is not read, only 2 and 3")]
    Version {
        /// The version.
        version: u32,
    },
    /// It ends too early.
    #[error("the file ends within what begins at byte {at}")]
    Truncated {
        /// Where that begins.
        at: usize,
    },
    /// There is more of something than is read.
    #[error("{count} {field}, at most {max} are read")]
    TooMany {
        /// Of what.
        field: &'static str,
        /// How many.
        count: u64,
        /// How many may be.
        max: u64,
    },
    /// A text is not UTF-8.
    #[error("the text at byte {at} is not UTF-8")]
    Text {
        /// Where it begins.
        at: usize,
    },
    /// A value is of a type that is not known, or lists are too deep.
    #[error("a value of type {kind} before byte {at} is not read")]
    ValueKind {
        /// Where it would begin.
        at: usize,
        /// The type.
        kind: u32,
    },
    /// Something is not said, or a tensor is not there.
    #[error("there is no {key}")]
    Missing {
        /// Its name.
        key: String,
    },
    /// Something is said in a type that makes no sense.
    #[error("{key} is not of a type that is understood")]
    Kind {
        /// Its name.
        key: String,
    },
    /// The model needs something that this engine does not do.
    #[error("{key} is {value}, which this engine does not do")]
    Unsupported {
        /// What is said.
        key: String,
        /// What it is.
        value: String,
    },
    /// A tensor has another shape.
    #[error("{name} is {found:?}, not {expected:?}")]
    Shape {
        /// The tensor.
        name: String,
        /// Its dimensions, the fastest first.
        found: Vec<u64>,
        /// What they should be.
        expected: Vec<u64>,
    },
    /// A tensor's numbers are in a format that is not read.
    #[error("{name} is of type {kind}, which is not read")]
    TensorKind {
        /// The tensor.
        name: String,
        /// Its type.
        kind: u32,
    },
    /// A tensor is not all in the file, or not made of whole blocks.
    #[error("{name} is not whole in the file")]
    BeyondFile {
        /// The tensor.
        name: String,
    },
}
