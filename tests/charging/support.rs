//! What the tests share.

use std::{
    future::Future,
    io,
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use futures_util::stream;
use http::{HeaderMap, Request, Response};
use http_body::{Body as _, Frame};
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use testkit::{Clock as ServerClock, Server};
use tollgate::{
    Decision, FixedWindow, Gcra, Key, Limiter, LimiterBuilder, ManualClock, MemoryStore,
    OnStoreError, Policy, RateLimitLayer, RedisStore, Source, Timestamp, extract,
    layer::ResponseBody,
};
use tower::{Layer, ServiceExt, service_fn};

/// The machine may be busy; where counting is tested, time is not.
const PATIENCE: Duration = Duration::from_secs(20);

/// A full hour, 2027-01-15 08:00:00 UTC.
pub(crate) const START: u64 = 1_800_000_000_000_000;

pub(crate) const KEY: Key = Key::global();

pub(crate) const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

pub(crate) const fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

/// A store and its clock.
pub(crate) struct World {
    store: Backing,
    time: Time,
}

#[expect(clippy::large_enum_variant, reason = "there are few")]
enum Backing {
    Memory(MemoryStore),
    Redis(RedisStore, Server),
}

enum Time {
    Local(ManualClock),
    Server(ServerClock),
}

impl World {
    pub(crate) fn memory() -> Self {
        let clock = ManualClock::at(Timestamp::from_micros(START as i64));
        Self {
            store: Backing::Memory(MemoryStore::builder().clock(clock.clone()).build()),
            time: Time::Local(clock),
        }
    }

    pub(crate) fn redis() -> Self {
        let clock = ServerClock::at(START);
        let server = Server::builder().clock(&clock).start();
        let store = RedisStore::builder().url(server.url()).deadline(PATIENCE);
        Self {
            store: Backing::Redis(store.build().expect("a store"), server),
            time: Time::Server(clock),
        }
    }

    pub(crate) fn both() -> [Self; 2] {
        [Self::memory(), Self::redis()]
    }

    pub(crate) fn name(&self) -> &'static str {
        match self.store {
            Backing::Memory(_) => "memory",
            Backing::Redis(..) => "redis",
        }
    }

    /// The server, if there is one.
    pub(crate) fn server(&self) -> Option<&Server> {
        match &self.store {
            Backing::Memory(_) => None,
            Backing::Redis(_, server) => Some(server),
        }
    }

    /// Every key on the server ends by itself.
    #[track_caller]
    pub(crate) fn no_key_is_immortal(&self) {
        if let Some(server) = self.server() {
            assert_eq!(server.immortal_keys(), Vec::<String>::new());
        }
    }

    /// A limiter on this store that shows faults.
    #[track_caller]
    pub(crate) fn limiter(&self, policies: impl IntoIterator<Item = Policy>) -> Limiter {
        let builder = Limiter::builder().on_store_error(OnStoreError::Refuse);
        let builder = match &self.store {
            Backing::Memory(store) => builder.store(store.clone()),
            Backing::Redis(store, _) => builder.store(store.clone()),
        };
        let builder = policies.into_iter().fold(builder, LimiterBuilder::policy);
        builder.build().expect("a limiter")
    }

    /// A layer on this store that shows faults.
    #[track_caller]
    pub(crate) fn layer(&self, policies: impl IntoIterator<Item = Policy>) -> RateLimitLayer {
        RateLimitLayer::new(self.limiter(policies))
    }

    pub(crate) fn advance(&self, by: Duration) {
        match &self.time {
            Time::Local(clock) => clock.advance(by),
            Time::Server(clock) => clock.advance(by),
        }
    }
}

/// A policy that counts everybody together, in windows.
#[track_caller]
pub(crate) fn window(name: &str, quota: &str) -> Policy {
    let policy = Policy::new(name, quota.parse().expect(quota));
    policy.strategy(FixedWindow).key(extract::global())
}

/// A policy that counts everybody together, evenly.
#[track_caller]
pub(crate) fn even(name: &str, quota: &str) -> Policy {
    let policy = Policy::new(name, quota.parse().expect(quota));
    policy.strategy(Gcra).key(extract::global())
}

