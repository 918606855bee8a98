//! Policies and settings that are replaced while requests are served: what changes at once, what is kept, and what finishes under
//! the old ones.

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

use tollgate_tests::results;
use tollgate_tests::strategy_kind;
use tollgate_tests::until;
use tollgate_tests::world;
