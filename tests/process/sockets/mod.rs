//! Charges and permits over real sockets: gRPC by tonic, whose outcome is known only in the trailers, and WebSockets.
mod browser;
mod grpc;
mod grpc_cut_streams;
mod grpc_deny_list;
pub(crate) mod grpc_peers;
mod grpc_rejected;
mod grpc_served;
mod grpc_streams;
mod grpc_types;
mod grpc_unary;
mod grpc_web;
mod provider_sdks;
mod support;
mod websocket;
