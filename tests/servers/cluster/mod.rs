//! Counting on a Redis Cluster: exact within a slot, never too much across slots, whatever becomes of the nodes.

mod bans;
mod cross_slot;
mod exact;
mod faults;
mod overrides;
mod probes;
mod refunds;
mod rejection_cache;
mod shadows;
mod slot_moves;
mod support;
