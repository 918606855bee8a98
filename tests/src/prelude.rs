//! The names that most tests use, for a glob import.

pub use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    convert::Infallible,
    env, fs,
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
    pin::Pin,
    process::Stdio,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

pub use axum::{Router, body::Body, response::IntoResponse, routing::get};
pub use futures_util::{FutureExt, future::join_all};
pub use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, request::Parts,
};
pub use http_body_util::BodyExt;
pub use serde_json::{Value, json};
pub use testkit::{Cluster, Proxy, Server, Timers};
pub use tokio::{
    runtime::{Builder, Runtime},
    task::JoinSet,
};
pub use tollgate::{
    Admission, Ban, CalendarWindow, CallError, Concurrency, ConfigError, Decision, FixedWindow,
    Gcra, Key, KeyExtractor, Lease, Limiter, ListWindow, LocalFallback, ManualClock, MemoryStore,
    OnStoreError, OutgoingLayer, Policy, Quota, RateLimitHeaders, RateLimitLayer, RedisStore,
    Rejected, RetryAfter, SlidingLog, SlidingWindow, StoreError, TokenBucket,
    access::{AddressList, KeyList},
    clock::{Timestamp, TokioClock},
    config::{Document, Format, Registry},
    error::InvalidValue,
    extract::{self, MissingKey, PeerAddr},
    limiter::{DecisionKind, Keys, LimiterBuilder, PolicyDecision},
    observe::{DecisionOutcome, DecisionSource, Observer},
    outcome,
    store::{CallersFuture, CounterOp, LimitHandle, Op, Store, StoreResponse},
    strategy::{Rule, Terms, Weekday},
};
pub use tower::{Layer, Service, ServiceBuilder, ServiceExt, service_fn};

pub use crate::{
    load::background_goes_on,
    log::Log,
    results::{Counts, Decided, admitted_by_store, store_error},
    rng::Rng,
    runtimes::{current_thread, multi_thread},
    stores::{self, Built, quota},
    strategy_kind::{Counting, StrategyKind},
    stub_store::StubStore,
    text::assert_contains,
    until::{TEST_TIMEOUT, until},
    world::{Case, KEY, World, ms, secs},
};
