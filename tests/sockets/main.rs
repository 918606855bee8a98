//! Charges and permits over real sockets: gRPC by tonic, whose outcome is known only in the trailers, and WebSockets.
#![allow(missing_docs)]

mod browser;
#[path = "../common/chromium.rs"]
mod chromium;
#[path = "../common/counting_clock.rs"]
mod counting_clock;
mod grpc;
mod grpc_cut_streams;
#[cfg(feature = "tonic")]
mod grpc_deny_list;
#[cfg(feature = "tonic")]
mod grpc_peers;
#[cfg(feature = "tonic")]
mod grpc_rejected;
mod grpc_served;
mod grpc_streams;
mod grpc_types;
mod grpc_unary;
mod grpc_web;
mod support;
#[path = "../common/until.rs"]
mod until;
mod websocket;
