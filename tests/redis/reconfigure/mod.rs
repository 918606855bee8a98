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
