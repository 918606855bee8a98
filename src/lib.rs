//! Exact rate limits for [tower], axum and tonic: in one process, or across any number of processes on Redis.
//!
//! A [`RateLimitLayer`] wraps any tower service of [`http`] requests. [Policies](Policy) define the limits, [key
//! extractors](extract) identify the caller, [strategies](strategy) define how units are counted, and [stores](store) keep the
//! counts. The [guide] helps to choose among them. The words of these pages are listed under [terms](#terms).
//!
//! ```text
//!  request ──> RateLimitLayer ──> service        OutgoingLayer, handler, job
//!                     │                                    │
//!                     └──────────── Limiter ───────────────┘
//!                                      │  each Policy that applies
//!            KeyExtractor ──> Key      │  what is counted by
//!            Quota + Strategy          │  how much, and how it is counted
//!                                      │
//!                      MemoryStore or RedisStore
//!                                      │
//!                    Admission   or   Rejected (429, Retry-After)
//! ```
//!
//! # The layer
//!
//! ```
//! # #[cfg(not(feature = "axum"))]
//! # fn main() {}
//! # #[cfg(feature = "axum")]
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # use axum::{body::Body, extract::connect_info::MockConnectInfo, http::Request};
//! # use tower::ServiceExt;
//! use axum::{Router, routing::get};
//! use tollgate::{Policy, Quota, RateLimitLayer, extract};
//!
//! let layer = RateLimitLayer::builder()
//!     // Ten requests per second for each client address,
//!     .policy(Policy::new("burst", Quota::requests(10).per_second()))
//!     // and two per day for each route, all clients together. A request that one policy rejects is charged under none.
//!     .policy(Policy::new("daily", Quota::requests(2).per_day()).key(extract::matched_path()))
//!     .build()?;
//! let app: Router = Router::new().route("/", get(async || "hello")).layer(layer);
//!
//! # let app = app.layer(MockConnectInfo(std::net::SocketAddr::from(([192, 0, 2, 1], 4321))));
//! // Three requests.
//! let mut statuses = Vec::new();
//! for _ in 0..3 {
//!     let request = Request::get("/").body(Body::empty())?;
//!     statuses.push(app.clone().oneshot(request).await?.status().as_u16());
//! }
//! assert_eq!(statuses, [200, 200, 429]);
//! # Ok(())
//! # }
//! ```
//!
//! axum reports client addresses if the application is served as `app.into_make_service_with_connect_info::<SocketAddr>()`.
//! [`layer`] describes what happens to a request and its response, and what rejections look like over HTTP and gRPC.
//!
//! # Keys and policies
//!
//! A policy counts by the peer's address unless [`Policy::key`] names another [extractor](extract): a header, a user that a
//! middleware verified, a client behind trusted proxies, several of them together. [`Policy`] has the rest: the strategy, the cost
//! of a request, when it is charged, which requests it applies to.
//!
//! # Redis and several processes
//!
//! With `.store(RedisStore::open("redis://127.0.0.1:6379")?)` any number of processes count together. [`RedisStore`] describes
//! connections, timeouts, Cluster and Sentinel; [`operations`] is about production. [`Policy::lease`] answers requests of hot keys in
//! process, without exceeding the quota.
//!
//! # In handlers and jobs
//!
//! A [`Limiter`] is a set of policies over a store, for keys that only a handler or a job knows. A layer has one too
//! ([`RateLimitLayer::limiter`]), and its [`Rejected`] is the same response.
//!
//! ```
//! use tollgate::{Limiter, Policy, Quota};
//!
//! # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
//! let limiter = Limiter::builder()
//!     .policy(Policy::new("mail", Quota::requests(1).per_hour()))
//!     .build()?;
//! // In a handler, the `?` of `let admission = limiter.admit(&user).await?;` turns a rejection into the response. Bound to a
//! // name, the admission holds the permits of in-flight limits for as long as the work takes.
//! assert!(limiter.admit("alice").await.is_ok());
//! assert!(limiter.admit("bob").await.is_ok());
//!
//! let rejected = limiter.admit("alice").await.unwrap_err();
//! assert!(rejected.to_string().starts_with("quota exceeded: \"mail\"; retry after"));
//! # Ok::<(), tollgate::ConfigError>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Exemptions, access lists, bans and shadow policies
//!
//! | | |
//! |---|---|
//! | [`Policy::skip_path`], [`Policy::only_path`] and other conditions, also of [`LimiterBuilder`] | the requests that one policy, or all, apply to |
//! | [`AddressList`], [`KeyList`] | callers that are [denied](limiter::LimiterBuilder::deny) (403) or [allowed](limiter::LimiterBuilder::allow) without evaluating a policy |
//! | [`Ban`] | blocks a key that is rejected too often, in all processes; [`Limiter::block`] does so by hand |
//! | [`Policy::shadow`] | evaluated and reported, not enforced |
//!
//! # Outgoing calls
//!
//! An [`OutgoingLayer`] wraps clients with any request type. Calls wait for their turn, first come, first served, and are
//! rejected only if they would wait for longer than their timeout. A call holds its permits of in-flight limits until the body of
//! its HTTP response has ended. [`Limiter::wait`] does the same without tower.
//! [`OutgoingLayer::obey`] and [`Provider::heed`](provider::Provider::heed) share among all processes what the responses of a [`provider`] say about its limits.
//!
//! # Without async code
//!
//! [`Check::now`](limiter::Check::now) decides without waiting, and [`Check::blocking`](limiter::Check::blocking) blocks the thread. Neither needs
//! a tokio runtime.
//!
//! # When the store fails
//!
//! In an outage requests are admitted, rejected, or limited in process by a [share](LocalFallback) of each quota, as
//! [`OnStoreError`] says for all policies or for one. While the store is misconfigured they are rejected, unless
//! [`OnMisconfiguration`] says otherwise. [`operations`] describes timeouts, the circuit breaker, and each error.
//!
//! # Watching it
//!
//! An [`Observer`](observe::Observer) receives each decision, call of the store and change of state; [`Limiter::stats`] is the
//! state at one moment. See [`observe`]. [`Limiter::explain`] says how a request would be decided, and why.
//!
//! # Changing limits at run time
//!
//! [`Limiter::reconfigure`] and [`RateLimitLayer::reconfigure`] replace all policies and other settings while requests are served.
//! The store and its counts stay, and [`Changes`] says what becomes of them.
//!
//! ```
//! use tollgate::{Limiter, Policy, Quota};
//!
//! let limiter = Limiter::builder()
//!     .policy(Policy::new("api", Quota::requests(10).per_minute()))
//!     .build()?;
//! let api = Policy::new("api", Quota::requests(20).per_minute());
//! let changes = limiter.reconfigure(Limiter::builder().policy(api))?;
//! assert_eq!(
//!     changes.to_string().trim_end(),
//!     "api: altered: quota 10/min -> 20/min (the used share stays)"
//! );
//! # Ok::<(), tollgate::ConfigError>(())
//! ```
//!
//! # Testing
//!
//! A test gives its limiter a [`MemoryStore`] of its own, on a clock that the test sets:
//!
//! ```
//! use std::time::Duration;
//! use tollgate::{Limiter, ManualClock, MemoryStore, Policy, Quota};
//!
//! # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
//! let clock = ManualClock::default();
//! let limiter = Limiter::builder()
//!     .store(MemoryStore::builder().clock(clock.clone()).build())
//!     .policy(Policy::new("mail", Quota::requests(1).per_hour()))
//!     .build()?;
//! assert!(limiter.admit("alice").await.is_ok());
//! assert!(limiter.admit("alice").await.is_err());
//! clock.advance(Duration::from_secs(3600));
//! assert!(limiter.admit("alice").await.is_ok());
//! # Ok::<(), tollgate::ConfigError>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! - Under `#[tokio::test(start_paused = true)]`, and in tests that call [`Limiter::wait`], give the store a [`TokioClock`].
//! - A request that comes through no socket has no address: insert a [`PeerAddr`] into its extensions or, with axum, add
//!   `MockConnectInfo` as a layer around the limiter's.
//!
//! # Features
//!
//! | feature | default | what it adds |
//! |---|---|---|
//! | `axum` | yes | `ConnectInfo`, `MatchedPath` and `OriginalUri` as keys, [`Admission`] as an extractor, [`Rejected`] as a response |
//! | `redis` | yes | `RedisStore`: counting for any number of processes, on deadpool-redis |
//! | `redis-tls` | no | Redis over TLS, by rustls: `rediss://`, own roots and client certificates |
//! | `tonic` | no | `google.rpc` details in gRPC rejections, [`Rejected`] as a `tonic::Status`, the peers of tonic's connections |
//! | `tonic-tls` | no | the peers of TLS connections that the application accepts itself and hands to tonic; tonic's own TLS needs only `tonic` |
//! | `config` | no | `config::Document`: limits from configuration files, in TOML |
//! | `config-yaml`, `config-json` | no | configuration files in YAML and JSON |
//! | `config-schema` | no | the JSON Schema of configuration files |
//! | `admin` | no | `admin::Admin`: an HTTP API for operators, as an axum router |
//! | `metrics` | no | `metrics::Metrics`: metrics by the `metrics` facade, for Prometheus and others |
//! | `provider-json` | no | refusals in the bodies of providers' responses: `provider::gemini`, `shopify` and `github_graphql` |
//! | `time-zones` | no | a copy of the IANA time zone database for [`CalendarWindow`], for machines without one |
//!
//! Without features, there are the layer, the limiter, and counts in process.
//!
//! # Terms
//!
//! | term | meaning |
//! |---|---|
//! | request | an HTTP request, or one call of [`Limiter::check`] |
//! | key, stored text | what a request is counted by; that in the store |
//! | quota, burst, period, cost, unit | so many units per period, with a burst; a request costs units |
//! | strategy, rule, limit handle | how units are counted; a strategy bound to a quota; a policy's rule as its store knows it |
//! | policy | a named limit: quota, strategy, key extractor, cost, charge mode, conditions |
//! | call by hand | a call of a [`Limiter`] by the application, rather than by a layer |
//! | admit, reject, deny | the policies allow a request; a policy rejects it; a deny list forbids it |
//! | charge, refund, credit, settle | take units; give a charge's units back; add units by hand; correct a charge to the true cost. A dropped request is rolled back by a refund |
//! | override | what an operator has set for one key under one policy: another quota, or an exemption, until an instant or for good |
//! | policy set, entry | the policies in force; one that applies to a request, with its key, cost and quota |
//! | decision, policy decision | the result for a request; for one policy of it: limit, remaining, retry-after, reset-after |
//! | receipt | what was charged where, so that it can be refunded once |
//! | admission | a handler's handle to its request's decisions, charges and permits |
//! | snapshot, state format | a key's state as read from the store; the version of its encoding, two characters in every key |
//! | enforced policy, live policy | one that rejects requests, also a ban; an enforced policy that is no ban |
//! | shadow policy, ban | evaluated and reported, not enforced; blocks a key that is rejected too often |
//! | permit, permit TTL, heartbeat | one slot of an in-flight limit; how long it lives without renewal; its renewal |
//! | store, op, counter op | keeps the counts; an operation for one request; its part for one policy |
//! | IO thread, actor | one thread for each process, `tollgate`, which does the IO of all stores on Redis; the task there that does that of one store |
//! | node, lane, inbox | a server of a store; the requests whose keys share a server or, on a cluster, a slot, in their order; where threads push them |
//! | batch, call, in flight, pending request | the requests of one script call; a command that is sent to a server; sent and not answered; queued or sent |
//! | lease | units of a hot key that a process charges ahead of need, and spends in process |
//! | rejection cache, staleness | remembered rejections; how old one may be |
//! | circuit breaker, probe | stops calls to a store that failed; a background call that finds out whether it responds |
//! | local fallback, share | limiting in process while the store fails; the part of a quota that one process has then |
//! | queue, attempt | the requests that wait for the same keys in [`Limiter::wait`]; a call of the store by one of them |
//! | provider, feedback, refusal | a service that outgoing calls go to; what one of its responses says about its limits; that it refused the call |
//! | hash tag, slot map, redirect | Redis Cluster, as its documentation and redis-rs call them |
//! | timeout, deadline | a `Duration`; an `Instant` |
//!
//! [tower]: https://docs.rs/tower
//! [`AddressList`]: access::AddressList
//! [`Changes`]: changes::Changes
//! [`KeyList`]: access::KeyList
//! [`LimiterBuilder`]: limiter::LimiterBuilder
//! [`OnMisconfiguration`]: limiter::OnMisconfiguration
//! [`PeerAddr`]: extract::PeerAddr
//! [`TokioClock`]: clock::TokioClock
#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod access;
#[cfg(feature = "admin")]
pub mod admin;
pub mod changes;
pub mod clock;
#[cfg(feature = "config")]
pub mod config;
pub mod error;
pub mod explain {
    //! The decision that a request would get, and why: the result of [`Limiter::explain`](crate::Limiter::explain).

