//! Counting on a Redis Cluster: exact within a slot, never too much across slots, whatever becomes of the nodes.

mod as_in_one_slot;
mod cross_slot;
mod exact;
mod faults;
mod overrides;
mod refunds;
mod slot_moves;
pub(crate) mod support;
