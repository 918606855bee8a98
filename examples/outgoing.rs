//! A service that calls a slow upstream, which allows five calls a second: requests wait their turn, in order, for up to
//! ten seconds (`TIMEOUT`). In process; on Redis, for any number of processes together, if `REDIS_URL` is set.
//!
//! ```text
//! cargo run --example outgoing
//! ```

use std::{env, error::Error, net::SocketAddr, time::Duration};

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
    Limiter, OutgoingLayer, Policy, Quota, Rejected, extract,
    outgoing::{BoxError, Outgoing},
};
use tower::{ServiceBuilder, ServiceExt};

/// The client, limited.
type Upstream = Outgoing<Client<HttpConnector, Empty<Bytes>>>;

#[derive(Clone)]
struct App {
    upstream: Upstream,
    address: SocketAddr,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    tracing_subscriber::fmt().init();
    let timeout = env::var("TIMEOUT").map_or(Ok(10), |seconds| seconds.parse())?;
    let layer = OutgoingLayer::new(limiter()?)
        .timeout(Duration::from_secs(timeout))
        .queue(100);
    let client = Client::builder(TokioExecutor::new()).build_http();
    let app = App {
        upstream: ServiceBuilder::new().layer(layer).service(client),
        address: slow_upstream().await?,
    };

    let port = env::var("PORT").map_or(Ok(3000), |port| port.parse())?;
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    let address = listener.local_addr()?;
    println!("Listening on http://{address}. Twelve at once take two seconds; try them:\n");
    println!("  for i in $(seq 12); do curl -s http://{address}/ & done; wait");
    let app = Router::new().route("/", get(ask)).with_state(app);
    axum::serve(listener, app).await?;
    Ok(())
}

fn limiter() -> Result<Limiter, Box<dyn Error>> {
    // Evenly: one every 200 ms.
    let quota = Quota::requests(5).per_second().burst(1);
    let limiter = Limiter::builder().policy(Policy::new("upstream", quota).key(extract::global()));
    #[cfg(feature = "redis")]
    if let Ok(url) = env::var("REDIS_URL") {
        println!("Counting on Redis.");
        // Who can wait for his turn can wait for Redis too.
        let store = tollgate::RedisStore::builder().url(url);
        let store = store.timeout(Duration::from_secs(2)).build()?;
        return Ok(limiter.store(store).build()?);
    }
    println!("Counting in process; set REDIS_URL to count on Redis.");
    Ok(limiter.build()?)
}

async fn ask(State(app): State<App>) -> Result<Bytes, Response> {
    let request = Request::get(format!("http://{}/", app.address)).body(Empty::new());
    let request = request.map_err(|error| failed(error.into()))?;
    let response = app.upstream.oneshot(request).await.map_err(failed)?;
    let body = response.into_body().collect().await;
    Ok(body.map_err(|error| failed(error.into()))?.to_bytes())
}

/// 503 for those who would have to wait for too long, 502 for all else.
fn failed(error: BoxError) -> Response {
    let Some(refused) = error.downcast_ref::<Rejected>() else {
        return (StatusCode::BAD_GATEWAY, format!("{error}\n")).into_response();
    };
    let seconds = refused
        .retry_after()
        .duration()
        .unwrap_or_default()
        .as_secs()
        + 1;
    let status = StatusCode::SERVICE_UNAVAILABLE;
    (status, [(RETRY_AFTER, seconds)], format!("{refused}\n")).into_response()
}

/// Stands for the other side: it takes 300 ms.
async fn slow_upstream() -> Result<SocketAddr, Box<dyn Error>> {
    let answer = get(async || {
        tokio::time::sleep(Duration::from_millis(300)).await;
        "the upstream says hello\n"
    });
    let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
    let address = listener.local_addr()?;
    let upstream = Router::new().route("/", answer);
    tokio::spawn(async move { axum::serve(listener, upstream).await });
    Ok(address)
}
