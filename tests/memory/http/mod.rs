//! The layer as a web application meets it: its types, what it does to requests and responses, what it counts by, and what
//! it rejects to be built from.

mod access_lists;
mod addresses;
mod ambiguous_keys;
mod call_entries;
mod calls;
mod checks;
mod conditions;
mod config;
mod entry_points;
mod extractors;
mod forged;
mod full_store;
mod header_formats;
mod inputs;
mod malformed_requests;
mod missing_keys;
mod on_redis;
mod on_rejection;
mod paced_client;
mod provider_checks;
mod provider_formats;
mod providers;
mod redis_inputs;
mod responses;
mod retry_after;
mod service;
mod single_policy;
mod stacked_layers;
mod structured_fields;
mod support;
mod without_await;
