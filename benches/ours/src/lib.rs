//! What tollgate's speed is measured by.
//!
//! Every figure is a ratio of two contenders that took turns in one run on one machine: absolute times say little on
//! machines that others share. `cargo xtask bench` runs it all.

pub mod drive;
pub mod house;
pub mod keys;
pub mod redis;
