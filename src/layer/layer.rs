use std::{error::Error, sync::Arc};

use bytes::Bytes;
use http::{Response, request::Parts};
use http_body::Body;
use tower_layer::Layer;

use super::{
    RateLimit,
    shared::{Gate, Held},
};
use crate::{
    admission::Rejected,
    limiter::{Limiter, LimiterBuilder},
    respond::{Answers, RateLimitHeaders},
    sync::{CachePadded, Handles},
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
        let gate = Gate {
            limiter: CachePadded::new(limiter),
            answers,
        };
        let gates = Arc::new(Handles::new(|| gate.clone()));
        Self { gates, enabled }
    }

    /// The same, but for what it answers.
    fn answering(self, change: impl FnOnce(&mut Answers)) -> Self {
        let Gate { limiter, answers } = self.gates.any();
        let (limiter, mut answers) = (Limiter::clone(limiter), answers.clone());
        change(&mut answers);
        Self::of(limiter, answers, self.enabled)
    }

    /// Starts to build a layer around a limiter of its own: the limiter's settings first, then, once it is built, those of
    /// its responses.
    pub fn builder() -> LimiterBuilder<Self> {
        LimiterBuilder::new()
    }

    /// Switches the layer off (or on again) without changing its type: requests pass untouched.
    #[must_use]
    pub fn enabled(mut self, enabled: bool) -> Self {
        self.enabled = enabled;
        self
    }

    /// Adds these fields to responses, in place of those of [`RateLimitHeaders::draft`].
    #[must_use]
    pub fn headers(self, headers: RateLimitHeaders) -> Self {
        self.answering(|answers| answers.headers = headers)
    }

    /// Answers rejected requests with what `respond` returns, in place of problem details.
    ///
    /// The response's status, header fields and body stay as they are. `Retry-After` and the [fields](RateLimitHeaders) that tell
    /// how the client stands are added unless it has them. For gRPC calls `respond` is not called: they get a
    /// gRPC status. A body that fails half-way ends there, and the error is logged.
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

    /// Refunds what this layer charged a request that its handler then rejected, by a [`Rejected`] that it returned as its
    /// response. Off unless set: the request has reached the handler, which may have done costly work for it.
    #[must_use]
    pub fn refund_handler_rejections(self, refund: bool) -> Self {
        self.answering(|answers| answers.refunds_handler_rejections = refund)
    }

    /// The limiter, for calls with keys that only a handler knows.
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

impl From<Limiter> for RateLimitLayer {
    fn from(limiter: Limiter) -> Self {
        Self::new(limiter)
    }
}
