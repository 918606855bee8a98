//! The admin API: its routes, which clients may call them, and that it tells and logs no secrets.

mod activity;
mod auth;
mod blocks;
mod document;
mod explain;
mod health;
mod input;
mod keys;
mod openapi;
mod overrides;
mod secrets;
pub(crate) mod support;
