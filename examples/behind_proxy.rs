//! A server behind proxies: it answers with the client's address that it counts by, five times per ten seconds for each.
//!
//! `TRUSTED_PROXIES` lists the networks of the trusted proxies, separated by commas; without it no proxy is trusted. It counts in
//! process, or on Redis, for any number of processes, if `REDIS_URL` is set.
//!
//! ```text
//! TRUSTED_PROXIES=127.0.0.1/32 cargo run --example behind_proxy
//! curl -H 'X-Forwarded-For: 203.0.113.9' http://127.0.0.1:3000/   # as nginx on this machine would ask
//! ```

use std::{env, error::Error, net::SocketAddr, time::Duration};

use axum::{Router, extract::State, http::Request, routing::get};
use tokio::net::TcpListener;
use tollgate::{
    Policy, Quota, RateLimitLayer,
    extract::{self, ClientIp},
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    tracing_subscriber::fmt().init();
    let client = client();
    let app = Router::new()
        .route("/", get(address))
        .layer(layer(client.clone())?)
        .with_state(client);

    let port = env::var("PORT").map_or(Ok(3000), |port| port.parse())?;
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    println!("Listening on http://{}", listener.local_addr()?);
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

/// The client's address, for the layer, which counts by it, and for the handler, which shows it.
fn client() -> ClientIp {
    let named = env::var("TRUSTED_PROXIES").unwrap_or_default();
    let proxies = named.split(',').map(str::trim);
    extract::client_ip().trusted_proxies(proxies.filter(|proxy| !proxy.is_empty()))
}

fn layer(client: ClientIp) -> Result<RateLimitLayer, Box<dyn Error>> {
    let quota = Quota::requests(5).per(Duration::from_secs(10));
    let layer = RateLimitLayer::builder().policy(Policy::new("clients", quota).key(client));
    if let Ok(url) = env::var("REDIS_URL") {
        println!("Counting on Redis.");
        return Ok(layer.store(tollgate::RedisStore::open(url)?).build()?);
    }
    println!("Counting in process; set REDIS_URL to count on Redis.");
    Ok(layer.build()?)
}

async fn address<B>(State(client): State<ClientIp>, request: Request<B>) -> String {
    let (parts, _) = request.into_parts();
    match client.address(&parts) {
        Some(address) => format!("{address}\n"),
        None => "unknown\n".to_owned(),
    }
}
