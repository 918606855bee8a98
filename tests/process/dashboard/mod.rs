//! The dashboard in a browser, beside a service that counts on Redis.
mod actions;
mod browser;
mod page;
mod reading;
mod secrets;
mod service;
