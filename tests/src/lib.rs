//! Scenes that the test programs share: stores on clocks that are set, servers' logs, waiting, load.

#![allow(
    missing_docs,
    missing_debug_implementations,
    reason = "helpers of tests"
)]

pub mod bare_thread;
pub mod charges;
pub mod child;
pub mod chromium;
pub mod clocks;
pub mod example;
pub mod exposition;
pub mod lateness;
pub mod load;
pub mod log;
pub mod model;
pub mod plain_http;
pub mod prelude;
pub mod results;
pub mod rng;
pub mod runtimes;
pub mod servers;
pub mod service;
pub mod stores;
pub mod strategy_kind;
pub mod stub_store;
pub mod text;
pub mod until;
pub mod websocket;
pub mod world;

use std::path::{Path, PathBuf};

/// A path in the repository, relative to its root.
pub fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}
