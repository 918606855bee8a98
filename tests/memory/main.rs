//! The layer as a web application meets it, configuration documents, and what a decision allocates: what needs no server.

#![allow(missing_docs, reason = "tests")]

mod allocations;
mod documents;
mod http;
