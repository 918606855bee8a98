//! The admin API: its routes, which clients may call them, and that it tells and logs no secrets.

#![allow(missing_docs)]

#[path = "../common/log.rs"]
mod log;

mod activity;
mod auth;
mod blocks;
mod changes;
mod document;
mod explain;
mod input;
mod leases;
mod openapi;
mod panics;
mod processes;
mod secrets;
mod support;
#[path = "../common/until.rs"]
mod until;
