//! The layer as a web application meets it: its types, what it does to requests and responses, what it counts by, and what
//! it rejects to be built from.

#![allow(missing_docs)]

mod access_list_files;
mod access_lists;
mod browser_rejections;
mod call_errors;
mod calls;
mod calls_with_request;
mod candidates;
mod checks;
mod client_address;
mod clocks;
mod conditions;
mod config;
mod credentials;
mod extractors;
mod foreign_fields;
mod forged;
mod handlers;
mod header_cache;
mod header_formats;
#[cfg(feature = "redis")]
mod health;
mod in_flight;
mod inputs;
mod likely_mistakes;
#[path = "../common/log.rs"]
mod log;
mod malformed_requests;
mod memory;
mod missing_keys;
#[cfg(feature = "redis")]
mod on_redis;
mod on_rejection;
mod or_else;
mod or_same;
mod paced_client;
mod paths;
mod peek_request;
mod peers;
mod policy_handles;
mod proxy_headers;
mod quota_lookups;
#[cfg(feature = "redis")]
mod redis_inputs;
mod rejections;
mod request_values;
mod reset_times;
mod responses;
mod retry_after;
mod service;
mod single_policy;
mod skip;
mod stacked_layers;
mod structured_fields;
mod structured_fields_in_python;
mod support;
#[path = "../common/two_clocks.rs"]
mod two_clocks;
mod types;
