//! Windows that stand on the calendar, and clocks that don't stand still.

#![allow(missing_docs)]

mod boundaries;
mod config;
mod ended;
#[path = "../common/hands.rs"]
mod hands;
mod stale;
mod steps;
mod support;
mod traffic;
mod wall_clock;
