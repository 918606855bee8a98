//! A service that can be operated: ten requests a minute for each client on `/`, metrics for Prometheus on `/metrics`, and
//! the admin API with its dashboard on `/admin`, behind the token in `ADMIN_TOKEN`. It counts in process; on Redis, for
//! any number of processes, if `REDIS_URL` is set.
//!
//! ```text
//! export ADMIN_TOKEN=$(openssl rand -hex 16)
//! cargo run --example operated --features admin,config,metrics
//! ```

use std::{env, error::Error, net::SocketAddr, process, sync::Arc};

use axum::{Router, routing::get};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder};
use tokio::net::TcpListener;
use tollgate::{
    Admission, Policy, Quota, RateLimitLayer,
    admin::{Activity, Admin},
    metrics::Metrics,
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    tracing_subscriber::fmt().init();
    let Ok(token) = env::var("ADMIN_TOKEN") else {
        exit("is not set; make a token by `openssl rand -hex 16`")
    };

    // Before `Metrics::new`, which registers its metrics with the recorder that is installed by then. The dashboard
    // for Grafana needs these buckets.
    let mut prometheus = PrometheusBuilder::new();
    for (metric, bounds) in tollgate::metrics::BUCKETS {
        prometheus =
            prometheus.set_buckets_for_metric(Matcher::Full((*metric).to_owned()), bounds)?;
    }
    let prometheus = prometheus.install_recorder()?;
    let metrics = Arc::new(Metrics::new("operated"));
    let activity = Arc::new(Activity::new());

    let minute = Quota::requests(10).per_minute();
    let layer = RateLimitLayer::builder()
        .policy(Policy::new("api", minute))
        // Blocks addresses by hand.
        .policy(Policy::block_list("blocked"))
        .observe(metrics.clone())
        .observe(activity.clone());
    let layer = match env::var("REDIS_URL") {
        Ok(url) => layer.store(tollgate::RedisStore::open(url)?).build()?,
        Err(_) => layer.build()?,
    };
    let admin = Admin::new(&layer).activity(activity).token("ops", token);
    let admin = admin
        .router()
        .unwrap_or_else(|error| exit(&format!("cannot be used: {error}")));

    let exposition = async move || {
        metrics.collect();
        prometheus.render()
    };
    // Only the routes above the layer are limited.
    let app = Router::new()
        .route("/", get(hello))
        .layer(layer)
        .route("/metrics", get(exposition))
        // As a service, so that `/admin/` works too.
        .nest_service("/admin", admin);

    let port = env::var("PORT").map_or(Ok(3000), |port| port.parse())?;
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    println!("Listening on http://{}.", listener.local_addr()?);

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

fn exit(reason: &str) -> ! {
    eprintln!("ADMIN_TOKEN {reason}");
    process::exit(2)
}

async fn hello(admission: Admission) -> String {
    let left = admission.remaining("api").unwrap_or_default();
    format!("Hello! {left} more now.\n")
}
