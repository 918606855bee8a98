//! A service whose limits are in a file, with metrics and the admin API. It is a process of its own, so that it can be on the
//! clock of a session.

use std::{env, error::Error};

use metrics_exporter_prometheus::PrometheusBuilder;
use tokio::net::TcpListener;
use tollgate::{
    admin::{Activity, Admin},
    config::Watch,
    metrics::Metrics,
};
use tollgate_tests::prelude::*;

#[test]
fn serves_the_limits_of_a_file() {
    // Set in the processes that sessions start.
    if let Ok(limits) = env::var("LIMITS") {
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        runtime.block_on(serve(&limits)).expect("it serves");
    }
}

async fn serve(limits: &str) -> Result<(), Box<dyn Error>> {
    tracing_subscriber::fmt().init();
    let prometheus = PrometheusBuilder::new().install_recorder()?;
    let metrics = Arc::new(Metrics::new("operated"));
    let activity = Arc::new(Activity::new());
    let registry = Registry::new()
        .observe(metrics.clone())
        .observe(activity.clone());
    let layer = Document::load(limits)?.layer(&registry)?;
    let _watcher = Watch::new(limits).registry(registry).start(&layer)?;
    let admin = Admin::new(&layer).activity(activity);
    let admin = admin.token("ops", env::var("ADMIN_TOKEN")?).router()?;
    let exposition = async move || {
        metrics.collect();
        prometheus.render()
    };
    let app = Router::new()
        .route("/", get(async || "hello"))
        .layer(layer)
        .route("/metrics", get(exposition))
        .nest_service("/admin", admin);
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("\nListening on http://{}", listener.local_addr()?);
    let service = app.into_make_service_with_connect_info::<SocketAddr>();
    Ok(axum::serve(listener, service).await?)
}
