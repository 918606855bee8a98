//! A rate limit service for Envoy and any other client of its protocol, on [`tollgate`].
//!
//! - [`rules`]: the rules of a domain, a tree of descriptors; what documents are read into and requests are matched against.
//! - [`document`]: reads and writes documents.
//! - [`engine`]: decides requests by the rules, on a [`tollgate::Limiter`].
//! - [`proto`]: the protocol's messages.
//! - [`serve`]: the server, with the settings of [`options`] and the certificates of [`tls`]; [`reload`] replaces its rules and
//!   certificates.
//! - [`commands`]: the program's commands on documents.

pub mod commands;
pub mod document;
pub mod engine;
mod grpc;
mod json;
pub mod options;
mod port;
mod program;
pub mod proto;
pub mod reload;
pub mod rules;
pub mod serve;
pub mod tls;
mod web;

pub use program::main;
