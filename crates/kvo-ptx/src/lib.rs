//! Runs the PTX of kvo's kernels on the CPU, so that tests without a GPU run what a driver would be given.
//!
//! It knows the instructions that our kernels consist of, and their neighbours: integers, predicates, branches, loads
//! and stores of global memory. Everything else (floats, shared memory, atomics, shuffles, barriers, calls) is refused
//! when a module is read, with the line, never skipped. Threads run one after the other, in order, each to its end;
//! without barriers and shuffles that is one of the orders that a GPU may choose. What a kernel does wrong by a race
//! between its threads, and how fast it is, cannot be seen here.
//!
//! ```text
//!   PTX ── Module::parse ──▶ Module ── kernel(name) ──▶ Kernel ── launch(grid, block, params) ──▶ Stats or Fault
//!                                                                        │
//!                                                                     Memory: yours
//! ```
//!
//! # Example
//!
//! ```
//! use std::cell::RefCell;
//! use kvo_ptx::{BadAddress, Memory, Module};
//!
//! /// Memory from address 0 on.
//! struct Bytes(RefCell<Vec<u8>>);
//!
//! impl Memory for Bytes {
//!     fn read(&self, address: u64, out: &mut [u8]) -> Result<(), BadAddress> {
//!         let bytes = self.0.borrow();
//!         let start = usize::try_from(address).map_err(|_| BadAddress)?;
//!         out.copy_from_slice(bytes.get(start..start + out.len()).ok_or(BadAddress)?);
//!         Ok(())
//!     }
//!     fn write(&self, address: u64, from: &[u8]) -> Result<(), BadAddress> {
//!         let mut bytes = self.0.borrow_mut();
//!         let start = usize::try_from(address).map_err(|_| BadAddress)?;
//!         bytes.get_mut(start..start + from.len()).ok_or(BadAddress)?.copy_from_slice(from);
//!         Ok(())
//!     }
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let module = Module::parse(
//!     "
//!     .version 8.1
//!     .target sm_80
//!     .address_size 64
//!     .visible .entry set(.param .u64 to, .param .u32 value) {
//!         .reg .b32 %r<2>;
//!         .reg .b64 %rd<2>;
//!         ld.param.u64 %rd1, [to];
//!         ld.param.u32 %r1, [value];
//!         st.global.u32 [%rd1], %r1;
//!         ret;
//!     }",
//! )?;
//! let kernel = module.kernel("set").ok_or("there is no such kernel")?;
//! let mut params = vec![0; kernel.param_bytes()];
//! params[kernel.params()[0].offset..][..8].copy_from_slice(&4_u64.to_le_bytes());
//! params[kernel.params()[1].offset..][..4].copy_from_slice(&7_u32.to_le_bytes());
//!
//! let memory = Bytes(RefCell::new(vec![0; 8]));
//! let stats = kernel.launch([1; 3], [1; 3], &params, &memory)?;
//! assert_eq!(stats.stores, 1);
//! assert_eq!(*memory.0.borrow(), [0, 0, 0, 0, 7, 0, 0, 0]);
//! # Ok(())
//! # }
//! ```
//!
//! # Sources
//!
//! Semantics are those of the PTX ISA 8.1, as NVIDIA documents it.

#![forbid(unsafe_code)]

mod error;
mod instruction;
mod machine;
mod memory;
mod module;
mod parse;

pub use crate::{
    error::{Fault, ParseError, Place, Reason},
    machine::{INSTRUCTIONS_PER_THREAD_MAX, Stats},
    memory::{BadAddress, Memory},
    module::{Kernel, Module, Param},
};
