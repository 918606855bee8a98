//! A guide to choosing limits, page by page.
//!
//! Each page begins with what the reader decides there. Its programs are compiled, and their assertions run as tests.
//!
//! - [`strategies`]: which strategy counts a quota, and what each admits at a window's edge.
//! - [`proxies`]: which address a request is counted by behind nginx, Envoy, Cloudflare, Fly and the load balancers of AWS.
//! - [`logins`]: limits on wrong passwords that lock attackers out, and not the owners of accounts.
//! - [`paid_calls`]: reserving and settling the cost of calls, such as an LLM's tokens.

#[doc = include_str!("../docs/guide/strategies.md")]
pub mod strategies {}

#[doc = include_str!("../docs/guide/proxies.md")]
pub mod proxies {}

#[doc = include_str!("../docs/guide/logins.md")]
pub mod logins {}

#[doc = include_str!("../docs/guide/paid-calls.md")]
pub mod paid_calls {}
