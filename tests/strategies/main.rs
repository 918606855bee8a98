//! What each strategy promises: against the articles' limiters, in random traffic, and while a policy changes.

#![allow(missing_docs)]

mod any_costs;
mod changed_periods;
mod changed_permits;
mod changed_policies;
mod changed_quotas;
#[path = "../common/charges.rs"]
mod charges;
mod clocks;
mod cost_model;
mod costs;
mod custom;
mod custom_units;
#[path = "../common/every_policy.rs"]
mod every_policy;
mod formats;
mod gcra_expiry;
mod gcra_fast_path;
mod gcra_slow_path;
mod properties;
#[path = "../common/results.rs"]
mod results;
mod source_buckets;
mod source_counters;
mod source_lists;
mod sources;
mod stated_changes;
mod stated_costs;
#[path = "../common/strategy_kind.rs"]
mod strategy_kind;
mod support;
mod tiers;
#[path = "../common/world.rs"]
mod world;
