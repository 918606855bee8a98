//! An OCR service that calls a paid provider: five successes a minute for each user.
//!
//! By default it checks on arrival, and charges when the provider has succeeded, so that requests in flight together can
//! exceed the limit. With `RESERVE=1` it charges on arrival and refunds requests that failed, so that they can't.
//!
//! ```text
//! PORT=3000 cargo run --example ocr
//! curl -X POST 'http://127.0.0.1:3000/ocr?user=alice&ms=100'         # a provider that takes 100 ms
//! curl -X POST 'http://127.0.0.1:3000/ocr?user=alice&ms=100&fail=1'  # and one that fails
//! ```

use std::{env, error::Error, time::Duration};

use axum::{
    Router,
    extract::Query,
    http::{StatusCode, request::Parts},
    routing::post,
};
use tokio::net::TcpListener;
use tollgate::{Admission, Key, Policy, Quota, RateLimitLayer, extract, outcome};

#[derive(serde::Deserialize)]
struct Job {
    user: String,
    #[serde(default)]
    ms: u64,
    #[serde(default)]
    fail: u8,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    tracing_subscriber::fmt().init();
    let app = Router::new().route("/ocr", post(ocr)).layer(layer()?);

    let port = env::var("PORT").map_or(Ok(3000), |port| port.parse())?;
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    println!("Listening on http://{}", listener.local_addr()?);
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

fn layer() -> Result<RateLimitLayer, Box<dyn Error>> {
    let per_user = Policy::new("ocr", Quota::requests(5).per_minute())
        .strategy(tollgate::FixedWindow)
        .key(extract::from_fn(user));
    let per_user = if env::var("RESERVE").is_ok_and(|reserve| reserve == "1") {
        println!("Reserving: charged on arrival, refunded on failure.");
        per_user.refund_unless(outcome::success)
    } else {
        println!("Checking: checked on arrival, charged on success.");
        per_user.charge_after(outcome::success)
    };
    let layer = RateLimitLayer::builder().policy(per_user);
    if let Ok(url) = env::var("REDIS_URL") {
        println!("Counting on Redis.");
        return Ok(layer.store(tollgate::RedisStore::open(url)?).build()?);
    }
    Ok(layer.build()?)
}

/// The caller: the user in the query.
fn user(parts: &Parts) -> Option<Key> {
    let Query(job) = Query::<Job>::try_from_uri(&parts.uri).ok()?;
    Some(Key::new(job.user))
}

async fn ocr(
    Query(job): Query<Job>,
    admission: Admission,
) -> Result<String, (StatusCode, &'static str)> {
    provider(&job)
        .await
        .map_err(|()| (StatusCode::BAD_GATEWAY, "the provider failed\n"))?;
    let left = admission.remaining("ocr").unwrap_or_default();
    Ok(format!("recognised for {}; {left} left\n", job.user))
}

/// Stands for the paid provider, with the delay and the failures that the query asks for.
async fn provider(job: &Job) -> Result<(), ()> {
    tokio::time::sleep(Duration::from_millis(job.ms)).await;
    if job.fail == 1 { Err(()) } else { Ok(()) }
}
