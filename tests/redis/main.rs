//! Counting on real Redis servers: exact under concurrency, whole under faults, sparing on the wire.

#![allow(missing_docs)]

#[path = "../common/answers.rs"]
mod answers;
mod banned;
#[path = "../common/by.rs"]
mod by;
mod cache_ends;
mod cache_waits;
mod config;
mod cooperative;
#[path = "../common/crowd.rs"]
mod crowd;
mod crowds;
mod denials;
mod exact;
mod faults;
mod floods;
mod foreign;
mod lanes;
mod late;
mod lifted;
mod processes;
mod reads;
mod runtimes;
mod stalled;
mod steps;
mod support;
mod trips;
#[path = "../common/until.rs"]
mod until;
mod unwritable;
mod withdrawn;
