//! The programs as their users start them: examples, documents, the dashboard in a browser, reloads, gRPC and WebSockets.

#![allow(missing_docs, reason = "tests")]

mod config_reload;
mod dashboard;
mod examples;
mod printed;
mod sockets;
