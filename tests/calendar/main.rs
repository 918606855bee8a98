//! Windows that stand on the calendar, and clocks that don't stand still.

#![allow(missing_docs)]

mod boundaries;
mod config;
mod ended;
mod stale;
mod steps;
mod support;
mod traffic;
