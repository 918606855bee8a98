//! Metrics, by Prometheus' exporter: that they are bounded, name no caller and go on; and that Prometheus, the alert rules and the
//! dashboard read them. `observe` holds their figures against those of observers.

mod collect;
mod guide;
mod promtool;
mod queries;
mod secrets;
mod series;
mod several_limiters;
pub(crate) mod support;
