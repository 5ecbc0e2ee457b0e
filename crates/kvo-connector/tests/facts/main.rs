//! Facts about a connector on a CPU tier, one by one. No bytes are moved here.

mod epochs;
mod loads;
mod requests;
mod rig;
mod spoilt;
mod stores;
