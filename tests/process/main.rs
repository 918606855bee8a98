//! The programs as their users start them: examples, the dashboard in a browser, reloads, gRPC and WebSockets.

#![allow(missing_docs, reason = "tests")]

use std::alloc::System;

use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

/// Counts what all threads allocate.
#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

mod config_reload;
mod dashboard;
mod examples;
mod forked;
mod overrides;
mod sockets;
