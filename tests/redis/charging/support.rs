//! What the tests share.

use std::io;

use bytes::Bytes;
use futures_util::stream;
use http::HeaderMap;
use http_body::{Body as _, Frame};
use http_body_util::{Full, StreamBody, combinators::UnsyncBoxBody};
use tollgate::layer::ResponseBody;
use tollgate_tests::prelude::*;

/// A policy that counts all clients together.
#[track_caller]
pub(crate) fn together(strategy: StrategyKind, name: &str, quota: &str) -> Policy {
    strategy.policy(name, quota).key(extract::global())
}

/// A policy that counts all clients together, in windows.
#[track_caller]
pub(crate) fn window(name: &str, quota: &str) -> Policy {
    together(StrategyKind::Fixed, name, quota)
}

/// A policy that counts all clients together, evenly.
#[track_caller]
pub(crate) fn even(name: &str, quota: &str) -> Policy {
    together(StrategyKind::Gcra, name, quota)
}

/// How many units of `policy` are used.
pub(crate) async fn used(limiter: &Limiter, policy: &str) -> u64 {
    all_used(limiter, [policy]).await[0]
}

/// How many units of each policy are used.
pub(crate) async fn all_used<const N: usize>(limiter: &Limiter, policies: [&str; N]) -> [u64; N] {
    let seen = limiter.peek(KEY).await.expect("a response");
    assert_eq!(seen.source(), DecisionSource::Store, "{seen:?}");
    policies.map(|policy| seen.used(policy))
}

/// How long until a unit of `policy` is available, and until all are.
pub(crate) async fn waits(limiter: &Limiter, policy: &str) -> (Duration, Duration) {
    let seen = limiter.peek(KEY).await.expect("a response");
    assert_eq!(seen.source(), DecisionSource::Store, "{seen:?}");
    let count = seen.count(policy);
    let wait = count.retry_after().duration().expect("a wait");
    (wait, count.reset_after())
}

/// Settles what an admission was charged under policy `p`.
pub(crate) async fn settle(admission: &Admission, units: u64) {
    let policy = admission.policy("p").expect("a policy");
    policy.settle(units).await.expect("a response");
}

/// Settles several policies of an admission at once.
pub(crate) async fn settle_each(admission: &Admission, true_costs: &[(&str, u64)]) {
    let settled = admission.settle_each(true_costs.iter().copied()).await;
    settled.expect("a response");
}

/// Charges an admission more under policy `p`.
pub(crate) async fn charge(admission: &Admission, units: u64) {
    let policy = admission.policy("p").expect("a policy");
    policy.charge(units).await.expect("a response");
}

/// Refunds some of what an admission was charged under policy `p`.
pub(crate) async fn refund(admission: &Admission, units: u64) {
    let policy = admission.policy("p").expect("a policy");
    policy.refund(units).await.expect("a response");
}

/// Runs a test on each store, with a policy `p` of each strategy, of 10 a minute, whose count begins at 0.
pub(crate) async fn on_each_strategy(test: impl AsyncFnMut(&World, StrategyKind, &Limiter)) {
    on_each(&StrategyKind::ALL, test).await;
}

/// The same with some of the strategies.
pub(crate) async fn on_each(
    strategies: &[StrategyKind],
    mut test: impl AsyncFnMut(&World, StrategyKind, &Limiter),
) {
    for world in World::both() {
        for strategy in strategies {
            let _case = Case(format!("{strategy:?}"));
            let limiter = world.limiter([together(*strategy, "p", "10/min")]);
            limiter.reset(KEY).await.expect("a response");
            test(&world, *strategy, &limiter).await;
        }
    }
}

/// The body of a handler's response.
pub(crate) type PiecesBody = UnsyncBoxBody<Bytes, io::Error>;

/// What comes out of a layer.
pub(crate) type LayerResponse = Response<ResponseBody<PiecesBody>>;

type Piece = io::Result<Frame<Bytes>>;

pub(crate) fn request() -> Request<()> {
    Request::new(())
}

/// A response whose body is a text.
pub(crate) fn text(status: u16) -> Response<PiecesBody> {
    let body = Full::new(Bytes::from_static(b"text"));
    let response = Response::builder().status(status);
    let body = body.map_err(|never| match never {}).boxed_unsync();
    response.body(body).expect("a response")
}

/// A response whose body is streamed: its end is not known before it comes.
pub(crate) fn streamed(pieces: Vec<Piece>) -> Response<PiecesBody> {
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

/// Sends a request through `layer` to a handler.
pub(crate) async fn call<F, A, E>(
    layer: &RateLimitLayer,
    request: Request<()>,
    handler: F,
) -> Result<LayerResponse, E>
where
    F: Fn(Request<()>) -> A + Clone,
    A: Future<Output = Result<Response<PiecesBody>, E>>,
{
    layer.layer(service_fn(handler)).oneshot(request).await
}

/// Sends a request through `layer` to a handler that returns `response`; its body is not read yet.
pub(crate) async fn respond(
    layer: &RateLimitLayer,
    response: Response<PiecesBody>,
) -> LayerResponse {
    let response = Arc::new(Mutex::new(Some(response)));
    let handler = move |_| {
        let response = response.lock().expect("a lock").take();
        async move { response.ok_or_else(|| io::Error::other("asked twice")) }
    };
    call(layer, request(), handler).await.expect("a response")
}

/// Reads a body as servers do: to its end, or until it reports its end, or fails.
pub(crate) async fn read(response: LayerResponse) -> io::Result<u16> {
    let status = response.status().as_u16();
    let mut body = response.into_body();
    while !body.is_end_stream() {
        match body.frame().await {
            Some(frame) => drop(frame?),
            None => break,
        }
    }
    Ok(status)
}

/// The admission that a handler finds in its request.
pub(crate) fn admission_of(request: &Request<()>) -> Admission {
    let admission = request.extensions().get::<Admission>();
    admission.expect("an admission").clone()
}

/// Sends a request to a handler that does this with its admission before it responds; the body is not read yet.
pub(crate) async fn serve(
    layer: &RateLimitLayer,
    status: u16,
    act: impl AsyncFn(Admission),
) -> LayerResponse {
    let handler = async |request: Request<()>| {
        act(admission_of(&request)).await;
        Ok::<_, Infallible>(text(status))
    };
    let handler = &handler;
    let Ok(response) = call(layer, request(), handler).await;
    response
}

pub(crate) async fn forget(layer: &RateLimitLayer) {
    let _ = layer.limiter().reset(KEY).await.expect("a response");
}

/// Sends a request whose response is `response`, and reads it; returns the status, or 0 if the body fails.
pub(crate) async fn pass(layer: &RateLimitLayer, response: Response<PiecesBody>) -> u16 {
    read(respond(layer, response).await).await.unwrap_or(0)
}

/// Sends requests, one after the other, whose responses have these statuses; those of 429 are rejected.
pub(crate) async fn pass_all<const N: usize>(layer: &RateLimitLayer, statuses: [u16; N]) {
    for (number, status) in (1..).zip(statuses) {
        let _case = Case(format!("request {number} of {statuses:?}"));
        let response = text(if status == 429 { 200 } else { status });
        assert_eq!(pass(layer, response).await, status);
    }
}
