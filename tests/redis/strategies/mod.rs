//! What each strategy promises: against the usual recipes, in random traffic, and while a policy changes.

mod callers;
mod changed_permits;
mod changed_policies;
mod changed_quotas;
mod clocks;
mod costs;
mod custom;
mod custom_units;
mod formats;
mod gcra_expiry;
mod gcra_rights;
mod gcra_slow_path;
mod large_costs;
mod log_blocks;
mod sources;
mod stated_changes;
mod support;
mod tiers;
