//! What is measured: tollgate, and what it is compared with.

pub mod governor;
pub mod layers;
pub mod local_sync;
pub mod redis;
pub mod tollgate;
