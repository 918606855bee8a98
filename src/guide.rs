//! A guide to choosing limits, page by page.
//!
//! Each page begins with what the reader decides there. Its programs are compiled, and their assertions run as tests.
//!
//! - [`strategies`]: which strategy counts a quota, and what each admits at a window's edge.
//! - [`proxies`]: which address a request is counted by behind nginx, Envoy, Cloudflare, Fly and the load balancers of AWS.
//! - [`logins`]: limits on wrong passwords that lock attackers out, and not the owners of accounts.
//! - [`envoy`]: limits in front of a service, by `tollgate-server`, and from other languages.
//! - [`tiers`]: quotas by the caller's plan, and what becomes of a count when the plan changes.
//! - [`recipes`]: one layer or several, ways to another quota, gRPC, WebSockets, UDP, batches.
//! - [`paid_calls`]: reserving and settling the cost of calls, such as an LLM's tokens.
//! - [`outgoing`]: calling services that limit you, and obeying what their responses say.
//! - `hot_keys` (feature `redis`): answering thousands of requests of one key in process, by leases, without exceeding the quota.
//! - `without_await` (feature `redis`): limits in code that is not async: thread pools, plain threads, synchronous servers.
//! - [`processes_and_outages`]: what processes on one Redis share, and what happens to a request while it does not answer.
//! - [`production`]: a checklist before the first deployment, and what to do during an incident.
//! - [`testing`]: testing limits with a clock and no Redis, and where to begin with a part of your own.
//! - [`migration`]: from tower_governor, governor and tower's `RateLimit`.
//! - [`migration_from_counters`]: from counters on Redis, flask-limiter and express-rate-limit.

// Only rustdoc reads the pictures: the program that draws them is built on this crate.
#[doc = include_str!("../docs/guide/strategies.md")]
#[doc = ""]
#[doc = include_str!("guide/pictures.html")]
#[doc = ""]
#[cfg_attr(doc, doc = include_str!("../docs/images/strategies-light.svg"))]
#[doc = ""]
#[cfg_attr(doc, doc = include_str!("../docs/images/window-edge-light.svg"))]
pub mod strategies {}

#[doc = include_str!("../docs/guide/proxies.md")]
pub mod proxies {}

#[doc = include_str!("../docs/guide/logins.md")]
pub mod logins {}

#[doc = include_str!("../docs/guide/envoy.md")]
pub mod envoy {}

#[doc = include_str!("../docs/guide/tiers.md")]
pub mod tiers {}

#[doc = include_str!("../docs/guide/recipes.md")]
#[cfg(feature = "axum")]
pub mod recipes {}

#[doc = include_str!("../docs/guide/paid-calls.md")]
pub mod paid_calls {}

#[doc = include_str!("../docs/guide/outgoing.md")]
pub mod outgoing {}

#[cfg(feature = "redis")]
#[doc = include_str!("../docs/guide/hot-keys.md")]
pub mod hot_keys {}

#[cfg(feature = "redis")]
#[doc = include_str!("../docs/guide/without-await.md")]
pub mod without_await {}

#[cfg(feature = "redis")]
#[doc = include_str!("../docs/guide/processes-and-outages.md")]
#[doc = ""]
#[doc = include_str!("guide/pictures.html")]
#[doc = ""]
#[cfg_attr(doc, doc = include_str!("../docs/images/cache-and-batches-light.svg"))]
#[doc = ""]
#[cfg_attr(doc, doc = include_str!("../docs/images/outage-light.svg"))]
pub mod processes_and_outages {}

#[doc = include_str!("../docs/guide/production.md")]
pub mod production {}

#[cfg(feature = "redis")]
#[doc = include_str!("../docs/guide/testing.md")]
pub mod testing {}

#[doc = include_str!("../docs/guide/migration.md")]
pub mod migration {}

#[cfg(feature = "redis")]
#[doc = include_str!("../docs/guide/migration-from-counters.md")]
pub mod migration_from_counters {}
