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
mod epoch_reads;
mod exact;
mod faults;
mod foreign_values;
mod key_floods;
use tollgate_tests::load;
mod rejection_cache;
use tollgate_tests::results;
mod rollback;
mod runtimes;
mod stalled_runtimes;
mod support;
mod timeouts;
mod unwritable;
mod without_await;
mod workers;
