//! Counting on real Redis servers: exact under concurrency, whole when the store fails, with few calls.

mod batches;
mod cache_invalidation;
mod cache_lifetime;
mod cached_bans;
mod cached_retry_after;
mod call_entries;
mod clock_steps;
mod config;
mod contention;
mod cooperative;
mod exact;
mod faults;
mod foreign_values;
mod key_floods;
mod rejection_cache;
mod rollback;
mod runtimes;
mod stalled_runtimes;
mod support;
mod timeouts;
mod unwritable;
mod without_await;
mod workers;
