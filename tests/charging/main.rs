//! When a policy charges, and what is given back: charge modes, settling, refusals that count, tiers.
#![allow(missing_docs)]

#[path = "../common/answers.rs"]
mod answers;
mod ban;
mod ban_by_hand;
mod ban_states;
#[path = "../common/by.rs"]
mod by;
mod calls;
#[path = "../common/charges.rs"]
mod charges;
mod closures;
mod credits;
mod denied;
mod ends;
#[path = "../common/every.rs"]
mod every;
mod layers;
mod ledger;
mod meters;
mod modes;
mod ocr;
mod outcomes;
mod refunds;
mod servers;
mod settle;
mod settle_each;
mod shadow;
mod shadow_charges;
mod support;
mod tiers;
#[path = "../common/world.rs"]
mod world;
