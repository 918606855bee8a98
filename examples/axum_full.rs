//! An axum service as one is deployed: nested routers, limits around all of it and on single routes, client addresses,
//! CORS, tracing, compression and a timeout. In process; on Redis, for any number of processes, if `REDIS_URL` is set.
//!
//! ```text
//! cargo run --example axum_full --features compression
//! curl -i http://127.0.0.1:3000/api/items     # 20 at once and 2 a second, for each address, on all routes together
//! curl -i http://127.0.0.1:3000/api/search    # of these 5 a minute
//! curl -i -X POST -H 'x-api-key: k' 'http://127.0.0.1:3000/api/reports?ms=100'    # and of these 3, for each API key
//! ```
//!
//! Reports that aren't made don't count; with `ms=3000` they time out.

use std::{env, error::Error, net::SocketAddr, time::Duration};

use axum::{
    Json, Router,
    extract::Query,
    http::{HeaderName, StatusCode},
    routing::{get, post},
};
use tokio::net::TcpListener;
use tollgate::{
    Admission, ConfigError, FixedWindow, MemoryStore, Policy, Quota, RateLimitLayer,
    extract::{self, MissingKey},
    layer::exposed_headers,
    outcome,
    store::Store,
};
use tower::ServiceBuilder;
use tower_http::{
    compression::CompressionLayer,
    cors::{Any, CorsLayer},
    timeout::TimeoutLayer,
    trace::{DefaultMakeSpan, DefaultOnResponse, TraceLayer},
};
use tracing::Level;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    tracing_subscriber::fmt().with_max_level(Level::INFO).init();
    let app = match env::var("REDIS_URL") {
        Ok(url) => app(tollgate::RedisStore::open(url)?)?,
        Err(_) => app(MemoryStore::new())?,
    };

    let port = env::var("PORT").map_or(Ok(3000), |port| port.parse())?;
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    println!("Listening on http://{}", listener.local_addr()?);
    // The client's address is what a policy counts by, by default.
    let service = app.into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(listener, service)
        .with_graceful_shutdown(stop_signal())
        .await?;
    Ok(())
}

/// Completes at Ctrl-C, and at SIGTERM, by which containers are stopped.
async fn stop_signal() {
    #[cfg(unix)]
    let terminated = async {
        use tokio::signal::unix::{SignalKind, signal};
        let mut signals = signal(SignalKind::terminate()).expect("a handler of SIGTERM");
        signals.recv().await;
    };
    #[cfg(not(unix))]
    let terminated = std::future::pending::<()>();
    tokio::select! {
        _ = tokio::signal::ctrl_c() => {}
        () = terminated => {}
    }
}

fn app(store: impl Store + Clone) -> Result<Router, ConfigError> {
    let around_all = Policy::new("burst", Quota::requests(2).per_second().burst(20));
    let around_all = RateLimitLayer::builder()
        .store(store.clone())
        .skip_path("/health")
        .policy(around_all)
        .build()?;
    // From the outside in: rejections are traced, and pages of other origins can read it.
    let layers = ServiceBuilder::new()
        .layer(
            TraceLayer::new_for_http()
                .make_span_with(DefaultMakeSpan::new().level(Level::INFO))
                .on_response(DefaultOnResponse::new().level(Level::INFO)),
        )
        .layer(cors())
        .layer(around_all)
        .layer(CompressionLayer::new())
        .layer(timeout(5));
    Ok(Router::new()
        .route("/health", get(async || "ok\n"))
        .nest("/api", api(store)?)
        .layer(layers))
}

/// Routes with limits of their own, in addition to the outer ones. A request that is rejected here is refunded by the outer layers
/// too.
fn api(store: impl Store + Clone) -> Result<Router, ConfigError> {
    let searches = Policy::new("searches", Quota::requests(5).per_minute());
    let searches = RateLimitLayer::builder()
        .store(store.clone())
        .policy(searches.strategy(FixedWindow))
        .build()?;
    let reports = Policy::new("reports", Quota::requests(3).per_minute())
        .strategy(FixedWindow)
        .key(extract::header("x-api-key"))
        .missing_key(MissingKey::Reject)
        // Charged on arrival, and refunded if there was no report.
        .refund_unless(outcome::success);
    let reports = RateLimitLayer::builder()
        .store(store)
        .policy(reports)
        .build()?;
    // A timeout inside of the limit, which then sees that there was no report. A timeout outside of it would drop the request, and
    // a dropped request stays charged.
    let reports = ServiceBuilder::new().layer(reports).layer(timeout(2));
    Ok(Router::new()
        .route("/items", get(items))
        .route("/search", get(search).layer(searches))
        .route("/reports", post(report).layer(reports)))
}

/// Pages of any origin may ask, and read how they stand.
fn cors() -> CorsLayer {
    CorsLayer::new()
        .allow_origin(Any)
        .allow_methods(Any)
        .allow_headers([HeaderName::from_static("x-api-key")])
        .expose_headers(exposed_headers())
}

fn timeout(seconds: u64) -> TimeoutLayer {
    TimeoutLayer::with_status_code(StatusCode::GATEWAY_TIMEOUT, Duration::from_secs(seconds))
}

async fn items() -> Json<Vec<String>> {
    Json((1..=100).map(|n| format!("item {n}")).collect())
}

/// How long the work behind it takes.
#[derive(serde::Deserialize)]
struct Slow {
    #[serde(default)]
    ms: u64,
}

impl Slow {
    async fn work(&self) {
        tokio::time::sleep(Duration::from_millis(self.ms)).await;
    }
}

async fn search(Query(slow): Query<Slow>, admission: Admission) -> String {
    slow.work().await;
    let left = admission.remaining("searches").unwrap_or_default();
    format!("nothing found; {left} searches left\n")
}

async fn report(Query(slow): Query<Slow>) -> &'static str {
    slow.work().await;
    "a report\n"
}
