//! Policies and settings that are replaced while requests are served: what changes at once, what is kept, and what finishes under
//! the old ones.

#![allow(missing_docs)]

mod contention;
mod counts;
mod in_flight;
mod kept;
mod layers;
mod leases;
mod limits;
mod nested;
mod support;
mod threads;
mod waiting;

#[path = "../common/results.rs"]
mod results;
#[path = "../common/strategy_kind.rs"]
mod strategy_kind;
#[path = "../common/until.rs"]
mod until;
#[path = "../common/world.rs"]
mod world;
