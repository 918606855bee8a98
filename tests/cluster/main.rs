//! Counting on a Redis Cluster: exact within a slot, never too much across slots, whatever becomes of the nodes.

#![allow(missing_docs)]

#[path = "../common/answers.rs"]
mod answers;
mod bans;
#[path = "../common/by.rs"]
mod by;
#[path = "../common/crowd.rs"]
mod crowd;
mod denials;
#[allow(dead_code, reason = "shared with tests that use all of it")]
#[path = "../common/every.rs"]
mod every;
mod exact;
mod faults;
mod give_backs;
mod moves;
mod probes;
mod spread;
mod support;
#[path = "../common/until.rs"]
mod until;
