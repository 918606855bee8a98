//! Limits on the way out: each waiter gets its turn in order, within the quota, and leaves nothing behind.

mod access_lists;
mod bans;
mod batches;
mod bodies;
mod clients;
mod contention;
mod histories;
mod many;
mod no_runtime;
mod obey;
mod queue;
mod redis;
mod service;
mod support;
