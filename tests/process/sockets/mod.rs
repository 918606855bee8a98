//! Charges and permits over real sockets: gRPC by tonic, whose outcome is known only in the trailers, and WebSockets.
mod browser;
pub(crate) mod grpc;
mod grpc_cut;
mod grpc_outcomes;
pub(crate) mod grpc_peers;
mod grpc_rejected;
mod grpc_served;
mod grpc_types;
mod grpc_web;
mod provider_sdks;
mod support;
mod websocket;
