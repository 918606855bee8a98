//! The admin API: its routes, which clients may call them, and that it tells and logs no secrets.

mod activity;
mod auth;
mod blocks;
mod changes;
mod document;
mod explain;
mod health;
mod input;
mod leases;
mod openapi;
mod overrides;
mod panics;
mod secrets;
mod support;
