//! What observers are called with, and that statistics, metrics and the admin API tell the same figures.

mod events;
mod figures;
mod leases;
mod store;
mod support;
mod totals;
