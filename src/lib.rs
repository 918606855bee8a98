//! Exact rate limits for [tower], axum and tonic: in one process, or across any number of them on Redis.
//!
//! [tower]: https://docs.rs/tower
#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod extract;
pub mod layer;
pub mod outcome;
pub mod store;
pub mod strategy;

mod admission;
#[cfg(feature = "axum")]
mod axum;
mod charge;
mod clock;
mod decision;
mod error;
mod key;
mod limiter;
mod log;
mod policy;
mod quota;
mod respond;
mod settle;

#[cfg(feature = "axum")]
pub use self::axum::MissingAdmission;
pub use admission::{Admission, Hold, Refused};
pub use charge::{Charge, Denied};
pub use clock::{Clock, ManualClock, SystemClock, Timestamp};
pub use decision::{Decision, Ruling, Source, Verdict};
pub use error::{ConfigError, StoreError, Unfit};
pub use extract::PeerAddr;
pub use key::Key;
pub use layer::{RateLimit, RateLimitLayer};
pub use limiter::{Check, Checking, Keys, Limiter, LimiterBuilder, OnStoreError};
pub use policy::{Cost, MissingKey, Policy};
pub use quota::{ParseQuotaError, Quota, Requests};
pub use settle::Settle;
pub use store::memory::{MemoryStore, MemoryStoreBuilder};
#[cfg(feature = "redis")]
pub use store::redis::{RedisStore, RedisStoreBuilder};
pub use strategy::{
    CalendarWindow, Concurrency, FixedWindow, Gcra, ListWindow, Retry, SlidingLog, SlidingWindow,
    TokenBucket, Weekday,
};
