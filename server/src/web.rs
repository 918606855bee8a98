//! The HTTP port: requests in JSON, health, and metrics.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use axum::{
    Router,
    body::Bytes,
    extract::State,
    response::{IntoResponse, Response},
    routing::{get, post},
};
use http::{StatusCode, header::CONTENT_TYPE};
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::sync::Mutex;
use tollgate::metrics::Metrics;

use crate::{
    engine::{Engine, Refusal},
    json,
    proto::Code,
};

/// What the routes share.
#[derive(Clone, Debug)]
pub(crate) struct Web {
    pub(crate) engine: Engine,
    /// Whether the server accepts requests, and is not about to end.
    pub(crate) healthy: Arc<AtomicBool>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) prometheus: PrometheusHandle,
    /// Held by the scrape that is answered.
    pub(crate) scrape: Arc<Mutex<()>>,
}

impl Web {
    pub(crate) fn router(self) -> Router {
        Router::new()
            .route("/json", post(decide))
            .route("/healthcheck", get(health))
            .route("/metrics", get(metrics))
            .with_state(self)
    }
}

async fn decide(State(web): State<Web>, body: Bytes) -> Response {
    let request = match json::parse_request(&body) {
        Ok(request) => request,
        Err(error) => return (StatusCode::BAD_REQUEST, error.to_string()).into_response(),
    };
    // No client is authenticated here, so none may send credits.
    match web.engine.decide(request, false).await {
        Ok(response) => {
            let status = if response.overall_code() == Code::OverLimit {
                StatusCode::TOO_MANY_REQUESTS
            } else {
                StatusCode::OK
            };
            let json = [(CONTENT_TYPE, "application/json")];
            (status, json, json::write_response(&response)).into_response()
        }
        Err(refusal) => {
            let status = match &refusal {
                Refusal::Invalid(_) | Refusal::Denied | Refusal::Unsupported(_) => {
                    StatusCode::BAD_REQUEST
                }
                Refusal::TooMany(_) | Refusal::Store(_) | Refusal::Internal(_) => {
                    StatusCode::INTERNAL_SERVER_ERROR
                }
            };
            (status, refusal.to_string()).into_response()
        }
    }
}

async fn health(State(web): State<Web>) -> Response {
    if web.healthy.load(Ordering::Relaxed) {
        "OK".into_response()
    } else {
        (StatusCode::INTERNAL_SERVER_ERROR, "NOT SERVING").into_response()
    }
}

/// One at a time, and beside the threads that decide requests: with many rules it takes long.
async fn metrics(State(web): State<Web>) -> Response {
    let _one = web.scrape.lock().await;
    let web = web.clone();
    let rendered = tokio::task::spawn_blocking(move || {
        web.metrics.collect();
        web.prometheus.render() + &web.engine.render_metrics()
    });
    match rendered.await {
        Ok(text) => text.into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}
