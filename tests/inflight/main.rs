//! Limits on requests in flight: never more than the limit, and every permit comes back.

#![allow(missing_docs)]

mod clocks;
mod composite;
#[path = "../common/counting_clock.rs"]
mod counting_clock;
mod foreign_values;
mod handles;
mod heartbeats;
mod http;
#[path = "../common/log.rs"]
#[allow(dead_code, reason = "other tests use more of it")]
mod log;
mod merged;
mod processes;
mod renewals;
mod responses;
#[path = "../common/results.rs"]
mod results;
mod support;
mod units;
#[path = "../common/until.rs"]
mod until;
