//! What the layer does with the service inside. It fits wherever a tower layer goes, and no caller has to name a type parameter of it.

use std::{
    fmt::Debug,
    future::{Ready, ready},
    mem,
    task::{Context, Poll, Waker},
};

use axum::{
    extract::State,
    routing::{get_service, post},
};
use bytes::Bytes;
use http::Version;
use http_body::{Frame, SizeHint};
use tollgate::{
    layer::{RateLimit, ResponseBody},
    limiter::{Check, CheckFuture},
    observe::ShadowStats,
};
use tower::{limit::ConcurrencyLimit, util::BoxCloneSyncService};
use tower_http::{
    compression::CompressionLayer, cors::CorsLayer, timeout::TimeoutLayer, trace::TraceLayer,
};

use crate::http::support::*;

/// A service may hold what others wait for from when it is ready until it is called: the one that was polled ready is called, and none
/// on a rejection.
#[tokio::test]
async fn a_rejected_request_holds_no_capacity_of_the_inner_service() {
    let hello =
        service_fn(async |_: Request<()>| Ok::<_, Infallible>(Response::new(String::new())));
    let (layer, _) = layer([shared("two", "2/h")]);
    // It panics if it is called without being polled ready.
    let mut service = layer.layer(ConcurrencyLimit::new(hello, 2));
    let mut other = service.clone();
    for status in [200, 429, 429] {
        let mut calls = Vec::new();
        for _ in 0..2 {
            calls.push(service.ready().await.expect("ready").call(Request::new(())));
        }
        for call in calls {
            assert_eq!(call.await.expect("a response").status(), status);
        }
    }
    let ready = other.ready().now_or_never().expect("room, at once");
    let response = ready.expect("ready").call(Request::new(()));
    assert_eq!(response.await.expect("a response").status(), 429);
}

#[derive(Clone, Debug, PartialEq)]
struct Boom;

/// A service whose calls fail, and that is ready when the test allows it.
#[derive(Clone)]
struct Failing(Arc<Mutex<Poll<Result<(), Boom>>>>);

impl Service<Request<()>> for Failing {
    type Response = Response<String>;
    type Error = Boom;
    type Future = Ready<Result<Response<String>, Boom>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Boom>> {
        mem::replace(&mut *self.0.lock().expect("a mood"), Poll::Pending)
    }

    fn call(&mut self, _: Request<()>) -> Self::Future {
        ready(Err(Boom))
    }
}

#[tokio::test]
async fn readiness_and_errors_are_those_of_the_inner_service() {
    let mood = Arc::new(Mutex::new(Poll::Pending));
    let (layer, _) = layer([shared("any", "4/h")]);
    let mut service = layer.layer(Failing(mood.clone()));
    let cx = &mut Context::from_waker(Waker::noop());
    assert_eq!(service.poll_ready(cx), Poll::Pending);
    for response in [Err(Boom), Ok(())] {
        *mood.lock().expect("a mood") = Poll::Ready(response.clone());
        assert_eq!(service.poll_ready(cx), Poll::Ready(response));
    }
    let failed = service.call(Request::new(())).await;
    assert_eq!(failed.expect_err("boom"), Boom);
}

#[tokio::test]
async fn requests_reach_the_handler_and_responses_the_client_unchanged() {
    #[derive(Clone, Debug, PartialEq)]
    struct User(u32);

    let inside = service_fn(async |request: Request<String>| {
        assert_eq!(request.extensions().get(), Some(&User(7)));
        assert!(request.extensions().get::<Admission>().is_some());
        assert_eq!(request.method(), Method::PUT);
        assert_eq!(request.uri(), "http://a.example/b?c=d");
        assert_eq!(request.version(), Version::HTTP_2);
        assert_eq!(request.headers()["x-of"], "mine");
        let response = Response::builder().status(201).header("retry-after", "99");
        Ok::<_, Infallible>(response.body(request.into_body()).expect("a response"))
    });
    let (layer, _) = layer([shared("any", "4/h")]);
    let request = Request::put("http://a.example/b?c=d")
        .version(Version::HTTP_2)
        .header("x-of", "mine")
        .extension(User(7))
        .body("a body".to_owned())
        .expect("a request");
    let Ok(response) = layer.layer(inside).oneshot(request).await;
    assert_eq!(response.status(), 201);
    assert_eq!(response.headers()["retry-after"], "99");
    let body = response.into_body().collect().await.expect("a body");
    assert_eq!(body.to_bytes(), "a body");
}

async fn left(admission: Admission) -> String {
    format!("{:?}", admission.remaining("few"))
}

#[tokio::test]
async fn a_disabled_layer_passes_all_unchanged_and_counts_nothing() {
    let (layer, _) = layer([shared("few", "4/h").cost(3)]);
    let app = Router::new().route("/", get(left));
    let off = app.clone().layer(layer.clone().enabled(false));
    for _ in 0..5 {
        let response = send(&off, to("/")).await;
        assert_eq!(response.status, 200);
        assert_eq!(
            response.field("ratelimit") + &response.field("ratelimit-policy"),
            ""
        );
        // The handler extracts an `Admission`, and must not fail without one.
        assert_eq!(response.body, b"None");
    }
    assert_eq!(charged(&layer, "few").await, 0);

    let on = app.clone().layer(layer.enabled(false).enabled(true));
    assert_eq!(send(&on, to("/")).await.body, b"Some(1)");
    // Without a layer it is a mistake.
    let response = send(&app, to("/")).await;
    assert_eq!(response.status, 500);
    assert_contains(response.text(), ["RateLimitLayer"]);
}

