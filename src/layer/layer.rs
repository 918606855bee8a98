use std::{error::Error, sync::Arc};

use bytes::Bytes;
use http::{Method, Response, request::Parts};
use http_body::Body;
use tower_layer::Layer;

use super::{
    RateLimit,
    gate::{Gate, Held},
};
use crate::{
    admission::Rejected,
    error::ConfigError,
    handles::Handles,
    limiter::{Limiter, LimiterBuilder},
    lists::AccessList,
    on_store_error::OnStoreError,
    policy::Policy,
    respond::{Answers, RateLimitHeaders},
    store::Store,
};

/// Limits the requests that reach a service.
///
/// It has no type parameters, is cheap to clone, and its clones share everything. See the [module](crate::layer) for
/// what it does to a request.
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
    gates: Arc<Handles<Gate>>,
    enabled: bool,
}

impl RateLimitLayer {
    /// A layer over `limiter`, sharing its counts.
    pub fn new(limiter: Limiter) -> Self {
        Self::of(limiter, Answers::default(), true)
    }

    fn of(limiter: Limiter, answers: Answers, enabled: bool) -> Self {
        let gate = Gate { limiter, answers };
        let gates = Arc::new(Handles::new(|| gate.clone()));
        Self { gates, enabled }
    }

    /// The same, but for what it answers.
    fn answering(self, change: impl FnOnce(&mut Answers)) -> Self {
        let Gate { limiter, answers } = self.gates.any();
        let (limiter, mut answers) = (limiter.clone(), answers.clone());
        change(&mut answers);
        Self::of(limiter, answers, self.enabled)
    }

    /// Starts to build a layer and its limiter.
    pub fn builder() -> RateLimitLayerBuilder {
        RateLimitLayerBuilder {
            limiter: Limiter::builder(),
            enabled: true,
            answers: Answers::default(),
        }
    }

    /// Switches the layer off (or on again) without changing its type: requests pass untouched.
    #[must_use]
    pub fn enabled(mut self, enabled: bool) -> Self {
        self.enabled = enabled;
        self
    }

    /// Tells clients how they stand by these fields, in place of those of [`RateLimitHeaders::draft`].
    #[must_use]
    pub fn headers(self, headers: RateLimitHeaders) -> Self {
        self.answering(|answers| answers.headers = headers)
    }

    /// Answers those who are refused with what `respond` says, in place of problem details.
    ///
    /// The response's status, header fields and body stay as they are. `Retry-After` and the [fields](RateLimitHeaders) that tell
    /// how the client stands are added unless it has them. gRPC calls get a gRPC status all the same, and are not asked
    /// about. A body that fails half-way ends there, and the error is logged.
    ///
    /// ```
    /// # #[cfg(feature = "axum")] {
    /// use axum::response::{Html, IntoResponse};
    /// use tollgate::{Policy, Quota, RateLimitLayer};
    ///
    /// let layer = RateLimitLayer::builder()
    ///     .policy(Policy::new("burst", Quota::requests(10).per_second()))
    ///     .on_rejection(|refused, parts| {
    ///         let seconds = refused.retry_after().map_or(0, |wait| wait.as_secs() + 1);
    ///         let page = format!("<h1>Slow down</h1><p>{} opens in {seconds} s.</p>", parts.uri.path());
    ///         (refused.status(), Html(page)).into_response()
    ///     })
    ///     .build()?;
    /// # }
    /// # Ok::<(), tollgate::ConfigError>(())
    /// ```
    ///
    /// A response with a 2xx status would tell clients and caches that the request succeeded: the default response is sent in
    /// its place, and an error is logged.
    #[must_use]
    pub fn on_rejection<F, B>(self, respond: F) -> Self
    where
        F: Fn(&Rejected, &Parts) -> Response<B> + Send + Sync + 'static,
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn Error + Send + Sync>>,
    {
        self.answering(|answers| answers.on_rejection(respond))
    }

    /// The limiter, to ask about keys that only a handler knows.
    pub fn limiter(&self) -> &Limiter {
        &self.gates.any().limiter
    }
}

impl<S> Layer<S> for RateLimitLayer {
    type Service = RateLimit<S>;

    fn layer(&self, inner: S) -> Self::Service {
        let gate = self.enabled.then(|| Held::All(self.gates.clone()));
        RateLimit::new(inner, gate)
    }
}

/// Builds a [`RateLimitLayer`].
#[derive(Clone, Debug)]
#[must_use]
pub struct RateLimitLayerBuilder {
    limiter: LimiterBuilder,
    enabled: bool,
    answers: Answers,
}

impl RateLimitLayerBuilder {
    /// See [`LimiterBuilder::store`].
    pub fn store(mut self, store: impl Store) -> Self {
        self.limiter = self.limiter.store(store);
        self
    }

    /// See [`LimiterBuilder::policy`].
    pub fn policy(mut self, policy: Policy) -> Self {
        self.limiter = self.limiter.policy(policy);
        self
    }

    /// See [`LimiterBuilder::deny`].
    pub fn deny(mut self, list: impl Into<AccessList>) -> Self {
        self.limiter = self.limiter.deny(list);
        self
    }

    /// See [`LimiterBuilder::allow`].
    pub fn allow(mut self, list: impl Into<AccessList>) -> Self {
        self.limiter = self.limiter.allow(list);
        self
    }

    /// See [`LimiterBuilder::skip_path`].
    pub fn skip_path(mut self, path: impl AsRef<str>) -> Self {
        self.limiter = self.limiter.skip_path(path);
        self
    }

    /// See [`LimiterBuilder::skip_method`].
    pub fn skip_method(mut self, method: Method) -> Self {
        self.limiter = self.limiter.skip_method(method);
        self
    }

    /// See [`LimiterBuilder::skip_with`].
    pub fn skip_with<F>(mut self, condition: F) -> Self
    where
        F: Fn(&Parts) -> bool + Send + Sync + 'static,
    {
        self.limiter = self.limiter.skip_with(condition);
        self
    }

    /// See [`LimiterBuilder::count_preflights`].
    pub fn count_preflights(mut self, count: bool) -> Self {
        self.limiter = self.limiter.count_preflights(count);
        self
    }

    /// See [`LimiterBuilder::on_store_error`].
    pub fn on_store_error(mut self, answer: impl Into<OnStoreError>) -> Self {
        self.limiter = self.limiter.on_store_error(answer);
        self
    }

    /// See [`RateLimitLayer::enabled`].
    pub fn enabled(mut self, enabled: bool) -> Self {
        self.enabled = enabled;
        self
    }

    /// See [`RateLimitLayer::headers`].
    pub fn headers(mut self, headers: RateLimitHeaders) -> Self {
        self.answers.headers = headers;
        self
    }

    /// See [`RateLimitLayer::on_rejection`].
    pub fn on_rejection<F, B>(mut self, respond: F) -> Self
    where
        F: Fn(&Rejected, &Parts) -> Response<B> + Send + Sync + 'static,
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn Error + Send + Sync>>,
    {
        self.answers.on_rejection(respond);
        self
    }

    /// The layer.
    ///
    /// # Errors
    ///
    /// See [`LimiterBuilder::build`].
    pub fn build(self) -> Result<RateLimitLayer, ConfigError> {
        let (limiter, answers) = (self.limiter.build()?, self.answers);
        Ok(RateLimitLayer::of(limiter, answers, self.enabled))
    }
}
