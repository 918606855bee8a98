//! What these tests have in common.

use std::fmt::Debug;

use http::request::Builder;
pub(crate) use tollgate::RateLimitHeaders as Headers;
pub(crate) use tollgate_tests::{
    log::Log, prelude::*, stores::frozen as store, stub_store::StubStore, until::TEST_TIMEOUT,
};

/// A response, read to its end.
#[derive(Debug, PartialEq)]
pub(crate) struct TestResponse {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Vec<u8>,
}

impl TestResponse {
    /// A field, all of its lines as one list (RFC 9110, 5.3); empty without one.
    pub(crate) fn field(&self, name: &str) -> String {
        let lines = self.headers.get_all(name).into_iter();
        let lines: Vec<_> = lines.map(|line| line.to_str().expect("ASCII")).collect();
        lines.join(", ")
    }

    /// `Retry-After` in seconds.
    pub(crate) fn retry_after(&self) -> Option<u64> {
        let seconds = self.headers.get("retry-after")?.to_str().ok()?;
        Some(seconds.parse().expect("a whole number of seconds"))
    }

    /// Every `t` in `RateLimit`, in order.
    pub(crate) fn resets(&self) -> Vec<u64> {
        let list = self.field("ratelimit");
        let times = list.split([';', ',']).filter_map(|p| p.strip_prefix("t="));
        times.map(|t| t.parse().expect("an integer")).collect()
    }

    /// Sees to the fields that each problem has.
    #[track_caller]
    pub(crate) fn is_problem_that_no_cache_stores(&self) {
        assert_eq!(self.field("content-type"), "application/problem+json");
        assert_eq!(self.field("cache-control"), "no-store");
        assert_eq!(self.field("content-length"), self.body.len().to_string());
    }

    pub(crate) fn text(&self) -> &str {
        str::from_utf8(&self.body).expect("a text")
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).expect("a JSON body")
    }

    /// The detail of a problem; empty without one.
    pub(crate) fn detail(&self) -> String {
        self.json()["detail"]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    }

    /// The policies that a problem names.
    pub(crate) fn violated(&self) -> Vec<String> {
        let named = self.json()["violated-policies"].take();
        serde_json::from_value(named).expect("names")
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

/// The statuses of the responses to so many GETs of `/`.
pub(crate) async fn statuses<S, B>(service: &S, times: usize) -> Vec<u16>
where
    S: Service<Request<Body>, Response = Response<B>, Error: Debug> + Clone,
    B: http_body::Body<Error: Debug>,
{
    let mut statuses = Vec::new();
    for _ in 0..times {
        statuses.push(status(service, "/").await);
    }
    statuses
}

/// A GET of `uri`.
pub(crate) fn to(uri: &str) -> Request<Body> {
    empty(Request::get(uri))
}

/// A request for `/` with a header.
pub(crate) fn with(name: &str, value: impl AsRef<[u8]>) -> Request<Body> {
    empty(Request::get("/").header(name, value.as_ref()))
}

/// A request for `/` with these lines of a header.
pub(crate) fn lines<T: AsRef<[u8]>>(name: &str, values: &[T]) -> Request<Body> {
    let lines = values.iter().map(AsRef::as_ref);
    empty(lines.fold(Request::get("/"), |request, line| {
        request.header(name, line)
    }))
}

/// A request without a body.
pub(crate) fn empty(request: Builder) -> Request<Body> {
    request.body(Body::empty()).expect("a request")
}

/// The head of a request.
pub(crate) fn head(request: Builder) -> Parts {
    empty(request).into_parts().0
}

/// A gRPC call.
pub(crate) fn grpc_call() -> Request<Body> {
    empty(Request::post("/a.B/C").header("content-type", "application/grpc"))
}

/// The response to the second request for `/`, behind a layer that admits the first.
pub(crate) async fn second(layer: &RateLimitLayer) -> TestResponse {
    let app = hello(layer);
    assert_eq!(status(&app, "/").await, 200);
    send(&app, to("/")).await
}

/// An extractor in an `Arc`, whatever its type is.
pub(crate) fn arc(extractor: impl KeyExtractor) -> Arc<dyn KeyExtractor> {
    Arc::new(extractor)
}

/// `GET /` responds with hello, behind `layer`.
pub(crate) fn hello(layer: &RateLimitLayer) -> Router {
    let route = get(async || "hello");
    Router::new().route("/", route).layer(layer.clone())
}

/// `GET /` responds with hello, behind a layer of these policies on a clock that stands still.
pub(crate) fn app(policies: impl IntoIterator<Item = Policy>) -> Router {
    hello(&layer(policies).0)
}

/// A policy that counts all clients together.
pub(crate) fn shared(name: &str, quota: &str) -> Policy {
    Policy::new(name, quota.parse::<Quota>().expect(quota)).key(extract::global())
}

/// A layer of these policies, counting in process on a clock that only moves when it is set.
pub(crate) fn layer(policies: impl IntoIterator<Item = Policy>) -> (RateLimitLayer, ManualClock) {
    let (store, clock) = stores::frozen();
    let limiter = stores::limiter(Limiter::builder().store(store), policies);
    (RateLimitLayer::new(limiter), clock)
}

/// The mistake in a limiter under this policy, which is named `p`.
#[track_caller]
pub(crate) fn mistake_in(policy: Policy) -> ConfigError {
    let error = Limiter::builder().policy(policy).build();
    let error = error.expect_err("a mistake");
    assert_eq!(error.policy(), Some("p"), "{error}");
    error
}

/// A layer that rejects requests while its store fails.
pub(crate) fn rejecting(store: StubStore, policy: Policy) -> RateLimitLayer {
    let builder = Limiter::builder().store(store);
    let builder = builder.on_store_error(OnStoreError::Reject);
    RateLimitLayer::new(stores::limiter(builder, [policy]))
}

/// A limiter that counts in process on a clock that stands still.
pub(crate) fn limiter(policies: impl IntoIterator<Item = Policy>) -> Limiter {
    layer(policies).0.limiter().clone()
}

/// A store that calls Redis also for rejected keys.
pub(crate) fn redis(server: &Server) -> RedisStore {
    let store = RedisStore::builder()
        .url(server.url())
        .timeout(TEST_TIMEOUT);
    let store = store.rejection_cache_staleness(Duration::ZERO);
    store.built()
}

/// How many units of `policy` are used under `key`.
pub(crate) async fn used(limiter: &Limiter, policy: &str, key: Key) -> u64 {
    let seen = limiter.peek([(policy, key)]).cost(1).await;
    let seen = seen.expect("a response");
    seen.used(policy)
}

/// How many units of a [shared] policy are used.
pub(crate) async fn charged(layer: &RateLimitLayer, policy: &str) -> u64 {
    used(layer.limiter(), policy, Key::global()).await
}
