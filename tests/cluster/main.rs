//! Counting on a Redis Cluster: exact within a slot, never too much across slots, whatever becomes of the nodes.

#![allow(missing_docs)]

mod bans;
mod cross_slot;
#[allow(dead_code, reason = "shared with tests that use all of it")]
#[path = "../common/every_policy.rs"]
mod every_policy;
mod exact;
mod faults;
#[path = "../common/load.rs"]
mod load;
mod probes;
mod refunds;
mod rejection_cache;
#[path = "../common/results.rs"]
mod results;
mod shadows;
mod slot_moves;
#[path = "../common/strategy_kind.rs"]
mod strategy_kind;
mod support;
#[path = "../common/until.rs"]
mod until;
