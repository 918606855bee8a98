//! What each strategy promises beyond the random histories of `differential`: any time, any cost, changed policies, stored bytes,
//! and strategies from outside the crate.

mod changed;
mod clocks;
mod custom;
mod formats;
mod gcra;
mod large_costs;
mod support;
mod tiers;

pub(crate) use support::Altered;
