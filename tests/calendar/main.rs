//! Windows that stand on the calendar, and clocks that don't stand still.

#![allow(missing_docs)]

mod boundaries;
mod clock_steps;
mod config;
mod ended_windows;
mod stale_clients;
mod support;
mod traffic;
#[path = "../common/two_clocks.rs"]
mod two_clocks;
mod wall_clock;
