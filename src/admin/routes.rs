//! The routes.

use std::sync::Arc;

use axum::{
    Router, middleware,
    response::Response,
    routing::{MethodRouter, get, post},
};
use http::{HeaderName, HeaderValue, StatusCode, header};

use super::{
    api::OPENAPI,
    dashboard,
    handlers::{activity, blocks, explain, health, keys, overrides, policies},
    http::{Failure, with_type},
    state::AdminState,
    token,
};

/// A route: its path, and its methods, each with a handler.
type Route = (&'static str, MethodRouter<Arc<AdminState>>);

/// The routes without authentication.
fn open_routes() -> [Route; 2] {
    [
        ("/", get(dashboard::page)),
        ("/health", get(health::health)),
    ]
}

/// The routes that need a token.
fn protected_routes() -> [Route; 16] {
    [
        ("/policies", get(policies::policies)),
        ("/config", get(policies::config)),
        ("/shadows", get(policies::shadows)),
        ("/activity", get(activity::activity)),
        ("/events", get(activity::events)),
        ("/top", get(activity::top)),
        ("/blocks", get(blocks::blocks)),
        ("/openapi.json", get(openapi)),
        ("/explain", post(explain::explain)),
        ("/peek", post(keys::peek)),
        ("/reset", post(keys::reset)),
        ("/credit", post(keys::credit)),
        ("/block", post(keys::block)),
        ("/unblock", post(keys::unblock)),
        ("/callers", post(keys::callers)),
        (
            "/overrides",
            get(overrides::list)
                .put(overrides::set)
                .delete(overrides::remove),
        ),
    ]
}

pub(super) fn router(state: Arc<AdminState>) -> Router {
    let routes = |routes: &mut dyn Iterator<Item = Route>| {
        routes.fold(Router::new(), |router, (path, handler)| {
            router.route(path, handler)
        })
    };
    let authenticate = middleware::from_fn_with_state(state.clone(), token::authenticate);
    let protected = routes(&mut protected_routes().into_iter())
        .fallback(not_found)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(authenticate);
    routes(&mut open_routes().into_iter())
        .method_not_allowed_fallback(method_not_allowed)
        .merge(protected)
        .layer(middleware::map_response(uncached))
        .with_state(state)
}

/// Keeps answers out of caches, and browsers from taking them for anything else.
async fn uncached(mut response: Response) -> Response {
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(
        HeaderName::from_static("x-content-type-options"),
        HeaderValue::from_static("nosniff"),
    );
    response
}

async fn not_found() -> Failure {
    Failure::new(StatusCode::NOT_FOUND, "the admin API has no such route")
}

async fn method_not_allowed() -> Failure {
    Failure::new(
        StatusCode::METHOD_NOT_ALLOWED,
        "the route has another method: changes and questions about a key are POST, others GET; an override is set by PUT and removed by DELETE",
    )
}

/// `GET /openapi.json`.
async fn openapi() -> Response {
    with_type(StatusCode::OK, "application/json", OPENAPI.into())
}

#[test]
fn the_document_has_the_routes_of_the_router() {
    use std::collections::BTreeSet;

    let routes = open_routes().into_iter().chain(protected_routes());
    let routes: BTreeSet<_> = routes.map(|(path, _)| path.to_owned()).collect();
    let document: serde_json::Value = serde_json::from_str(OPENAPI).expect("JSON");
    let paths = document["paths"].as_object().expect("paths");
    assert_eq!(routes, paths.keys().cloned().collect());
}
