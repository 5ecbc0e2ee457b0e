//! The program `kvo-store`, run on stores that are good, damaged, foreign, cut, in use or not there.

mod broken;
mod create;
mod docs;
mod look;
mod mend;
mod real;
mod rig;
mod wipe;
