//! The dashboard in a browser, beside a service that counts on Redis.
#![allow(missing_docs)]

mod actions;
mod browser;
#[path = "../common/chromium.rs"]
mod chromium;
mod config;
mod page;
#[path = "../common/plain_http.rs"]
mod plain_http;
mod reading;
mod secrets;
mod service;
mod usability;
