//! Every kind of Redis deployment.

#![cfg(feature = "redis")]
#![allow(missing_docs)]

mod addresses;
mod ping;
mod sentinel;
mod support;
#[cfg(feature = "redis-tls")]
mod tls;
