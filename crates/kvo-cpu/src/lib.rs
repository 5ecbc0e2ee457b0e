//! kvo-cpu.
