//! What most tests import.

pub use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    convert::Infallible,
    env, fs,
    net::{IpAddr, SocketAddr},
    pin::Pin,
    process::Stdio,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

pub use axum::Router;
pub use futures_util::{FutureExt, future::join_all};
pub use http::{Method, Request, Response, StatusCode, request::Parts};
pub use http_body_util::BodyExt;
pub use serde_json::{Value, json};
pub use testkit::Server;
pub use tokio::{
    runtime::{Builder, Runtime},
    task::JoinSet,
};
pub use tollgate::{
    Admission, Ban, CalendarWindow, CallError, Concurrency, Decision, FixedWindow, Gcra, Key,
    Lease, Limiter, ListWindow, LocalFallback, ManualClock, MemoryStore, OnStoreError,
    OutgoingLayer, Policy, Quota, RateLimitHeaders, RateLimitLayer, RedisStore, Rejected,
    RetryAfter, SlidingLog, SlidingWindow, StoreError, TokenBucket,
    access::{AddressList, KeyList},
    clock::{Timestamp, TokioClock},
    error::InvalidValue,
    extract::{self, MissingKey},
    limiter::{DecisionKind, Keys, LimiterBuilder, PolicyDecision},
    observe::{DecisionOutcome, DecisionSource, Observer},
    outcome,
    store::{CallersFuture, CounterOp, LimitHandle, Op, Store, StoreResponse},
    strategy::{Rule, Terms, Weekday},
};
pub use tower::{Layer, ServiceBuilder, ServiceExt, service_fn};

pub use crate::{
    results::{admitted_by_store, store_error},
    rng::Rng,
    runtime::current_thread,
    scene::Case,
    stores,
    strategy_kind::{Counting, StrategyKind},
    stub_store::StubStore,
    until::{TEST_TIMEOUT, until},
    world::{KEY, World, ms, secs},
};
