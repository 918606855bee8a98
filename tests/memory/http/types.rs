//! The layer fits wherever a tower layer goes, and no caller has to name a type parameter of it.

use std::fmt::Debug;

use axum::{
    extract::State,
    routing::{get_service, post},
};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
    service::TowerToHyperService,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tollgate::{
    layer::{RateLimit, ResponseBody},
    limiter::{Check, CheckFuture},
    observe::ShadowStats,
};
use tower::util::{BoxCloneService, BoxCloneSyncService};
use tower_http::{
    compression::CompressionLayer, cors::CorsLayer, timeout::TimeoutLayer, trace::TraceLayer,
};

use crate::http::{support, support::*};

/// One request an hour, of all clients together: so each test can see that the layer is there at all.
fn layer() -> RateLimitLayer {
    support::layer([shared("once", "1/h")]).0
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

#[tokio::test]
async fn the_layer_fits_a_router_its_routes_and_one_method_of_a_route() {
    let app: Router = hello_app().layer(layer());
    assert_eq!(statuses(&app, 2).await, [200, 429]);
    // It is around the fallback as well.
    assert_eq!(status(&app, "/nowhere").await, 429);

    let app: Router = hello_app().route_layer(layer());
    assert_eq!(status(&app, "/nowhere").await, 404);
    assert_eq!(statuses(&app, 2).await, [200, 429]);

    let app: Router = Router::new().route("/", post(hello).layer(layer()).get(hello));
    for expected in [200, 429] {
        assert_eq!(send(&app, empty(Request::post("/"))).await.status, expected);
    }
    assert_eq!(status(&app, "/").await, 200);
}

#[tokio::test]
async fn the_layer_fits_among_cors_trace_compression_and_timeout_layers() {
    // Each of them changes a body's type or bounds an error; ours is in their midst.
    let timeout = TimeoutLayer::with_status_code(StatusCode::GATEWAY_TIMEOUT, secs(30));
    let stack = ServiceBuilder::new()
        .layer(TraceLayer::new_for_http())
        .layer(CorsLayer::permissive())
        .layer(CompressionLayer::new())
        .layer(layer())
        .layer(timeout)
        .layer(CompressionLayer::new());
    let app: Router = hello_app().layer(stack);

    let gzipped = || empty(Request::get("/").header("accept-encoding", "gzip"));
    assert_eq!(send(&app, gzipped()).await.status, 200);
    let rejected = send(&app, gzipped()).await;
    assert_eq!(rejected.status, 429);
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
        app: layer.layer(hello_app()),
        layer,
    };
    assert_eq!(status(&gates.app, "/").await, 200);
    assert!(!gates.limiter.check(Key::global()).await.is_admitted());
    assert_eq!(status(&support::hello(&gates.layer), "/").await, 429);
}

#[tokio::test]
async fn the_layered_service_can_be_boxed_and_cloned() {
    type Boxed<B> = BoxCloneService<Request<Body>, Response<B>, Infallible>;
    let app: Boxed<_> = BoxCloneService::new(layer().layer(hello_app()));
    assert_eq!(statuses(&app, 2).await, [200, 429]);

    let shared = BoxCloneSyncService::new(layer().layer(hello_app()));
    let app: Router = Router::new().route("/", get_service(shared));
    assert_eq!(statuses(&app, 2).await, [200, 429]);
}

#[tokio::test]
async fn the_layer_fits_a_plain_service_with_any_bodies() {
    // Neither `()` nor `u8` is a body at all.
    let mut service = layer().layer(service_fn(async |request: Request<()>| {
        let () = request.into_body();
        Ok::<_, Infallible>(Response::new(7_u8))
    }));
    for expected in [200, 429] {
        let service = service.ready().await.expect("ready");
        let response = service.call(Request::new(())).await.expect("a response");
        assert_eq!(response.status(), expected);
    }
}

#[tokio::test]
async fn the_layered_router_is_served_by_hyper_without_axums_server() {
    let app = layer().layer(hello_app());
    let (client, server) = tokio::io::duplex(64 * 1024);
    let serving = tokio::spawn(async move {
        auto::Builder::new(TokioExecutor::new())
            .serve_connection(TokioIo::new(server), TowerToHyperService::new(app))
            .await
            .expect("served");
    });

    let (mut responses, mut requests) = tokio::io::split(client);
    let [start, end] = ["GET / HTTP/1.1\r\nhost: a\r\n", "connection: close\r\n\r\n"];
    let both = format!("{start}\r\n{start}{end}");
    requests.write_all(both.as_bytes()).await.expect("sent");
    let mut text = String::new();
    responses.read_to_string(&mut text).await.expect("a result");
    serving.await.expect("no panic");
    let statuses = text.split("HTTP/1.1 ").skip(1).map(|it| &it[..3]);
    assert_eq!(statuses.collect::<Vec<_>>(), ["200", "429"], "{text}");
}

fn hello_app() -> Router {
    Router::new().route("/", get(hello))
}

async fn hello() -> &'static str {
    "hello, and welcome to a body that is long enough to be worth compressing"
}
