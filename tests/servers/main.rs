//! What becomes of counts when servers fail, move, are replaced or are stopped: outages, clusters, Sentinel, leases.

#![allow(missing_docs, reason = "tests")]

mod cluster;
mod deployments;
mod faults;
mod leases;
