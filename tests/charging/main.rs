//! When a policy charges, and what is given back: charge modes, settling, refusals that count, tiers.
#![allow(missing_docs)]
#![cfg(feature = "redis")]

#[path = "../common/answers.rs"]
mod answers;
mod ban;
#[path = "../common/by.rs"]
mod by;
mod denied;
mod ledger;
mod modes;
mod ocr;
mod settle;
mod shadow;
mod support;
mod tiers;
#[path = "../common/world.rs"]
mod world;
