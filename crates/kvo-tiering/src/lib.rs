//! kvo-tiering.
