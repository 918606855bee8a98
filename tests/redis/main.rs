//! Counting on real Redis servers: exact under concurrency, whole under faults, sparing on the wire.

#![cfg(feature = "redis")]
#![allow(missing_docs)]

mod config;
mod denials;
mod exact;
mod faults;
mod floods;
mod foreign;
mod lanes;
mod processes;
mod runtimes;
mod steps;
mod support;
mod trips;
mod withdrawn;
