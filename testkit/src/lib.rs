//! Real Redis servers for tollgate's tests and benchmarks.
//!
//! Each [`Server`] runs in its own folder on its own port and dies with its
//! owner: on drop, on a panic, and on Linux also when the test process itself is
//! killed. Its folder goes with it, and in any case with the test process.
//! [`Clock`] sets the time that servers see, [`Cluster`] and [`Sentinel`]
//! start whole groups. The API blocks and needs no async runtime; call it from
//! async tests as it is, the calls are short.
//!
//! A [`Program`] is any other server or client that the tests need, with the same manners.
//!
//! Helpers panic with the reason when something goes wrong, since only tests
//! use them.

mod clock;
mod folder;
mod ports;
mod process;
mod program;
mod proxy;
mod python;
mod redis;
mod wait;

pub use clock::{Clock, Timers};
pub use folder::{TempDir, folder};
pub use ports::free_port;
pub use process::signal;
pub use program::Program;
pub use proxy::Proxy;
pub use python::python;
pub use redis::{Builder, Cluster, Connection, Move, Reply, Sentinel, Server, program};
pub use wait::{TIMEOUT, until};
