use std::{error::Error, sync::Arc};

use bytes::Bytes;
use http::{Response, request::Parts};
use http_body::Body;
use tower_layer::Layer;

use super::{
    RateLimit,
    shared::{LayerRef, LayerShared},
};
use crate::{
    admission::Rejected,
    limiter::{Limiter, LimiterBuilder},
    respond::{RateLimitHeaders, ResponseConfig},
    sync::{CachePadded, ShardedArc},
};

/// A tower layer that limits the requests to a service.
///
/// It has no type parameters, is cheap to clone, and its clones share their counts. The [module](crate::layer) describes what
/// happens to a request.
///
/// ```
/// # #[cfg(feature = "axum")] {
/// use axum::{Router, routing::get};
/// use tollgate::{Policy, Quota, RateLimitLayer};
///
/// let layer = RateLimitLayer::builder()
///     .policy(Policy::new("burst", Quota::requests(10).per_second()))
///     .policy(Policy::new("daily", Quota::requests(5_000).per_day()))
///     .build()?;
/// let app: Router = Router::new().route("/", get(async || "hello")).layer(layer);
/// # }
/// # Ok::<(), tollgate::ConfigError>(())
/// ```
#[derive(Clone, Debug)]
pub struct RateLimitLayer {
    limiter: Limiter,
    shared: Arc<ShardedArc<LayerShared>>,
    enabled: bool,
}

impl RateLimitLayer {
    /// A layer over `limiter`, with which it shares counts. It is enabled, with the fields of [`RateLimitHeaders::draft`].
    pub fn new(limiter: Limiter) -> Self {
        Self::with(limiter, ResponseConfig::default(), true)
    }

    fn with(limiter: Limiter, config: ResponseConfig, enabled: bool) -> Self {
        let shared = limiter.refs().map(|limiter| LayerShared {
            limiter: CachePadded::new(limiter.clone()),
            config: config.clone(),
        });
        Self {
            limiter,
            shared: Arc::new(shared),
            enabled,
        }
    }

    /// The layer with its response settings changed by `change`.
    fn with_response_config(self, change: impl FnOnce(&mut ResponseConfig)) -> Self {
        let mut config = self.shared.first().config.clone();
        change(&mut config);
        Self::with(self.limiter, config, self.enabled)
    }

    /// Returns a builder of a layer over a limiter of its own. The builder has the limiter's settings; the layer that it builds
    /// has those of responses.
    pub fn builder() -> LimiterBuilder<Self> {
        LimiterBuilder::new()
    }

    /// Sets whether the layer limits requests; if not, they pass unchanged to the inner service. Default: true. The layer's
    /// type is the same.
    #[must_use]
    pub fn enabled(mut self, enabled: bool) -> Self {
        self.enabled = enabled;
        self
    }

    /// Sets the rate-limit fields of responses. Default: [`RateLimitHeaders::draft`].
    #[must_use]
    pub fn headers(self, headers: RateLimitHeaders) -> Self {
        self.with_response_config(|config| config.headers = headers)
    }

    /// Sets the response to rejected requests. Default: problem details (RFC 9457), or plain text for a browser.
    ///
    /// `Retry-After` and the rate-limit [fields](RateLimitHeaders) are added to the response of `respond`, unless it has them;
    /// it is not changed otherwise. `respond` is not called for gRPC calls, which get a gRPC status. If its body fails, the
    /// response ends there, and an error is logged.
    ///
    /// ```
    /// # #[cfg(feature = "axum")] {
    /// use axum::response::{Html, IntoResponse};
    /// use tollgate::{Policy, Quota, RateLimitLayer};
    ///
    /// let layer = RateLimitLayer::builder()
    ///     .policy(Policy::new("burst", Quota::requests(10).per_second()))
    ///     .build()?
    ///     .on_rejection(|rejected, parts| {
    ///         let seconds = rejected.retry_after().duration().map_or(0, |wait| wait.as_secs() + 1);
    ///         let page = format!("<h1>Slow down</h1><p>{} opens in {seconds} s.</p>", parts.uri.path());
    ///         (rejected.status(), Html(page)).into_response()
    ///     });
    /// # }
    /// # Ok::<(), tollgate::ConfigError>(())
    /// ```
    ///
    /// A response with a 2xx status, by which clients and caches would take the request for successful, is replaced by the
    /// default one, and an error is logged.
    #[must_use]
    pub fn on_rejection<F, B>(self, respond: F) -> Self
    where
        F: Fn(&Rejected, &Parts) -> Response<B> + Send + Sync + 'static,
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn Error + Send + Sync>>,
    {
        self.with_response_config(|config| config.on_rejection(respond))
    }

    /// Sets whether this layer refunds a request whose handler rejects it, by returning a [`Rejected`] as its response.
    /// Default: false, since the handler may have done costly work for the request.
    #[must_use]
    pub fn refund_handler_rejections(self, refund: bool) -> Self {
        self.with_response_config(|config| config.refunds_handler_rejections = refund)
    }

    /// The layer's limiter, for calls with keys that only a handler knows.
    pub fn limiter(&self) -> &Limiter {
        &self.limiter
    }
}

impl<S> Layer<S> for RateLimitLayer {
    type Service = RateLimit<S>;

    fn layer(&self, inner: S) -> Self::Service {
        let shared = self.enabled.then(|| LayerRef::All(self.shared.clone()));
        RateLimit::new(inner, shared)
    }
}

impl From<Limiter> for RateLimitLayer {
    fn from(limiter: Limiter) -> Self {
        Self::new(limiter)
    }
}
