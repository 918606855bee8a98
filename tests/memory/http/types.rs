//! The layer fits wherever a tower layer goes, and no caller has to name a type parameter of it.

use std::{convert::Infallible, fmt::Debug, time::Duration};

use axum::{
    Router,
    body::Body,
    extract::State,
    routing::{get, get_service, post},
};
use http::{Request, Response, StatusCode};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
    service::TowerToHyperService,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tollgate::{
    Admission, ConfigError, Decision, Key, Limiter, LocalFallback, ManualClock, MemoryStore,
    OnStoreError, Policy, RateLimitLayer, Rejected, StoreError,
    access::{AddressList, KeyList},
    layer::RateLimit,
    limiter::{Check, CheckFuture, Keys},
    observe::ShadowStats,
};
use tower::{
    Service, ServiceBuilder, ServiceExt,
    util::{BoxCloneService, BoxCloneSyncService},
};
use tower_http::{
    compression::CompressionLayer, cors::CorsLayer, timeout::TimeoutLayer, trace::TraceLayer,
};

use crate::http::support::{self, empty, send, shared, status, statuses, to};

/// One request an hour, of all clients together: so each test can see that the layer is there at all.
fn layer() -> RateLimitLayer {
    support::layer([shared("once", "1/h")]).0
}

#[test]
fn public_types_are_send_sync_and_debug() {
    fn shared<T: Clone + Debug + Send + Sync + 'static>() {}
    fn owned<T: Debug + Send + 'static>() {}

    shared::<RateLimitLayer>();
    shared::<tollgate::limiter::LimiterBuilder<RateLimitLayer>>();
    shared::<Limiter>();
    shared::<tollgate::limiter::LimiterBuilder>();
    shared::<RateLimit<Router>>();
    shared::<Policy>();
    shared::<Key>();
    shared::<Keys>();
    shared::<Check>();
    shared::<Decision>();
    shared::<Admission>();
    shared::<Rejected>();
    shared::<ConfigError>();
    shared::<StoreError>();
    shared::<LocalFallback>();
    shared::<OnStoreError>();
    shared::<MemoryStore>();
    shared::<ManualClock>();
    shared::<AddressList>();
    shared::<KeyList>();
    shared::<ShadowStats>();
    owned::<CheckFuture>();
    owned::<<RateLimit<Router> as Service<Request<Body>>>::Future>();
    owned::<<RateLimit<Router> as Service<Request<Body>>>::Response>();
}

#[tokio::test]
async fn the_layer_fits_a_router() {
    let app: Router = Router::new().route("/", get(hello)).layer(layer());
    assert_eq!(statuses(&app, 2).await, [200, 429]);
    // It is around the fallback as well.
    assert_eq!(status(&app, "/nowhere").await, 429);
}

#[tokio::test]
async fn the_layer_fits_as_a_route_layer_and_leaves_the_fallback_alone() {
    let app: Router = Router::new().route("/", get(hello)).route_layer(layer());
    assert_eq!(status(&app, "/nowhere").await, 404);
    assert_eq!(statuses(&app, 2).await, [200, 429]);
}

#[tokio::test]
async fn the_layer_fits_one_method_of_a_route() {
    let route = post(hello).layer(layer()).get(hello);
    let app: Router = Router::new().route("/", route);
    let post = || Request::post("/").body(Body::empty()).expect("a request");
    assert_eq!(send(&app, post()).await.status, StatusCode::OK);
    assert_eq!(
        send(&app, post()).await.status,
        StatusCode::TOO_MANY_REQUESTS
    );
    assert_eq!(status(&app, "/").await, 200);
}

