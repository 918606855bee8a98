//! The layer as a web application meets it: its types, what it does to requests and responses, what it counts by, and what
//! it refuses to be built from.

#![allow(missing_docs)]

mod calls;
mod candidates;
mod checks;
mod client_address;
mod clocks;
mod conditions;
mod config;
mod credentials;
mod dialects;
mod epochs;
mod extractors;
mod foreign_fields;
mod forged;
mod handlers;
#[path = "../common/hands.rs"]
mod hands;
#[cfg(feature = "redis")]
mod health;
mod in_flight;
mod inputs;
mod lists;
#[path = "../common/log.rs"]
mod log;
mod look_ups;
mod memory;
mod missing_keys;
mod odd;
#[cfg(feature = "redis")]
mod on_redis;
mod on_refusal;
mod or_else;
mod or_same;
mod pace;
mod paths;
mod peek_request;
mod peers;
mod plain;
mod proxy_headers;
#[cfg(feature = "redis")]
mod redis_inputs;
mod refusal;
mod refusals;
mod retry_after;
mod said;
mod service;
mod skip;
mod stacked;
mod structured;
mod structured_in_python;
mod support;
mod suspicions;
mod types;
mod values;
