//! Limits on the way out: each waiter gets its turn in order, within the quota, and leaves nothing behind.

#![allow(missing_docs)]

mod bans;
mod batches;
mod clients;
mod crowds;
mod in_flight;
mod lists;
mod processes;
mod queue;
mod redis;
mod refusals;
mod service;
mod shadows;
mod slow;
mod support;
