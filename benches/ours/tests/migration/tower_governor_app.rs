use std::time::Duration;

use axum::{Router, routing::get};
use tower_governor::{GovernorLayer, governor::GovernorConfigBuilder};

pub(crate) fn app() -> Router {
    let config = GovernorConfigBuilder::default()
        .period(Duration::from_millis(500))
        .burst_size(8)
        .use_headers()
        .finish()
        .expect("a period and a burst");
    Router::new()
        .route("/", get(async || "hello"))
        .layer(GovernorLayer::new(config))
}
