//! Every kind of Redis deployment.

#![allow(missing_docs)]

mod addresses;
mod ping;
#[path = "../common/results.rs"]
mod results;
#[path = "../common/rights.rs"]
mod rights;
mod sentinel;
mod support;
#[cfg(feature = "redis-tls")]
mod tls;
#[path = "../common/until.rs"]
mod until;
