//! The dashboard in a browser, beside a service that counts on Redis.
mod actions;
mod browser;
use tollgate_tests::chromium;
mod config;
mod page;
use tollgate_tests::plain_http;
mod reading;
mod secrets;
mod service;
mod usability;
