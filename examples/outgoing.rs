//! A service that calls a slow upstream, which allows five calls a second: requests wait their turn, in order, for up to
//! ten seconds (`TIMEOUT`). In process; on Redis, for any number of processes together, if `REDIS_URL` is set.
//!
//! Should the upstream answer 429 nevertheless, nothing is sent to it until its `Retry-After` has passed, by any process. It
//! does for every fifth call (`BUSY`), and wants a second of rest.
//!
//! ```text
//! cargo run --example outgoing
//! ```

use std::{
    env,
    error::Error,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use axum::{
    Router,
    body::Bytes,
    extract::State,
    http::{Request, StatusCode, header::RETRY_AFTER},
    response::{IntoResponse, Response},
    routing::get,
};
use http_body_util::{BodyExt, Empty};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use tokio::net::TcpListener;
use tollgate::{
    Limiter, OutgoingLayer, Policy, Quota, Rejected,
    limiter::PolicyHandle,
    outgoing::{BoxError, Outgoing},
};
use tower::{ServiceBuilder, ServiceExt};

/// The client, limited.
type Upstream = Outgoing<Client<HttpConnector, Empty<Bytes>>>;

/// What all calls count under. Where there are several upstreams, each has a key.
const UPSTREAM: &str = "upstream";

#[derive(Clone)]
struct App {
    upstream: Upstream,
    paused: PolicyHandle,
    address: SocketAddr,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    tracing_subscriber::fmt().init();
    let timeout = env::var("TIMEOUT").map_or(Ok(10), |seconds| seconds.parse())?;
    let limiter = limiter()?;
    let paused = limiter.policy("paused")?;
    let layer = OutgoingLayer::new(limiter)
        .key(UPSTREAM)
        .timeout(Duration::from_secs(timeout))
        .queue(100);
    let client = Client::builder(TokioExecutor::new()).build_http();
    let app = App {
        upstream: ServiceBuilder::new().layer(layer).service(client),
        paused,
        address: slow_upstream().await?,
    };

    let port = env::var("PORT").map_or(Ok(3000), |port| port.parse())?;
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    let address = listener.local_addr()?;
    println!("Listening on http://{address}. Twelve at once take five seconds; try them:\n");
    println!("  for i in $(seq 12); do curl -s http://{address}/ & done; wait");
    let app = Router::new().route("/", get(ask)).with_state(app);
    axum::serve(listener, app)
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

fn limiter() -> Result<Limiter, Box<dyn Error>> {
    // Evenly: one every 200 ms. An upstream that rejects the sixth call in any second needs a margin: one every 220 ms.
    let quota = Quota::requests(5).per_second().burst(1);
    let limiter = Limiter::builder()
        .policy(Policy::new("upstream", quota))
        // Blocked by hand, for as long as the upstream says.
        .policy(Policy::block_list("paused"));
    if let Ok(url) = env::var("REDIS_URL") {
        println!("Counting on Redis.");
        // A call that can wait for its turn can wait for Redis too.
        let store = tollgate::RedisStore::builder().url(url);
        let store = store.timeout(Duration::from_secs(2)).build()?;
        return Ok(limiter.store(store).build()?);
    }
    println!("Counting in process; set REDIS_URL to count on Redis.");
    Ok(limiter.build()?)
}

async fn ask(State(app): State<App>) -> Result<Bytes, Response> {
    call(&app).await.map_err(failed)
}

/// Calls the upstream until it answers, or its calls have to wait for too long.
async fn call(app: &App) -> Result<Bytes, BoxError> {
    loop {
        let request = Request::get(format!("http://{}/", app.address)).body(Empty::new())?;
        let response = app.upstream.clone().oneshot(request).await?;
        if response.status() != StatusCode::TOO_MANY_REQUESTS {
            return Ok(response.into_body().collect().await?.to_bytes());
        }
        let seconds = response.headers().get(RETRY_AFTER);
        let seconds = seconds.and_then(|seconds| seconds.to_str().ok()?.parse().ok());
        let wait = Duration::from_secs(seconds.unwrap_or(1).max(1));
        tracing::warn!(?wait, "the upstream answers 429: all calls wait");
        // All processes know of it. This call waits again, at the end of the queue.
        app.paused.block(UPSTREAM, wait).await?;
    }
}

/// 503 for calls that would have to wait for too long, 502 for other failures.
fn failed(error: BoxError) -> Response {
    let Some(rejected) = error.downcast_ref::<Rejected>() else {
        return (StatusCode::BAD_GATEWAY, format!("{error}\n")).into_response();
    };
    let seconds = rejected
        .retry_after()
        .duration()
        .unwrap_or_default()
        .as_secs()
        + 1;
    let status = StatusCode::SERVICE_UNAVAILABLE;
    (status, [(RETRY_AFTER, seconds)], format!("{rejected}\n")).into_response()
}

/// Stands for the other side: it takes 300 ms, and answers every fifth call (`BUSY`; 0: none) with 429.
async fn slow_upstream() -> Result<SocketAddr, Box<dyn Error>> {
    let busy = env::var("BUSY").map_or(Ok(5), |every| every.parse::<usize>())?;
    let calls = Arc::new(AtomicUsize::new(1));
    let answer = get(async move || {
        if calls.fetch_add(1, Ordering::Relaxed).is_multiple_of(busy) {
            let status = StatusCode::TOO_MANY_REQUESTS;
            return (status, [(RETRY_AFTER, 1)]).into_response();
        }
        tokio::time::sleep(Duration::from_millis(300)).await;
        "the upstream says hello\n".into_response()
    });
    let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
    let address = listener.local_addr()?;
    let upstream = Router::new().route("/", answer);
    tokio::spawn(async move { axum::serve(listener, upstream).await });
    Ok(address)
}
