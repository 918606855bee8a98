//! Counting on a Redis Cluster: exact within a slot, never too much across slots, whatever becomes of the nodes.

mod bans;
mod cross_slot;
use tollgate_tests::every_policy;
mod exact;
mod faults;
use tollgate_tests::load;
mod overrides;
mod probes;
mod refunds;
mod rejection_cache;
use tollgate_tests::results;
mod shadows;
mod slot_moves;
use tollgate_tests::strategy_kind;
mod support;
use tollgate_tests::until;
