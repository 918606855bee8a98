//! What operators ask of a limiter: how a request would be decided, and why.
mod blocks;
mod generate;
mod leases;
use tollgate_tests::log;
mod reasons;
use tollgate_tests::rights;
use tollgate_tests::rng;
mod same_decision;
mod silence;
mod stores;
use tollgate_tests::strategy_kind;
use tollgate_tests::until;
