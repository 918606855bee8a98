//! Free callers have 10 requests a minute, paying ones 1,000. A middleware in front of the limiter looks the caller's tier up and puts
//! it into the request's extensions, where the policy finds it. A look-up that takes longer than 50 ms makes a caller a free one.
//!
//! ```text
//! PORT=3000 cargo run --example tiers
//! curl -i -H 'x-api-key: free-alice' http://127.0.0.1:3000/
//! curl -i -H 'x-api-key: paid-bob' http://127.0.0.1:3000/
//! ```

use std::{env, error::Error, time::Duration};

use axum::{
    Router,
    extract::Request,
    middleware::{Next, from_fn},
    response::Response,
    routing::get,
};
use tokio::{net::TcpListener, time::timeout};
use tollgate::{Admission, Policy, Quota, RateLimitLayer, extract};

/// A caller's tier, in the request's extensions.
#[derive(Clone, Copy)]
enum Tier {
    Free,
    Paid,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    tracing_subscriber::fmt().init();
    let app = Router::new().route("/", get(hello)).layer(layer()?);
    // The layer that is added last runs first.
    let app = app.layer(from_fn(find_tier));

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
    let paid = Quota::requests(1_000).per_minute();
    let policy = Policy::new("api", Quota::requests(10).per_minute())
        .key(extract::header("x-api-key"))
        .quota_with(move |parts| match parts.extensions.get::<Tier>()? {
            Tier::Free => None,
            Tier::Paid => Some(paid),
        })
        .tier_quotas([paid]);
    let layer = RateLimitLayer::builder().policy(policy);
    if let Ok(url) = env::var("REDIS_URL") {
        println!("Counting on Redis.");
        return Ok(layer.store(tollgate::RedisStore::open(url)?).build()?);
    }
    Ok(layer.build()?)
}

async fn find_tier(mut request: Request, next: Next) -> Response {
    let api_key = request.headers().get("x-api-key");
    if let Some(api_key) = api_key.and_then(|api_key| api_key.to_str().ok()) {
        let tier = timeout(Duration::from_millis(50), tier_of(api_key)).await;
        let tier = tier.unwrap_or(Tier::Free);
        request.extensions_mut().insert(tier);
    }
    next.run(request).await
}

/// Stands for a look-up in a database, behind a cache: callers named `paid-...` pay, and a look-up of `slow-...` hangs.
async fn tier_of(api_key: &str) -> Tier {
    match api_key.split_once('-') {
        Some(("paid", _)) => Tier::Paid,
        Some(("slow", _)) => std::future::pending().await,
        _ => Tier::Free,
    }
}

async fn hello(admission: Admission) -> String {
    let left = admission.remaining("api").unwrap_or_default();
    format!("Hello! {left} more now.\n")
}
