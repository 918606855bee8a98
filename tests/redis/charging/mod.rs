//! When a policy charges, and what is refunded: by outcome, by hand, by a settlement, for a rejection.
mod bans;
mod calls;
mod closures;
mod layers;
mod ledger;
mod meters;
mod outcomes;
mod rejections;
mod settle;
mod settle_responses;
mod shadow;
mod support;
