//! Free ports.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::net::{Ipv4Addr, TcpListener};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Below the range from which systems take ports for outgoing connections: there
/// a client that keeps trying to reach a killed server can be given the server's
/// own port, and would then talk to itself or keep the server from coming back.
/// The bus of a cluster node is 10000 above its port and stays below as well.
const FIRST: u64 = 10_000;
const COUNT: u64 = 10_000;

/// Starts anywhere so that test processes side by side seldom meet, then walks,
/// so that one process never hands out a port twice in close order.
static NEXT: LazyLock<AtomicU64> =
    LazyLock::new(|| AtomicU64::new(RandomState::new().hash_one(std::process::id()) % COUNT));

/// A port of 127.0.0.1 on which nothing listens now.
///
/// Another process may take it before you do; [`Server::start`](crate::Server::start)
/// then tries another one.
pub fn free_port() -> u16 {
    (0..COUNT)
        .map(|_| FIRST + NEXT.fetch_add(1, Ordering::Relaxed) % COUNT)
        .filter_map(|port| u16::try_from(port).ok())
        .find(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok())
        .expect("no free port from 10000 to 19999 on 127.0.0.1")
}
