//! The service as its clients meet it, on a real Redis server.

#[cfg(unix)]
mod client;
#[cfg(unix)]
mod deployments;
#[cfg(unix)]
mod documents;
#[cfg(unix)]
mod faults;
#[cfg(unix)]
mod foreign;
#[cfg(unix)]
mod json;
#[cfg(unix)]
#[path = "../../../tests/src/lateness.rs"]
#[allow(dead_code, unreachable_pub)]
mod lateness;
#[cfg(unix)]
mod limits;
#[cfg(unix)]
mod modes;
#[cfg(unix)]
mod outages;
#[cfg(unix)]
mod ports;
#[cfg(unix)]
mod processes;
#[cfg(unix)]
mod program;
#[cfg(unix)]
mod real_envoy;
#[cfg(unix)]
mod reload;
#[cfg(unix)]
mod scene;
#[cfg(unix)]
mod tls;
mod wire;
