//! A key extractor of one's own: three requests a minute for each tenant on each path.
//!
//! ```text
//! cargo run --example custom_key
//! ```

use std::{env, error::Error};

use axum::{Router, http::request::Parts, routing::get};
use tokio::net::TcpListener;
use tollgate::{
    Key, KeyExtractor, Policy, Quota, RateLimitLayer,
    extract::{self, Extracted},
};

/// Each tenant on each path. A gateway in front sets `x-tenant` to the tenant's name, in upper or lower case.
///
/// If names were always written alike, the tuple `(extract::header("x-tenant"), extract::path())` would do.
#[derive(Debug)]
struct TenantAndPath;

impl KeyExtractor for TenantAndPath {
    /// A request without a tenant is rejected with 400, unless the policy's `missing_key` says otherwise. One with several
    /// tenants is rejected in any case.
    fn extract(&self, parts: &Parts) -> Extracted {
        let mut tenants = parts.headers.get_all("x-tenant").into_iter();
        let Some(tenant) = tenants.next() else {
            return Extracted::Absent;
        };
        if tenants.any(|other| other != tenant) {
            return Extracted::Ambiguous;
        }
        let Ok(tenant) = tenant.to_str() else {
            return Extracted::Absent;
        };
        let tenant = Key::new(tenant.to_ascii_lowercase());
        let path = extract::path().extract(parts);
        path.map(|path| Key::tuple([tenant, path]))
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    tracing_subscriber::fmt().init();
    let quota = Quota::requests(3).per_minute();
    let layer = RateLimitLayer::builder()
        .policy(Policy::new("tenants", quota).key(TenantAndPath))
        .build()?;
    let app = Router::new()
        .route("/reports", get(async || "Reports\n"))
        .route("/search", get(async || "Search\n"))
        // Around the routes only: paths that don't exist make no keys.
        .route_layer(layer);

    let port = env::var("PORT").map_or(Ok(3000), |port| port.parse())?;
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    let address = listener.local_addr()?;
    println!("Listening on http://{address}. Each tenant has three a minute on each path:\n");
    println!(
        "  for tenant in acme ACME Acme acme globex; do curl -s -o /dev/null -w '%{{http_code}} ' \
         -H \"x-tenant: $tenant\" http://{address}/reports; done; echo\n"
    );

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
