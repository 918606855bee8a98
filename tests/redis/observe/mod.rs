//! What observers are called with: each request once, with its outcome and units; the store's calls; changes of state.

mod decisions;
mod events;
mod leases;
mod logs;
mod store;
mod support;
mod totals;
mod units;
