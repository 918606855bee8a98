//! Counting on real Redis servers: exact under concurrency, whole when the store fails, with few calls.

#![allow(missing_docs)]

mod batches;
mod cache_invalidation;
mod cache_lifetime;
mod cached_bans;
mod cached_retry_after;
mod clock_steps;
mod config;
mod contention;
mod cooperative;
mod epoch_reads;
mod exact;
mod faults;
mod foreign_values;
mod key_floods;
#[path = "../common/load.rs"]
mod load;
mod processes;
mod rejection_cache;
#[path = "../common/results.rs"]
mod results;
mod rollback;
mod runtimes;
mod stalled_runtimes;
#[path = "../common/strategy_kind.rs"]
mod strategy_kind;
mod support;
mod timeouts;
#[path = "../common/until.rs"]
mod until;
mod unwritable;
mod workers;