/// How many units of `policy` are used.
pub(crate) async fn used(limiter: &Limiter, policy: &str) -> u64 {
    let seen = limiter.peek(KEY).await;
    assert_eq!(seen.source(), Source::Store, "{seen:?}");
    let verdict = seen.verdict(policy).expect(policy);
    verdict.limit() - verdict.remaining()
}

/// How long until a unit of `policy` is to be had, and until all are.
pub(crate) async fn waits(limiter: &Limiter, policy: &str) -> (Duration, Duration) {
    let seen = limiter.peek(KEY).await;
    assert_eq!(seen.source(), Source::Store, "{seen:?}");
    let verdict = seen.verdict(policy).expect(policy);
    (
        verdict.retry_after().expect("a wait"),
        verdict.reset_after(),
    )
}

/// Whether it was admitted, by the store itself.
#[track_caller]
pub(crate) fn counted(decision: &Decision) -> bool {
    assert_eq!(decision.source(), Source::Store, "{decision:?}");
    decision.is_admitted()
}

/// What handlers answer.
pub(crate) type Body = UnsyncBoxBody<Bytes, io::Error>;

/// What comes out of a layer.
pub(crate) type Answer = Response<ResponseBody<Body>>;

type Piece = io::Result<Frame<Bytes>>;

pub(crate) fn request() -> Request<()> {
    Request::new(())
}

/// A response whose body is a text.
pub(crate) fn text(status: u16) -> Response<Body> {
    let body = Full::new(Bytes::from_static(b"text"));
    let response = Response::builder().status(status);
    let body = body.map_err(|never| match never {}).boxed_unsync();
    response.body(body).expect("a response")
}

/// A response whose body is streamed: nobody knows its end before it comes.
pub(crate) fn streamed(pieces: Vec<Piece>) -> Response<Body> {
    Response::new(StreamBody::new(stream::iter(pieces)).boxed_unsync())
}

pub(crate) fn data() -> Piece {
    Ok(Frame::data(Bytes::from_static(b"data")))
}

pub(crate) fn broken() -> Piece {
    Err(io::Error::other("broken"))
}

/// Trailers with the code of a gRPC call.
pub(crate) fn code(code: &'static str) -> Piece {
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", code.parse().expect("a value"));
    Ok(Frame::trailers(trailers))
}

/// A gRPC response.
pub(crate) fn grpc(pieces: Vec<Piece>) -> Response<Body> {
    let mut response = streamed(pieces);
    let content_type = "application/grpc".parse().expect("a value");
    response.headers_mut().insert("content-type", content_type);
    response
}

/// Sends a request through `layer` to a handler.
pub(crate) async fn call<F, A, E>(
    layer: &RateLimitLayer,
    request: Request<()>,
    handler: F,
) -> Result<Answer, E>
where
    F: Fn(Request<()>) -> A + Clone,
    A: Future<Output = Result<Response<Body>, E>>,
{
    layer.layer(service_fn(handler)).oneshot(request).await
}

/// Sends a request through `layer` to a handler that answers `response`; its body is not read yet.
pub(crate) async fn answer(layer: &RateLimitLayer, response: Response<Body>) -> Answer {
    let response = Arc::new(Mutex::new(Some(response)));
    let handler = move |_| {
        let response = response.lock().expect("a lock").take();
        async move { response.ok_or_else(|| io::Error::other("asked twice")) }
    };
    call(layer, request(), handler).await.expect("an answer")
}

/// Reads a body as servers do: to its end, or until it says that it is there, or it fails.
pub(crate) async fn read(answer: Answer) -> io::Result<u16> {
    let status = answer.status().as_u16();
    let mut body = answer.into_body();
    while !body.is_end_stream() {
        match body.frame().await {
            Some(frame) => drop(frame?),
            None => break,
        }
    }
    Ok(status)
}

/// Sends a request that is answered `response`, and reads it; returns the status, or 0 where the body fails.
pub(crate) async fn pass(layer: &RateLimitLayer, response: Response<Body>) -> u16 {
    read(answer(layer, response).await).await.unwrap_or(0)
}
