//! What observers are called with: each request once, with its outcome and units; the store's calls; changes of state.

#![allow(missing_docs)]

mod decisions;
mod events;
mod leases;
mod logs;
mod store;
mod support;
mod totals;
mod units;

#[allow(dead_code, reason = "shared with tests that use all of it")]
#[path = "../common/log.rs"]
mod log;
#[path = "../common/until.rs"]
mod until;
#[allow(dead_code, reason = "shared with tests that use all of it")]
#[path = "../common/world.rs"]
mod world;
