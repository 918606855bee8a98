//! Limits in a file that is edited while the service runs: `limits.toml` beside this file, or the file that `LIMITS` names.
//! They count in process; on Redis, for any number of processes, if `REDIS_URL` is set.
//!
//! ```text
//! cargo run --example configured --features config
//! LIMITS=examples/configured/limits.yaml cargo run --example configured --features config-yaml
//! ```

use std::{env, error::Error, net::SocketAddr, process};

use axum::{Router, routing::get};
use tokio::net::TcpListener;
use tollgate::{
    Admission,
    config::{Document, Registry, Watch},
};

const SHIPPED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/configured/limits.toml");

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    tracing_subscriber::fmt().init();
    let limits = env::var("LIMITS").unwrap_or_else(|_| SHIPPED.to_owned());
    // Keys, costs and tiers that need code would be registered here by name.
    let registry = Registry::new();
    let layer = Document::load(&limits).and_then(|document| document.layer(&registry));
    let layer = layer.unwrap_or_else(|error| {
        eprintln!("{error}");
        process::exit(1)
    });

    let port = env::var("PORT").map_or(Ok(3000), |port| port.parse())?;
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    println!(
        "Listening on http://{}. Edit {limits}.",
        listener.local_addr()?
    );

    // Logs what each reload has changed, and why a file could not be loaded.
    let watch = Watch::new(&limits).registry(registry);
    #[cfg(unix)]
    let watch = watch.on_hangup();
    let _watcher = watch.start(&layer)?;

    let app = Router::new().route("/", get(hello)).layer(layer);
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

async fn hello(admission: Admission) -> String {
    let left = admission.remaining("api").unwrap_or_default();
    format!("Hello! {left} more now.\n")
}
