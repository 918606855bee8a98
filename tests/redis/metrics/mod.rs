//! Metrics, by Prometheus' exporter: that they are bounded and go on; and that Prometheus, the alert rules and the
//! dashboard read them. `observe` holds their figures against those of observers; `admin` shows that they name no caller.

mod collect;
mod guide;
mod promtool;
mod queries;
mod series;
mod several_limiters;
pub(crate) mod support;
