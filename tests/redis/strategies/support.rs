//! What the tests share.

use tollgate_tests::prelude::*;

pub(crate) use tollgate_tests::{
    charges::charge,
    scene::{Scene, each, each_in, each_of, fresh_key, left, refund, send, send_concurrently},
    script::{NOW, play},
    world::START,
};

/// The time to live of a key, in milliseconds.
pub(crate) fn pttl(server: &Server, key: &str) -> i64 {
    server.command(&["PTTL", key]).int()
}

/// The time to live of the only key, in milliseconds.
pub(crate) fn ttl(server: &Server) -> i64 {
    pttl(server, &server.only_key())
}

/// The values of all keys, in the order of their names.
pub(crate) fn values(server: &Server) -> Vec<String> {
    let mut keys = server.keys();
    keys.sort();
    let values = keys.iter().map(|key| server.command(&["GET", key]).text());
    values.collect()
}
