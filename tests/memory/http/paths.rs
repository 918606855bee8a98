//! The path and the route of a request as keys.

use crate::http::{extractors::*, support::*};

/// A router with a layer at `where_`, over `/api/users/{id}` in a nested router.
fn nested(layer: &RateLimitLayer, inside: bool) -> Router {
    let users = Router::new()
        .route("/users/{id}", get(async || ""))
        .fallback(async || StatusCode::NOT_FOUND);
    match inside {
        true => Router::new().nest("/api", users.layer(layer.clone())),
        false => Router::new().nest("/api", users).layer(layer.clone()),
    }
}

#[tokio::test]
async fn a_path_is_the_one_that_the_client_sent_inside_and_outside_a_nested_router() {
    let layer = counted_by(extract::path());
    for inside in [true, false] {
        let app = nested(&layer, inside);
        assert_eq!(status(&app, "/api/users/1?page=2").await, 200);
        assert_eq!(status(&app, "/api/users/1").await, 200);
    }
    let service = nested(&layer, true);
    let twice = Router::new().nest("/v1", Router::new().nest_service("/inner", service));
    assert_eq!(status(&twice, "/v1/inner/api/users/1").await, 200);
    assert_eq!(count(&layer, Key::new("/api/users/1")).await, 4);
    assert_eq!(count(&layer, Key::new("/v1/inner/api/users/1")).await, 1);
    assert_eq!(count(&layer, Key::new("/users/1")).await, 0);
}

#[tokio::test]
async fn a_path_is_found_without_axum_too() {
    let layer = counted_by(extract::path());
    let around = tower::ServiceBuilder::new()
        .layer(layer.clone())
        .service(Router::new().fallback(async || "a fallback"));
    assert_eq!(status(&around, "/a/path").await, 200);
    assert_eq!(count(&layer, Key::new("/a/path")).await, 1);
}

#[tokio::test]
async fn a_matched_path_is_the_route_whatever_its_parameters() {
    for inside in [true, false] {
        let layer = counted_by(extract::matched_path());
        let app = nested(&layer, inside);
        for uri in ["/api/users/1", "/api/users/2", "/api/users/3?x"] {
            assert_eq!(status(&app, uri).await, 200);
        }
        assert_eq!(count(&layer, Key::new("/api/users/{id}")).await, 3);
    }
}

#[tokio::test]
async fn requests_that_match_no_route_share_one_bucket() {
    let layer = counted_by(extract::matched_path());
    let app = hello(&layer);
    for uri in ["/a", "/b", "/c"] {
        assert_eq!(status(&app, uri).await, 404);
    }
    assert_eq!(count(&layer, Key::new("")).await, 3);
    assert_eq!(count(&layer, Key::new("/")).await, 0);

    // And so they do in a nested router with a layer of its own.
    let layer = counted_by(extract::matched_path());
    let app = nested(&layer, true);
    for uri in ["/api/a", "/api/b", "/api/c"] {
        assert_eq!(status(&app, uri).await, 404);
    }
    assert_eq!(count(&layer, Key::new("")).await, 3);
}
