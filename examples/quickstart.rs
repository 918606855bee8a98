//! Ten requests per ten seconds for each client, in process; on Redis, for any number of processes, if `REDIS_URL` is
//! set.
//!
//! ```text
//! cargo run --example quickstart
//! ```

use std::{env, error::Error, net::SocketAddr, time::Duration};

use axum::{Router, routing::get};
use tokio::net::TcpListener;
use tollgate::{Admission, Policy, Quota, RateLimitLayer};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    tracing_subscriber::fmt().init();
    let app = Router::new().route("/", get(hello)).layer(layer()?);

    let port = env::var("PORT").map_or(Ok(3000), |port| port.parse())?;
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    let address = listener.local_addr()?;
    println!("Listening on http://{address}. Ten requests pass in ten seconds; try twelve:\n");
    println!(
        "  for i in $(seq 12); do curl -s -o /dev/null -w '%{{http_code}} ' http://{address}/; done; echo\n"
    );

    // The client's address is what the limit counts by.
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

fn layer() -> Result<RateLimitLayer, Box<dyn Error>> {
    let quota = Quota::requests(10).per(Duration::from_secs(10));
    let layer = RateLimitLayer::builder().policy(Policy::new("burst", quota));
    if let Ok(url) = env::var("REDIS_URL") {
        println!("Counting on Redis.");
        return Ok(layer.store(tollgate::RedisStore::open(url)?).build()?);
    }
    println!("Counting in process; set REDIS_URL to count on Redis.");
    Ok(layer.build()?)
}

async fn hello(admission: Admission) -> String {
    let left = admission.remaining("burst").unwrap_or_default();
    format!("Hello! {left} more now.\n")
}
