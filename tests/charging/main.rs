//! When a policy charges, and what is refunded: charge modes, settling, charged rejections, tiers.
#![allow(missing_docs)]

mod ban;
mod ban_by_hand;
mod ban_states;
mod calls;
mod charged_rejections;
#[path = "../common/charges.rs"]
mod charges;
mod closures;
mod credits;
#[path = "../common/every_policy.rs"]
mod every_policy;
mod layers;
mod ledger;
mod meters;
mod modes;
mod ocr;
mod outcomes;
mod refunds;
mod request_ends;
#[path = "../common/results.rs"]
mod results;
mod servers;
mod settle;
mod settle_each;
mod settle_responses;
mod shadow;
mod shadow_charges;
#[path = "../common/strategy_kind.rs"]
mod strategy_kind;
mod support;
mod tiers;
#[path = "../common/world.rs"]
mod world;
