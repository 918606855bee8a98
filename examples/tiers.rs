//! Free callers have 10 requests a minute, paying ones 1,000. The caller's tier is looked up; a look-up that fails, or takes longer
//! than 50 ms, makes a caller a free one. A result is kept for a minute.
//!
//! ```text
//! PORT=3000 cargo run --example tiers
//! curl -i -H 'x-api-key: free-alice' http://127.0.0.1:3000/
//! curl -i -H 'x-api-key: paid-bob' http://127.0.0.1:3000/
//! ```

use std::{
    collections::HashMap,
    env,
    error::Error,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use axum::{Router, http::request::Parts, routing::get};
use tokio::{net::TcpListener, sync::OnceCell};
use tollgate::{Admission, Policy, Quota, RateLimitLayer, extract};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    tracing_subscriber::fmt().init();
    let app = Router::new().route("/", get(hello)).layer(layer()?);

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
    let tiers = Tiers::default();
    let policy = Policy::new("api", Quota::requests(10).per_minute())
        .key(extract::header("x-api-key"))
        .quota_lookup(Duration::from_millis(50), move |parts: &Parts| {
            let api_key = parts.headers.get("x-api-key").cloned();
            let tiers = tiers.clone();
            async move { tiers.quota(api_key?.to_str().ok()?).await }
        });
    let layer = RateLimitLayer::builder().policy(policy);
    if let Ok(url) = env::var("REDIS_URL") {
        println!("Counting on Redis.");
        return Ok(layer.store(tollgate::RedisStore::open(url)?).build()?);
    }
    Ok(layer.build()?)
}

/// The quota of a caller's tier, or the look-up of it that others wait for; `None` is the policy's own.
type Tier = Arc<OnceCell<Option<Quota>>>;

/// The quotas of callers, each with the time of its look-up.
#[derive(Clone, Default)]
struct Tiers(Arc<Mutex<HashMap<String, (Instant, Tier)>>>);

impl Tiers {
    const KEPT: Duration = Duration::from_secs(60);
    const MAX_KEPT: usize = 10_000;

    async fn quota(&self, api_key: &str) -> Option<Quota> {
        // Requests of one caller that come together wait for one look-up. (A look-up that can fail takes `get_or_try_init`, which
        // keeps no errors.)
        *self.tier(api_key).get_or_init(|| quota_of(api_key)).await
    }

    fn tier(&self, api_key: &str) -> Tier {
        let mut tiers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // A client can make up any number of API keys.
        if tiers.len() >= Self::MAX_KEPT && !tiers.contains_key(api_key) {
            tiers.clear();
        }
        let entry = tiers.entry(api_key.to_owned());
        let (since, tier) = entry.or_insert_with(|| (Instant::now(), Tier::default()));
        if since.elapsed() >= Self::KEPT {
            (*since, *tier) = (Instant::now(), Tier::default());
        }
        tier.clone()
    }
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
