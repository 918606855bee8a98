//! Counting on real Redis servers: exact under concurrency, whole when the store fails, with few calls.

mod batches;
mod call_entries;
mod config;
mod contention;
mod exact;
mod foreign_values;
mod rejection_cache;
mod rollback;
mod runtimes;
mod support;
mod task_budget;
mod unwritable;
mod without_await;
