//! Leases on real servers: never over the quota, whatever becomes of processes and servers, and nothing of it lost.
//!
//! Most tests run in processes of their own, whose clocks stand still until a test sets them: keys have leases at any speed of the
//! machine, and leases end when a test says so. What runs in real time holds without leases, too.

mod checker;
mod cluster;
mod ends;
mod handlers;
mod histories;
mod last_instant;
mod one_more_burst;
mod outages;
mod processes;
mod remaining;
mod shutdown;
mod support;
mod without_await;
