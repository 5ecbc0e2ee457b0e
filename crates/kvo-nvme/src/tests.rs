//! Tests of the whole store.
