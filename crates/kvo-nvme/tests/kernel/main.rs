//! The whole store on the real kernel: killed at random moments, with flipped bits and exchanged files, on file systems
//! that are full, read-only or broken.
//!
//! Only what the crate shows to everybody is used. What is done to files behind the store's back follows
//! `docs/FORMAT.md`. Whatever a machine forbids is skipped aloud.

mod damage;
mod failing;
mod handles;
mod kill;
mod mounts;
mod rig;
mod room;
