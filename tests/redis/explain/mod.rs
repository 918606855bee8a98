//! What operators ask of a limiter: how a request would be decided, and why.

mod blocks;
mod generate;
mod leases;
mod reasons;
mod same_decision;
mod silence;
mod stores;
