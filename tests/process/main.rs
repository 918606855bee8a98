//! The programs as their users start them: examples, the dashboard in a browser, reloads, gRPC and WebSockets.

#![allow(missing_docs, reason = "tests")]

mod config_reload;
mod dashboard;
mod examples;
mod forked;
mod overrides;
mod sockets;
