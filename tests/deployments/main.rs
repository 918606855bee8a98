//! Every kind of Redis deployment.

#![allow(missing_docs)]

mod addresses;
#[path = "../common/answers.rs"]
mod answers;
mod ping;
mod sentinel;
mod support;
#[cfg(feature = "redis-tls")]
mod tls;
#[path = "../common/until.rs"]
mod until;
