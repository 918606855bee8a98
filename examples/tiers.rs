//! Free callers have 10 requests a minute, paying ones 1,000. The caller's tier is looked up; a look-up that fails, or takes longer
//! than 50 ms, makes a caller a free one.
//!
//! ```text
//! PORT=3000 cargo run --example tiers
//! curl -i -H 'x-api-key: free-alice' http://127.0.0.1:3000/
//! curl -i -H 'x-api-key: paid-bob' http://127.0.0.1:3000/
//! ```

use std::{env, error::Error, time::Duration};

use axum::{Router, http::request::Parts, routing::get};
use tokio::net::TcpListener;
use tollgate::{Admission, Policy, Quota, RateLimitLayer, extract};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    tracing_subscriber::fmt().init();
    let app = Router::new().route("/", get(hello)).layer(layer()?);

    let port = env::var("PORT").map_or(Ok(3000), |port| port.parse())?;
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    println!("Listening on http://{}", listener.local_addr()?);
    axum::serve(listener, app).await?;
    Ok(())
}

fn layer() -> Result<RateLimitLayer, Box<dyn Error>> {
    let policy = Policy::new("api", Quota::requests(10).per_minute())
        .key(extract::header("x-api-key"))
        .quota_lookup(Duration::from_millis(50), |parts: &Parts| {
            let api_key = parts.headers.get("x-api-key").cloned();
            async move { quota_of(api_key?.to_str().ok()?).await }
        });
    let layer = RateLimitLayer::builder().policy(policy);
    #[cfg(feature = "redis")]
    if let Ok(url) = env::var("REDIS_URL") {
        println!("Counting on Redis.");
        return Ok(layer.store(tollgate::RedisStore::open(url)?).build()?);
    }
    Ok(layer.build()?)
}

/// Stands for a look-up in a database: callers named `paid-...` pay, and a look-up of `slow-...` hangs.
async fn quota_of(api_key: &str) -> Option<Quota> {
    match api_key.split_once('-')?.0 {
        "paid" => Some(Quota::requests(1_000).per_minute()),
        "slow" => std::future::pending().await,
        _ => None,
    }
}

async fn hello(admission: Admission) -> String {
    let left = admission.remaining("api").unwrap_or_default();
    format!("Hello! {left} more now.\n")
}
