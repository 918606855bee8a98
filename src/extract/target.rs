use http::request::Parts;

use super::KeyExtractor;
use crate::key::Key;

/// Counts each path by itself, without its query: as the client sent it, also within a nested axum router. The key is
/// [`Key::new`].
///
/// Clients choose paths freely; where routes have parameters, `matched_path` has fewer keys.
pub fn path() -> Path {
    Path
}

/// See [`path`].
#[derive(Clone, Copy, Debug)]
pub struct Path;

impl KeyExtractor for Path {
    fn key(&self, parts: &Parts) -> Option<Key> {
        Some(Key::new(original_path(parts)))
    }
}

/// The path as the client sent it, without its query: within a nested axum router, `parts.uri` lacks the path that the
/// router is nested at.
///
/// ```
/// use tollgate::{Policy, Quota, extract};
///
/// let policy = Policy::new("uploads", Quota::requests(10).per_minute())
///     .only_with(|parts| extract::original_path(parts).ends_with("/upload"));
/// ```
pub fn original_path(parts: &Parts) -> &str {
    #[cfg(feature = "axum")]
    if let Some(::axum::extract::OriginalUri(uri)) = parts.extensions.get() {
        return uri.path();
    }
    parts.uri.path()
}

/// Counts each method by itself. The key is [`Key::new`].
pub fn method() -> Method {
    Method
}

/// See [`method`].
#[derive(Clone, Copy, Debug)]
pub struct Method;

impl KeyExtractor for Method {
    fn key(&self, parts: &Parts) -> Option<Key> {
        Some(Key::new(parts.method.as_str()))
    }
}

/// Counts each axum route by itself: `/users/{id}` is one, whatever the id. The key is [`Key::new`]. Requests that match
/// no route share one bucket, whose key is `Key::new("")`.
///
/// axum knows the route only after routing, so the layer has to be a `Router::route_layer`, or a `Router::layer` over
/// routes; around the whole router every request would share the one bucket.
#[cfg(feature = "axum")]
pub fn matched_path() -> RoutePath {
    RoutePath
}

/// See [`matched_path`].
#[cfg(feature = "axum")]
#[derive(Clone, Copy, Debug)]
pub struct RoutePath;

#[cfg(feature = "axum")]
impl KeyExtractor for RoutePath {
    fn key(&self, parts: &Parts) -> Option<Key> {
        let route = parts.extensions.get::<::axum::extract::MatchedPath>();
        Some(Key::new(route.map_or("", |route| route.as_str())))
    }
}

/// Counts everybody together. The key is [`Key::global`].
pub fn global() -> Global {
    Global
}

/// See [`global`].
#[derive(Clone, Copy, Debug)]
pub struct Global;

impl KeyExtractor for Global {
    fn key(&self, _parts: &Parts) -> Option<Key> {
        Some(Key::global())
    }
}
