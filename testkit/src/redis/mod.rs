//! Redis servers: one, a cluster, a master with sentinels.

mod builder;
mod cluster;
mod observe;
mod resp;
mod sentinel;
mod server;

pub use builder::{Builder, program};
pub use cluster::{Cluster, Move};
pub use resp::{Connection, Reply};
pub use sentinel::Sentinel;
pub use server::Server;