#[tokio::test]
async fn a_body_reports_its_length_and_end() {
    /// A body of no size hint that pretends to have ended.
    struct Odd;

    impl http_body::Body for Odd {
        type Data = Bytes;
        type Error = Boom;

        fn poll_frame(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Boom>>> {
            Poll::Ready(Some(Err(Boom)))
        }

        fn is_end_stream(&self) -> bool {
            true
        }

        fn size_hint(&self) -> SizeHint {
            SizeHint::with_exact(42)
        }
    }

    use http_body::Body as _;

    let (layer, _) = layer([shared("once", "1/h")]);
    let inside = service_fn(async |_: Request<()>| Ok::<_, Infallible>(Response::new(Odd)));
    let mut service = layer.layer(inside);
    let mut call = || service.call(Request::new(()));
    let mut passed = call().await.expect("a response").into_body();
    let mut rejected = call().await.expect("a response").into_body();

    // The inner body reports its own end: a response of trailers only is recognised by it.
    assert!(passed.is_end_stream());
    assert_eq!(passed.size_hint().exact(), Some(42));
    let frame = passed.frame().await.expect("a frame");
    assert_eq!(frame.expect_err("the inner error"), Boom);

    assert!(!rejected.is_end_stream());
    let size = rejected.size_hint().exact().expect("a size");
    let frame = rejected.frame().await.expect("a frame").expect("no error");
    assert_eq!(frame.into_data().expect("data").len() as u64, size);
    assert!(rejected.is_end_stream());
    assert_eq!(rejected.size_hint().exact(), Some(0));
    assert!(rejected.frame().await.is_none());

    // Whatever is inside, there is an empty one.
    let empty = ResponseBody::<Odd>::default();
    assert!(empty.is_end_stream());
}

#[test]
fn public_types_are_send_sync_and_debug() {
    fn shared<T: Clone + Debug + Send + Sync + 'static>() {}
    fn owned<T: Debug + Send + 'static>() {}
    fn synced<T: Send + Sync>() {}

    shared::<(RateLimitLayer, RateLimit<Router>, Limiter)>();
    shared::<(LimiterBuilder, LimiterBuilder<RateLimitLayer>)>();
    shared::<(Policy, Key, Keys, Check, Decision, Admission)>();
    shared::<(Rejected, ConfigError, StoreError, OnStoreError)>();
    shared::<(LocalFallback, MemoryStore, RedisStore)>();
    shared::<(ManualClock, AddressList, KeyList, ShadowStats)>();
    owned::<CheckFuture>();
    owned::<<RateLimit<Router> as Service<Request<Body>>>::Future>();
    owned::<<RateLimit<Router> as Service<Request<Body>>>::Response>();
    // If the inner bodies are.
    synced::<ResponseBody<String>>();
}

/// One request an hour, of all clients together: so a test can see that the layer is there at all.
fn once() -> RateLimitLayer {
    layer([shared("once", "1/h")]).0
}

#[tokio::test]
async fn the_layer_fits_routers_with_and_without_state_routes_and_boxed_services() {
    async fn greet(State(greeting): State<&'static str>) -> &'static str {
        greeting
    }

    let routes: Router<&'static str> = Router::new().route("/", get(greet));
    let boxed = BoxCloneSyncService::new(once().layer(routes.clone().with_state("hello")));
    let around = routes.clone().layer(once()).with_state("hello");
    let routed = routes.route_layer(once()).with_state("hello");
    let posts = Router::new().route("/", get(async || "").layer(once()).merge(post(async || "")));
    for app in [
        around.clone(),
        routed.clone(),
        posts.clone(),
        Router::new().route("/", get_service(boxed)),
    ] {
        assert_eq!(statuses(&app, 2).await, [200, 429]);
    }
    // It is around the fallback as well, unless it is a route's or a method's.
    assert_eq!(status(&around, "/nowhere").await, 429);
    assert_eq!(status(&routed, "/nowhere").await, 404);
    assert_eq!(send(&posts, empty(Request::post("/"))).await.status, 200);
}

#[tokio::test]
async fn the_layer_fits_among_cors_trace_compression_and_timeout_layers() {
    // Each of them changes a body's type or bounds an error; ours is in their midst.
    let timeout = TimeoutLayer::with_status_code(StatusCode::GATEWAY_TIMEOUT, secs(30));
    let stack = ServiceBuilder::new()
        .layer(TraceLayer::new_for_http())
        .layer(CorsLayer::permissive())
        .layer(CompressionLayer::new())
        .layer(once())
        .layer(timeout)
        .layer(CompressionLayer::new());
    let app = Router::new()
        .route("/", get(async || "hello, and welcome"))
        .layer(stack);
    let gzipped = || empty(Request::get("/").header("accept-encoding", "gzip"));
    assert_eq!(send(&app, gzipped()).await.status, 200);
    let rejected = send(&app, gzipped()).await;
    assert_eq!(rejected.status, 429);
    assert_eq!(rejected.field("content-encoding"), "gzip");
    assert_eq!(rejected.field("content-length"), "");
}
