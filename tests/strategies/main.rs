//! What each strategy promises: against the articles' limiters, in random traffic, and while a policy changes.

#![allow(missing_docs)]

#[path = "../common/answers.rs"]
mod answers;
mod any_costs;
#[path = "../common/by.rs"]
mod by;
mod changed_at_will;
mod changed_periods;
mod changed_places;
mod changes;
#[path = "../common/charges.rs"]
mod charges;
mod clocks;
mod cost_model;
mod costs;
mod custom;
mod custom_units;
#[path = "../common/every.rs"]
mod every;
mod formats;
mod gcra_edges;
mod gcra_halves;
mod laps;
mod properties;
mod source_buckets;
mod source_counters;
mod source_lists;
mod sources;
mod stated_costs;
mod support;
mod tiers;
#[path = "../common/world.rs"]
mod world;
