//! Every kind of Redis deployment.

#![cfg(feature = "redis")]
#![allow(missing_docs)]

mod addresses;
mod sentinel;
mod support;
#[cfg(feature = "redis-tls")]
mod tls;