    pub use crate::limiter::explain::{Explain, ExplainedPolicy, Explanation, NotApplied};
    pub use crate::policy::skip::Exemption;
}
pub mod extract;
pub mod guide;
pub mod layer;
pub mod limiter;
#[cfg(feature = "metrics")]
pub mod metrics;
pub mod observe;
#[doc = include_str!("../docs/operations.md")]
pub mod operations {}
pub mod outcome;
pub mod outgoing;
pub mod provider;
pub mod settings {
    //! The settings of a [`Policy`](crate::Policy) as values, for code that sets them from another form, such as a document.

    pub use crate::{
        policy::{
            charging::{Charge, OutcomeFn},
            cost::{Cost, CostFn, CostRule},
            quotas::{QuotaByRequest, QuotaFn, TierFn},
            skip::{ConditionFn, Conditions, path::PathPattern},
        },
        quota::QuotaWithoutPeriod,
        respond::RejectionText,
        shared_fn::SharedFn,
    };
}
#[cfg(feature = "redis")]
pub mod redis;
pub mod store;
pub mod strategy;

#[cfg(all(fuzzing, feature = "redis"))]
#[doc(hidden)]
pub mod fuzzing {
    //! Internal functions that fuzz targets call.

    pub use crate::redis::testing::{other_reply, script_reply};
}

