//! What most tests import.

pub use std::{
    convert::Infallible,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

pub use futures_util::{FutureExt, future::join_all};
pub use http::{Method, Request, Response, StatusCode, request::Parts};
pub use serde_json::{Value, json};
pub use testkit::Server;
pub use tokio::task::JoinSet;
pub use tollgate::{
    Admission, Ban, CalendarWindow, CallError, Concurrency, Decision, FixedWindow, Gcra, Key,
    Limiter, ListWindow, ManualClock, MemoryStore, OnStoreError, Policy, Quota, RateLimitLayer,
    RedisStore, Rejected, RetryAfter, SlidingLog, SlidingWindow, StoreError, TokenBucket,
    clock::Timestamp,
    extract,
    limiter::{DecisionKind, Keys, LimiterBuilder},
    observe::DecisionSource,
    outcome,
    store::Store,
};
pub use tower::{Layer, ServiceExt, service_fn};

pub use crate::{
    results::{admitted_by_store, store_error},
    rng::Rng,
    runtime::current_thread,
    scene::Case,
    strategy_kind::{Counting, StrategyKind},
    stub_store::StubStore,
    until::{TEST_TIMEOUT, until},
    world::{KEY, World, ms, secs},
};
