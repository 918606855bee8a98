//! Limits on requests in flight: never more than the limit, and every permit comes back.

mod clocks;
mod foreign_values;
mod handles;
mod heartbeats;
mod http;
mod merged;
mod processes;
mod responses;
mod support;
mod units;