mod address;
mod background;
mod differences;
mod file;
mod headers;
#[cfg(any(feature = "axum", feature = "tonic"))]
mod integrations;
mod key;
mod log;
mod policy;
mod quota;
mod random;
mod rejections;
mod respond;
mod runtime;
#[cfg_attr(
    not(feature = "config"),
    allow(dead_code, reason = "documents alone have keys as texts")
)]
mod scan;
mod shared_fn;
mod sync;

#[cfg(feature = "redis")]
#[doc(inline)]
pub use self::redis::RedisStore;
#[doc(inline)]
pub use self::{
    clock::ManualClock,
    error::{call::CallError, config::ConfigError, store::StoreError},
    extract::extractor::KeyExtractor,
    headers::RateLimitHeaders,
    key::Key,
    layer::layer::RateLimitLayer,
    limiter::{admission::Admission, current::Limiter, decision::Decision, rejected::Rejected},
    outgoing::layer::OutgoingLayer,
    policy::{
        Policy,
        on_store_error::{LocalFallback, OnStoreError},
    },
    quota::Quota,
    store::memory::MemoryStore,
    strategy::{
        ban::Ban,
        concurrency::Concurrency,
        lease::Lease,
        rate::{gcra::Gcra, token_bucket::TokenBucket},
        rule::types::RetryAfter,
        window::{
            calendar_window::CalendarWindow, fixed_window::FixedWindow, list_window::ListWindow,
            sliding_log::SlidingLog, sliding_window::SlidingWindow,
        },
    },
};

/// The README's programs are tests.
#[cfg(all(doctest, feature = "axum", feature = "config", feature = "redis"))]
#[doc = include_str!("../README.md")]
struct Readme;
