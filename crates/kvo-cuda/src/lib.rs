//! kvo-cuda.
