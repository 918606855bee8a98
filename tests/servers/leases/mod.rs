//! Leases on real servers: never over the quota, whatever becomes of processes and servers, and nothing of it lost.

mod checker;
mod cluster;
mod ended_runtimes;
mod ends;
mod exhausted;
mod handlers;
mod holder;
mod last_instant;
mod never_over;
mod one_more_burst;
mod outages;
mod processes;
mod remaining;
mod several;
mod shutdown;
mod steady;
mod stopped;
use tollgate_tests::strategy_kind;
mod support;
mod traffic;
use tollgate_tests::until;
