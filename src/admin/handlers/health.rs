//! The health of the store.

use axum::{
    extract::{Request, State},
    response::Response,
};
use http::StatusCode;

use crate::{
    admin::{
        api::Health,
        http::json,
        state::SharedState,
        token::{self, AdminUser, Identity},
    },
    store::health::HealthReport,
};

/// `GET /health`: without a token whether the store is healthy, with one the issues too.
pub(crate) async fn health(State(state): SharedState, request: Request) -> Response {
    let inserted = request.extensions().get::<AdminUser>();
    let identity = state.authentication.identify(request.headers(), inserted);
    if let Identity::WrongToken = identity {
        return token::unauthorized(true);
    }
    let report = state.health().await;
    let status = if report.is_healthy() {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    let health = match identity {
        Identity::Known(_) => details(&report),
        _ => Health {
            healthy: report.is_healthy(),
            ..Health::default()
        },
    };
    json(status, &health)
}

fn details(report: &HealthReport) -> Health {
    let unlisted = match report.unlisted_issues() {
        0 => None,
        unlisted => Some(format!("{unlisted} more issues are not listed")),
    };
    let issues = report.issues().iter().map(ToString::to_string);
    let issues = issues.chain(unlisted);
    let warnings = report.warnings().iter().map(ToString::to_string);
    let unchecked = report.unchecked().iter().map(|what| (*what).to_owned());
    Health {
        healthy: report.is_healthy(),
        issues: Some(issues.collect()),
        warnings: Some(warnings.collect()),
        unchecked: Some(unchecked.collect()),
        dropped_refunds: Some(report.dropped_refunds()),
        unconfirmed: Some(report.unconfirmed()),
    }
}
