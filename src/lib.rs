//! Exact rate limits for [tower], axum and tonic: in one process, or across any number of them on Redis.
//!
//! A [`RateLimitLayer`] goes around any tower service that speaks [`http`]. [Policies](Policy) say how much may pass,
//! [extractors](extract) whose request it is, [strategies](strategy) how it is counted and [stores](store) where.
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
//!     // Ten a second for each client address,
//!     .policy(Policy::new("burst", Quota::requests(10).per_second()))
//!     // and two a day on each route, all clients together. A request that one rejects is charged under none.
//!     .policy(Policy::new("daily", Quota::requests(2).per_day()).key(extract::matched_path()))
//!     .build()?;
//! let app: Router = Router::new().route("/", get(async || "hello")).layer(layer);
//!
//! # let app = app.layer(MockConnectInfo(std::net::SocketAddr::from(([192, 0, 2, 1], 4321))));
//! // Three requests, by whatever sends them.
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
//! So that axum knows its clients' addresses, it is served as
//! `app.into_make_service_with_connect_info::<SocketAddr>()`. On Redis, for any number of processes, it is the same
//! with one line more: `.store(RedisStore::open("redis://127.0.0.1:6379")?)`.
//!
//! [`layer`] says what happens to a request and its response, and what a rejection looks like over HTTP and gRPC.
//!
//! # Without HTTP
//!
//! A [`Limiter`] is policies over a store, for keys that only a handler or a job knows. A layer has one too
//! ([`RateLimitLayer::limiter`]), and the [`Rejected`] that it returns is the same response.
//!
//! ```
//! use tollgate::{Limiter, Policy, Quota};
//!
//! # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
//! let limiter = Limiter::builder()
//!     .policy(Policy::new("mail", Quota::requests(1).per_hour()))
//!     .build()?;
//! // In a handler, `let admission = limiter.admit(&user).await?;` answers a rejected request. Bound to a name, it holds the
//! // permits of in-flight limits for as long as the work takes.
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
//! | | what it does |
//! |---|---|
//! | [`Policy::skip_path`], [`Policy::only_path`] and their likes, also of [`LimiterBuilder`] | says which requests one policy applies to, or all |
//! | [`AddressList`], [`KeyList`] | clients that are [denied](LimiterBuilder::deny), 403, or [allowed](LimiterBuilder::allow) whatever the policies say |
//! | [`Ban`] | blocks keys that are rejected too often, in all processes; [`Limiter::block`] does it by hand |
//! | [`Policy::shadow`], [`Policy::shadow_of`] | evaluated and reported, not enforced |
//!
//! # Outgoing calls
//!
//! An [`OutgoingLayer`] goes around clients, whatever their requests are. It rejects only requests that would wait
//! for longer than the timeout; all others get their turn, first come, first served. See [`outgoing`]; [`Limiter::wait`]
//! does the same without tower.
//!
//! # When the store fails
//!
//! [`OnStoreError`] says what happens in an outage, for all policies or for one: requests pass, are rejected, or are limited in
//! process by a [share](LocalFallback) of each quota. While the store is misconfigured they are rejected, unless
//! [`OnMisconfiguration`] says otherwise. Timeouts, the circuit breaker, and what is done about each error are in [`operations`].
//!
//! # Testing
//!
//! In tests a limiter counts in a [`MemoryStore`] of its own, on a clock that the test sets:
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
//! - Under `#[tokio::test(start_paused = true)]`, and wherever [`Limiter::wait`] is called, the clock is a [`TokioClock`].
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
//! | `tonic-tls` | no | the peers of tonic's connections under TLS |
//! | `time-zones` | no | a copy of the IANA time zone database for [`CalendarWindow`], for machines without one |
//!
//! Without any, the layer and the limiter count in process.
//!
//! [tower]: https://docs.rs/tower
#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod extract;
pub mod layer;
#[doc = include_str!("../docs/operations.md")]
pub mod operations {}
pub mod outcome;
pub mod outgoing;
pub mod store;
pub mod strategy;

#[cfg(all(fuzzing, feature = "redis"))]
#[doc(hidden)]
pub mod fuzzing {
    //! Doors for fuzz targets to what no caller reaches.

    pub use crate::store::redis::testing::{other_reply, script_reply};
}

mod access;
mod admission;
mod charge;
mod clock;
mod decision;
mod error;
mod integrations;
mod key;
mod limiter;
mod log;
mod policy;
mod quota;
mod random;
mod respond;
mod sync;

pub use access::{AccessList, AddressList, KeyList, OnUnknownAddress};
pub use admission::{
    Admission, PermitGuard, Rejected, meter::UnitMeter, policy_admission::PolicyAdmission,
    settle::SettleError,
};
pub use clock::{Clock, ManualClock, SystemClock, Timestamp, TokioClock};
/// The connection pool of [`RedisStore`], in the version that this crate uses.
#[cfg(feature = "redis")]
pub use deadpool_redis;
pub use decision::{Decision, DecisionKind, PolicyDecision, Refund};
pub use error::{CallError, ConfigError, InvalidValue, StoreError, UnknownPolicy};
#[doc(inline)]
pub use extract::{KeyExtractor, MissingKey, PeerAddr};
#[cfg(feature = "axum")]
pub use integrations::axum::MissingAdmission;
pub use key::Key;
#[doc(inline)]
pub use layer::{RateLimit, RateLimitLayer};
pub use limiter::{
    Check, CheckFuture, Credit, CreditFuture, Credited, Keys, LimitStatus, Limiter, LimiterBuilder,
    PolicyHandle, ShadowStats, ShutdownError, Wait, WaitFuture,
};
#[doc(inline)]
pub use outcome::Outcome;
#[doc(inline)]
pub use outgoing::OutgoingLayer;
pub use policy::{
    Cost, Policy,
    on_store_error::{LocalFallback, OnMisconfiguration, OnStoreError},
};
pub use quota::{ParseQuotaError, Quota, QuotaWithoutPeriod};
pub use respond::{RateLimitHeaders, exposed_headers};
#[doc(inline)]
pub use store::DecisionSource;
#[doc(inline)]
pub use store::health::{HealthIssue, HealthReport};
#[doc(inline)]
pub use store::memory::{MemoryStore, MemoryStoreBuilder};
#[cfg(feature = "redis")]
#[doc(inline)]
pub use store::redis::{RedisStore, RedisStoreBuilder};
#[doc(inline)]
pub use strategy::{
    Ban, CalendarWindow, Concurrency, FixedWindow, Gcra, ListWindow, RetryAfter, SlidingLog,
    SlidingWindow, Strategy, TokenBucket, Weekday,
};

/// The README's programs are tests.
#[cfg(all(doctest, feature = "axum", feature = "redis"))]
#[doc = include_str!("../README.md")]
struct Readme;
