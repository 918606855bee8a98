//! The path, the method and the axum route of a request, and the one key of all requests ([`global`]).

use std::borrow::Cow;
#[cfg(feature = "axum")]
use std::sync::Arc;

use http::request::Parts;

use super::{Extracted, KeyExtractor, field};
use crate::key::Key;
#[cfg(feature = "axum")]
use crate::log::LogThrottle;

/// Counts each path separately, without its query, as the client sent it, also within a nested axum router. The key is
/// [`Key::new`].
///
/// Clients choose paths freely; for routes with parameters, `matched_path` has fewer keys.
pub fn path() -> Path {
    Path
}

/// The extractor of the path, from [`path`].
#[derive(Clone, Copy, Debug)]
pub struct Path;

impl KeyExtractor for Path {
    fn extract(&self, parts: &Parts) -> Extracted {
        Key::new(original_path(parts)).into()
    }

    fn key_from_text(&self, texts: &[&str]) -> Option<Key> {
        field::text(texts).map(Key::new)
    }

    fn config_text(&self) -> Option<Cow<'_, str>> {
        Some("path".into())
    }
}

/// Returns the path as the client sent it, without its query. Within a nested axum router, `parts.uri` lacks the prefix that
/// the router is nested at.
///
/// ```
/// use tollgate::{Policy, Quota, extract};
///
/// let (parts, ()) = http::Request::get("/v1/upload?part=2").body(()).unwrap().into_parts();
/// assert_eq!(extract::original_path(&parts), "/v1/upload");
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

/// Counts each HTTP method separately. The key is [`Key::new`].
pub fn method() -> Method {
    Method
}

/// The extractor of the HTTP method, from [`method`].
#[derive(Clone, Copy, Debug)]
pub struct Method;

impl KeyExtractor for Method {
    fn extract(&self, parts: &Parts) -> Extracted {
        Key::new(parts.method.as_str()).into()
    }

    fn key_from_text(&self, texts: &[&str]) -> Option<Key> {
        field::text(texts).map(Key::new)
    }

    fn config_text(&self) -> Option<Cow<'_, str>> {
        Some("method".into())
    }
}

/// Counts each axum route separately: `/users/{id}` is one, whatever the id. The key is [`Key::new`] of the route. Requests
/// that match no route share one bucket, whose key is `Key::new("")`.
///
/// axum sets the route only after routing, so the layer has to be added by `Router::route_layer`, or by `Router::layer` after
/// the routes. Around the whole router all requests share one bucket, and a warning is logged, at most every 10 s.
#[cfg(feature = "axum")]
pub fn matched_path() -> RoutePath {
    RoutePath {
        unrouted_log: Arc::default(),
    }
}

/// The extractor of the axum route, from [`matched_path`].
#[cfg(feature = "axum")]
#[derive(Clone, Debug)]
pub struct RoutePath {
    unrouted_log: Arc<LogThrottle>,
}

#[cfg(feature = "axum")]
impl KeyExtractor for RoutePath {
    fn extract(&self, parts: &Parts) -> Extracted {
        let route = parts.extensions.get::<::axum::extract::MatchedPath>();
        if route.is_none() {
            self.warn_if_unrouted(parts);
        }
        Key::new(route.map_or("", |route| route.as_str())).into()
    }

    fn key_from_text(&self, texts: &[&str]) -> Option<Key> {
        field::text(texts).map(Key::new)
    }

    fn config_text(&self) -> Option<Cow<'_, str>> {
        Some("matched_path".into())
    }
}

#[cfg(feature = "axum")]
impl RoutePath {
    /// Warns of a request that has not passed any axum router yet, so that it can't have a route.
    #[cold]
    fn warn_if_unrouted(&self, parts: &Parts) {
        let routed = parts.extensions.get::<::axum::extract::OriginalUri>();
        if routed.is_some() {
            return;
        }
        self.unrouted_log.log_with(|suppressed| {
            tracing::warn!(
                suppressed,
                "a policy counts by `matched_path()`, and a request reached it before any axum router: probably its layer \
                 is around the whole router, where all routes share one bucket; if so, add it by `Router::layer` or \
                 `Router::route_layer`"
            );
        });
    }
}

/// Counts all requests together. The key is [`Key::global`].
pub fn global() -> Global {
    Global
}

/// The extractor of the one key of all requests, from [`global`].
#[derive(Clone, Copy, Debug)]
pub struct Global;

impl KeyExtractor for Global {
    fn extract(&self, _parts: &Parts) -> Extracted {
        Key::global().into()
    }

    fn key_from_text(&self, texts: &[&str]) -> Option<Key> {
        texts.is_empty().then(Key::global)
    }

    fn config_text(&self) -> Option<Cow<'_, str>> {
        Some("global".into())
    }

    fn fixed_key(&self) -> Option<Key> {
        Some(Key::global())
    }
}
