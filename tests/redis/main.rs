//! Counting in process and on one Redis server: exact, alike on both, and told to observers, metrics and operators.

#![allow(missing_docs, reason = "tests")]

mod admin;
mod calendar;
mod charging;
mod conformance;
mod differential;
mod explain;
mod inflight;
mod metrics;
mod observe;
mod outgoing;
mod overrides;
mod reconfigure;
mod store;
mod strategies;
