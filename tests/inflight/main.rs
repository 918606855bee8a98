//! Limits on requests in flight: never more than the limit, and every permit comes back.

#![allow(missing_docs)]

#[path = "../common/answers.rs"]
mod answers;
mod clocks;
mod composite;
mod foreign;
mod handles;
mod heartbeats;
mod http;
#[path = "../common/log.rs"]
#[allow(dead_code, reason = "other tests use more of it")]
mod log;
mod merged;
mod processes;
mod renewals;
mod support;
mod units;
#[path = "../common/until.rs"]
mod until;
