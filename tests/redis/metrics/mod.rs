//! Metrics, by Prometheus' exporter: that they are bounded, name no caller, and add up; and that Prometheus, the alert rules and the
//! dashboard read them.

mod collect;
mod guide;
mod leases;
mod policies;
mod promtool;
mod queries;
mod secrets;
mod series;
mod several_limiters;
mod stores;
mod sums;
mod support;
