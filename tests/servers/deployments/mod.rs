//! Every kind of Redis deployment.

mod addresses;
mod ping;
mod sentinel;
mod support;
mod tls;
