//! What operators ask of a limiter: how a request would be decided, and why.
#![allow(missing_docs)]

mod blocks;
mod generate;
mod leases;
#[path = "../common/log.rs"]
mod log;
mod reasons;
#[path = "../common/rights.rs"]
mod rights;
#[expect(dead_code, reason = "the soak test waits, too")]
#[path = "../soak/rng.rs"]
mod rng;
mod same_decision;
mod silence;
mod stores;
#[path = "../common/strategy_kind.rs"]
mod strategy_kind;
#[path = "../common/until.rs"]
mod until;
