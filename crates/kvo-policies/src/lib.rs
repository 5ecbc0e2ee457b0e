//! kvo-policies.
