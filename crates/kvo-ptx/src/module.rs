//! A module as it was read: its kernels and what they take.

use crate::{Fault, Memory, ParseError, Stats, instruction::Instruction, machine, parse};

/// A PTX text, read and checked.
#[derive(Clone, Debug)]
pub struct Module {
    pub(crate) version: (u32, u32),
    pub(crate) target: String,
    pub(crate) kernels: Vec<Kernel>,
}

impl Module {
    /// Reads a PTX text.
    ///
    /// # Errors
    /// [`ParseError`] with the line of the first thing that cannot be interpreted.
    pub fn parse(ptx: &str) -> Result<Self, ParseError> {
        parse::module(ptx)
    }

    /// The PTX version that the text asks for, major and minor: `(8, 1)`. A driver refuses one that is newer than its own.
    pub fn version(&self) -> (u32, u32) {
        self.version
    }

    /// The oldest architecture that the text is for, as it says it: `sm_80`.
    pub fn target(&self) -> &str {
        &self.target
    }

    /// The kernels, in the order of the text.
    pub fn kernels(&self) -> &[Kernel] {
        &self.kernels
    }

    /// The kernel of that name.
    pub fn kernel(&self, name: &str) -> Option<&Kernel> {
        self.kernels.iter().find(|kernel| kernel.name == name)
    }
}

/// An entry of a module.
#[derive(Clone, Debug)]
pub struct Kernel {
    pub(crate) name: String,
    pub(crate) params: Vec<Param>,
    pub(crate) threads_max: u32,
    /// What a thread's registers hold at its start: first the special ones, which a launch sets, then those that the
    /// text declares, with a poison that no kernel may depend on, and its immediates, in no order.
    pub(crate) registers: Vec<u64>,
    pub(crate) code: Vec<Instruction>,
}

/// A parameter of a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Param {
    /// Its name.
    pub name: String,
    /// Where it begins in the bytes of all parameters.
    pub offset: usize,
    /// Its length in bytes.
    pub size: usize,
    /// Its alignment in bytes; `offset` is a multiple.
    pub align: usize,
}

impl Kernel {
    /// Its name, not mangled.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The parameters in order. A driver reads `size` bytes for each, however few the launcher meant to give.
    pub fn params(&self) -> &[Param] {
        &self.params
    }

    /// The length of all parameters together, in bytes, with the gaps that alignment leaves.
    pub fn param_bytes(&self) -> usize {
        self.params.last().map_or(0, |last| last.offset + last.size)
    }

    /// The most threads that a block may have: what `.maxntid` says, else 1024.
    pub fn threads_max(&self) -> u32 {
        self.threads_max
    }

    /// Runs every thread of `grid` CTAs of `block` threads. No thread runs more than [`INSTRUCTIONS_PER_THREAD_MAX`]
    /// instructions.
    ///
    /// `params` has the parameters as a driver would have gathered them: [`param_bytes`](Self::param_bytes) bytes, each
    /// parameter at its [`offset`](Param::offset), little-endian.
    ///
    /// # Errors
    /// [`Fault`] of the first thread that does not end well; what was stored until then stays. [`Fault::Shape`] and
    /// [`Fault::Params`] before anything has run.
    ///
    /// [`INSTRUCTIONS_PER_THREAD_MAX`]: crate::INSTRUCTIONS_PER_THREAD_MAX
    pub fn launch(
        &self,
        grid: [u32; 3],
        block: [u32; 3],
        params: &[u8],
        memory: &dyn Memory,
    ) -> Result<Stats, Fault> {
        self.launch_limited(grid, block, params, memory, crate::INSTRUCTIONS_PER_THREAD_MAX)
    }

    /// The same, with another limit to the instructions of a thread.
    ///
    /// # Errors
    /// As [`launch`](Self::launch).
    pub fn launch_limited(
        &self,
        grid: [u32; 3],
        block: [u32; 3],
        params: &[u8],
        memory: &dyn Memory,
        instructions_per_thread_max: u64,
    ) -> Result<Stats, Fault> {
        machine::launch(self, grid, block, params, memory, instructions_per_thread_max)
    }
}
