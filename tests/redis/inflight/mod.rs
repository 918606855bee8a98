//! Limits on requests in flight: never more than the limit, and every permit comes back.

mod clocks;
mod composite;
use tollgate_tests::counting_clock;
mod foreign_values;
mod handles;
mod heartbeats;
mod http;
use tollgate_tests::log;
mod merged;
mod processes;
pub(crate) mod renewals;
mod responses;
mod support;
mod units;
