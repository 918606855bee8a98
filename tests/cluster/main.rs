//! Counting on a Redis Cluster: exact within a slot, never too much across slots, whatever becomes of the nodes.

#![cfg(feature = "redis")]
#![allow(missing_docs)]

mod denials;
mod exact;
mod faults;
mod moves;
mod probes;
mod spread;
mod support;
