//! What these tests have in common.

use std::{fmt::Debug, sync::Arc};

use axum::{Router, body::Body, routing::get};
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::BodyExt;
use serde_json::Value;
use tollgate::{
    InvalidValue, Key, Limiter, LimiterBuilder, ManualClock, MemoryStore, Policy, Quota,
    RateLimitLayer, StoreError, Timestamp, extract,
    store::{CallersFuture, CounterOp, LimitHandle, Op, Store, StoreResponse},
    strategy::Rule,
};
use tower::{Service, ServiceExt};

/// A response, read to its end.
#[derive(Debug, PartialEq)]
pub(crate) struct TestResponse {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Vec<u8>,
}

impl TestResponse {
    /// A field, all of its lines as one list (RFC 9110, 5.3).
    pub(crate) fn field(&self, name: &str) -> Option<String> {
        let lines = self.headers.get_all(name).into_iter();
        let lines: Vec<_> = lines.map(|line| line.to_str().expect("ASCII")).collect();
        (!lines.is_empty()).then(|| lines.join(", "))
    }

    /// `Retry-After` in seconds.
    pub(crate) fn retry_after(&self) -> Option<u64> {
        let seconds = self.field("retry-after")?;
        Some(seconds.parse().expect("a whole number of seconds"))
    }

    /// Every `t` in `RateLimit`, in order.
    pub(crate) fn resets(&self) -> Vec<u64> {
        let list = self.field("ratelimit").unwrap_or_default();
        let times = list.split([';', ',']).filter_map(|p| p.strip_prefix("t="));
        times.map(|t| t.parse().expect("an integer")).collect()
    }

    /// Sees to the fields that each problem has.
    #[track_caller]
    pub(crate) fn is_problem_that_no_cache_stores(&self) {
        let media_type = self.field("content-type");
        assert_eq!(media_type.as_deref(), Some("application/problem+json"));
        assert_eq!(self.field("cache-control").as_deref(), Some("no-store"));
        let length = self.body.len().to_string();
        assert_eq!(self.field("content-length"), Some(length));
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).expect("a JSON body")
    }
}

/// Sends a request through `service`, which is polled ready first, as servers do.
pub(crate) async fn send<S, B>(service: &S, request: Request<Body>) -> TestResponse
where
    S: Service<Request<Body>, Response = Response<B>, Error: Debug> + Clone,
    B: http_body::Body<Error: Debug>,
{
    let response = service.clone().oneshot(request).await.expect("no error");
    let (head, body) = response.into_parts();
    let body = body.collect().await.expect("a body").to_bytes();
    TestResponse {
        status: head.status,
        headers: head.headers,
        body: body.to_vec(),
    }
}

/// The status of the response to a plain GET.
pub(crate) async fn status<S, B>(service: &S, uri: &str) -> u16
where
    S: Service<Request<Body>, Response = Response<B>, Error: Debug> + Clone,
    B: http_body::Body<Error: Debug>,
{
    send(service, to(uri)).await.status.as_u16()
}

/// A GET of `uri`.
pub(crate) fn to(uri: &str) -> Request<Body> {
    Request::get(uri).body(Body::empty()).expect("a request")
}

/// A request for `/` with a header.
pub(crate) fn with(name: &str, value: impl AsRef<[u8]>) -> Request<Body> {
    let request = Request::get("/").header(name, value.as_ref());
    request.body(Body::empty()).expect("a request")
}

/// `GET /` responds with hello, behind `layer`.
pub(crate) fn hello(layer: &RateLimitLayer) -> Router {
    let route = get(async || "hello");
    Router::new().route("/", route).layer(layer.clone())
}

/// A policy that counts all clients together.
pub(crate) fn shared(name: &str, quota: &str) -> Policy {
    Policy::new(name, quota.parse::<Quota>().expect(quota)).key(extract::global())
}

/// A layer of these policies, counting in process on a clock that only moves when it is set.
pub(crate) fn layer(policies: impl IntoIterator<Item = Policy>) -> (RateLimitLayer, ManualClock) {
    let (store, clock) = store();
    let builder = RateLimitLayer::builder().store(store);
    let builder = policies.into_iter().fold(builder, |b, p| b.policy(p));
    (builder.build().expect("a layer"), clock)
}

pub(crate) fn store() -> (MemoryStore, ManualClock) {
    let clock = ManualClock::at(Timestamp::from_micros(1_800_000_000_000_000));
    let store = MemoryStore::builder().clock(clock.clone()).build();
    (store, clock)
}

/// A limiter on each store that is compiled in, and the server that its store is on.
pub(crate) fn on_each_store(
    build: impl Fn(LimiterBuilder) -> LimiterBuilder,
) -> Vec<(Limiter, Option<testkit::Server>)> {
    let limiter = |builder| build(builder).build().expect("a limiter");
    let memory = limiter(Limiter::builder().store(store().0));
    let mut limiters = vec![(memory, None)];
    {
        let server = testkit::Server::start();
        let on_redis = limiter(Limiter::builder().store(redis(&server)));
        limiters.push((on_redis, Some(server)));
    }
    limiters
}

/// A store that fails every request.
#[derive(Clone, Debug)]
pub(crate) struct FailingStore(MemoryStore, StoreError);

impl Store for FailingStore {
    fn register(&self, policy: &str, rule: Arc<dyn Rule>) -> Result<LimitHandle, InvalidValue> {
        self.0.register(policy, rule)
    }

    fn execute(&self, _: Op, _: &[CounterOp<'_>]) -> StoreResponse {
        StoreResponse::Ready(Err(self.1.clone()))
    }

    fn callers(&self, _: &LimitHandle, _: &Key) -> CallersFuture {
        Box::pin(std::future::ready(Err(self.1.clone())))
    }

    fn execute_detached(&self, _: Op, _: &[CounterOp<'_>]) {}
}

impl FailingStore {
    pub(crate) fn with(error: StoreError) -> Self {
        Self(MemoryStore::default(), error)
    }
}

impl Default for FailingStore {
    fn default() -> Self {
        Self::with(StoreError::Connection("127.0.0.1:1: refused".into()))
    }
}

/// A store on `server` with a timeout for a busy machine: these tests are not about time.
pub(crate) fn redis(server: &testkit::Server) -> tollgate::RedisStore {
    // Rejections are cached by this process's clock, and only the server's is set.
    let store = tollgate::RedisStore::builder()
        .url(server.url())
        .rejection_cache_staleness(std::time::Duration::ZERO);
    let store = store.timeout(std::time::Duration::from_secs(20)).build();
    store.expect("a store")
}

/// How many units of `policy` are used under `key`.
pub(crate) async fn used(limiter: &Limiter, policy: &str, key: Key) -> u64 {
    let seen = limiter
        .peek([(policy, key)])
        .cost(1)
        .await
        .expect("a response");
    let verdict = seen.policy(policy).expect(policy);
    verdict.limit() - verdict.remaining()
}