#[tokio::test]
async fn the_layer_fits_among_cors_trace_compression_and_timeout_layers() {
    // Each of them changes a body's type or bounds an error; ours is in their midst.
    let stack = ServiceBuilder::new()
        .layer(TraceLayer::new_for_http())
        .layer(CorsLayer::permissive())
        .layer(CompressionLayer::new())
        .layer(layer())
        .layer(TimeoutLayer::with_status_code(
            StatusCode::GATEWAY_TIMEOUT,
            Duration::from_secs(30),
        ))
        .layer(CompressionLayer::new());
    let app: Router = Router::new().route("/", get(hello)).layer(stack);

    let gzipped = || empty(Request::get("/").header("accept-encoding", "gzip"));
    assert_eq!(send(&app, gzipped()).await.status, StatusCode::OK);
    let rejected = send(&app, gzipped()).await;
    assert_eq!(rejected.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(rejected.field("content-encoding"), "gzip");
    assert_eq!(rejected.field("content-length"), "");
}

#[tokio::test]
async fn the_layer_fits_a_router_that_still_lacks_its_state() {
    #[derive(Clone)]
    struct Greeting(&'static str);

    async fn greet(State(Greeting(greeting)): State<Greeting>) -> &'static str {
        greeting
    }

    fn routes(limit: RateLimitLayer) -> Router<Greeting> {
        Router::new().route("/", get(greet)).layer(limit)
    }

    let app: Router = routes(layer()).with_state(Greeting("good day"));
    assert_eq!(send(&app, to("/")).await.body, b"good day");
    assert_eq!(status(&app, "/").await, 429);
}

#[tokio::test]
async fn the_layer_fits_a_struct_field_without_type_parameters() {
    struct Gates {
        layer: RateLimitLayer,
        limiter: Limiter,
        app: RateLimit<Router>,
    }

    let layer = layer();
    let gates = Gates {
        limiter: layer.limiter().clone(),
        app: ServiceBuilder::new()
            .layer(layer.clone())
            .service(Router::new().route("/", get(hello))),
        layer,
    };
    assert_eq!(status(&gates.app, "/").await, 200);
    assert!(!gates.limiter.check(Key::global()).await.is_admitted());
    assert_eq!(status(&support::hello(&gates.layer), "/").await, 429);
}

#[tokio::test]
async fn the_layered_service_can_be_boxed_and_cloned() {
    type Boxed<B> = BoxCloneService<Request<Body>, Response<B>, Infallible>;
    let app: Boxed<_> = BoxCloneService::new(
        ServiceBuilder::new()
            .layer(layer())
            .service(Router::new().route("/", get(hello))),
    );
    assert_eq!(statuses(&app, 2).await, [200, 429]);

    let app = Router::new().route("/", get(hello));
    let shared = BoxCloneSyncService::new(ServiceBuilder::new().layer(layer()).service(app));
    let app: Router = Router::new().route("/", get_service(shared));
    assert_eq!(statuses(&app, 2).await, [200, 429]);
}

#[tokio::test]
async fn the_layer_fits_a_plain_service_with_any_bodies() {
    // Neither `()` nor `u8` is a body at all.
    let mut service =
        ServiceBuilder::new()
            .layer(layer())
            .service_fn(async |request: Request<()>| {
                let () = request.into_body();
                Ok::<_, Infallible>(Response::new(7_u8))
            });
    let service = service.ready().await.expect("ready");
    let first = service.call(Request::new(())).await.expect("a response");
    assert_eq!(first.status(), StatusCode::OK);
    let second = service.call(Request::new(())).await.expect("a response");
    assert_eq!(second.status(), StatusCode::TOO_MANY_REQUESTS);
}

#[tokio::test]
async fn the_layered_router_is_served_by_hyper_without_axums_server() {
    let app = ServiceBuilder::new()
        .layer(layer())
        .service(Router::new().route("/", get(hello)));
    let (client, server) = tokio::io::duplex(64 * 1024);
    let serving = tokio::spawn(async move {
        auto::Builder::new(TokioExecutor::new())
            .serve_connection(TokioIo::new(server), TowerToHyperService::new(app))
            .await
            .expect("served");
    });

    let (mut responses, mut requests) = tokio::io::split(client);
    requests
        .write_all(
            b"GET / HTTP/1.1\r\nhost: a\r\n\r\nGET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n",
        )
        .await
        .expect("sent");
    let mut text = String::new();
    responses.read_to_string(&mut text).await.expect("a result");
    serving.await.expect("no panic");
    let statuses = text
        .split("HTTP/1.1 ")
        .skip(1)
        .map(|response| &response[..3]);
    assert_eq!(statuses.collect::<Vec<_>>(), ["200", "429"], "{text}");
}

async fn hello() -> &'static str {
    "hello, and welcome to a body that is long enough to be worth compressing"
}
