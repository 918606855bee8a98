//! Windows that stand on the calendar, and clocks that don't stand still.

mod boundaries;
mod clock_steps;
mod config;
mod ended_windows;
mod stale_clients;
mod support;
mod traffic;
mod wall_clock;
