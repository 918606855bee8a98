use std::{error::Error, sync::Arc};

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Response, request::Parts};
use http_body::Body;
use tower_layer::Layer;

use super::{
    RateLimit,
    shared::{LayerHandle, LayerRef, LayerShared},
};
use crate::{
    changes::Changes,
    error::ConfigError,
    limiter::{Limiter, LimiterBuilder, Rejected},
    rejections::Rejections,
    respond::{self, LayerSettings, RateLimitHeaders},
    sync::ShardedArc,
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
    handles: Arc<ShardedArc<LayerHandle>>,
}

impl RateLimitLayer {
    /// A layer over `limiter`, with which it shares counts. It is enabled, with the fields of [`RateLimitHeaders::draft`].
    pub fn new(limiter: Limiter) -> Self {
        Self::with(limiter, LayerSettings::default())
    }

    fn with(limiter: Limiter, settings: LayerSettings) -> Self {
        Self {
            handles: Arc::new(LayerShared::open(limiter, settings)),
        }
    }

    /// A layer over the same limiter with settings changed by `change`.
    fn changed(self, change: impl Fn(&mut LayerSettings)) -> Self {
        let mut settings = self.shared().settings();
        settings.set(change);
        Self::with(self.limiter().clone(), settings)
    }

    fn shared(&self) -> &LayerShared {
        self.handles.first().shared()
    }

    /// Returns a builder of a layer over a limiter of its own. The builder has the limiter's settings; the layer that it builds
    /// has those of responses.
    pub fn builder() -> LimiterBuilder<Self> {
        LimiterBuilder::new()
    }

    /// Sets whether the layer limits requests; if not, they pass unchanged to the inner service. Default: true. The layer's
    /// type is the same.
    #[must_use]
    pub fn enabled(self, enabled: bool) -> Self {
        self.changed(|settings| settings.enabled = Some(enabled))
    }

    /// Sets the rate-limit fields of responses. Default: [`RateLimitHeaders::draft`].
    ///
    /// A response to an admitted request that the service marks for shared caches has none, since a cache serves it to others: by `public` or
    /// `s-maxage` in `Cache-Control`, or a lifetime in `CDN-Cache-Control` or `Surrogate-Control`. `max-age` alone is not such a mark.
    #[must_use]
    pub fn headers(self, headers: RateLimitHeaders) -> Self {
        self.changed(|settings| settings.headers = Some(headers.clone()))
    }

    /// Sets the form of the responses to rejected requests over HTTP. Default: [`Rejections::Default`], problem details.
    ///
    /// The others are for gateways to the APIs of language models, whose clients are the SDKs of OpenAI and Anthropic. The
    /// body is an error of the provider, in JSON. Its message says what problem details say, and the wait in seconds; its type
    /// is:
    ///
    /// | status | `OpenAi` | `Anthropic` |
    /// |---|---|---|
    /// | 429, a quota or a ban | `tokens` by a policy that the [headers](RateLimitHeaders::tokens) name so, or else `requests`; the code is `rate_limit_exceeded` | `rate_limit_error` |
    /// | 403, a deny list | `invalid_request_error` | `permission_error` |
    /// | 400, no key | `invalid_request_error` | `invalid_request_error` |
    /// | 503, a store failure | `server_error` | `overloaded_error` |
    ///
    /// It has two more fields, which the SDKs of both read:
    ///
    /// - `retry-after-ms`, the wait in milliseconds, rounded up, beside `Retry-After`, which has whole seconds;
    /// - `x-should-retry: false`, if a retry never succeeds, or only after more than 60 s. With this field SDKs give up
    ///   at once. Of a longer wait, in Python, OpenAI's before 2.52 and Anthropic's before 1.6 retry within a second; later, OpenAI's sleeps
    ///   up to 120 s, and Anthropic's for all of it.
    ///
    /// ```
    /// # #[cfg(feature = "axum")] {
    /// use axum::{Router, body::{Body, to_bytes}, routing::post};
    /// use http::Request;
    /// use tollgate::{Policy, Quota, RateLimitHeaders, RateLimitLayer, extract, layer::Rejections};
    /// use tower::ServiceExt;
    ///
    /// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
    /// let layer = RateLimitLayer::builder()
    ///     .policy(Policy::new("rpm", Quota::requests(1).per_minute()).key(extract::global()))
    ///     .build()?
    ///     .headers(RateLimitHeaders::openai().requests("rpm"))
    ///     .rejections(Rejections::OpenAi);
    /// let gateway = Router::new().route("/v1/responses", post(async || "the provider's answer")).layer(layer);
    /// let request = || Request::post("/v1/responses").body(Body::empty());
    ///
    /// let admitted = gateway.clone().oneshot(request()?).await?;
    /// assert_eq!(admitted.headers()["x-ratelimit-remaining-requests"], "0");
    /// assert_eq!(admitted.headers()["x-ratelimit-reset-requests"], "1m0s");
    ///
    /// let rejected = gateway.oneshot(request()?).await?;
    /// assert_eq!(rejected.status(), 429);
    /// assert!(rejected.headers().contains_key("retry-after-ms"));
    /// let body = to_bytes(rejected.into_body(), 4_096).await?;
    /// let error = br#""type":"requests","param":null,"code":"rate_limit_exceeded"}}"#;
    /// assert!(body.ends_with(error));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// [`on_rejection`](Self::on_rejection), and a document's `rejection`, set the response in place of it; the fields
    /// `retry-after-ms` and `x-should-retry` are added to that too, unless it has a `Retry-After` of its own, and
    /// `into_response` of its [`Rejected`] has this form. Responses to gRPC calls are the same in each form.
    #[must_use]
    pub fn rejections(self, rejections: Rejections) -> Self {
        self.changed(|settings| settings.rejections = Some(rejections))
    }

    /// Sets the response to rejected requests. Default: problem details (RFC 9457), or plain text for a browser, or what
    /// [`rejections`](Self::rejections) sets.
    ///
    /// `Retry-After`, `Cache-Control: no-store` and the rate-limit [fields](RateLimitHeaders) are added to the response of `respond`,
    /// unless it has them; it is not changed otherwise. `respond` is not called for gRPC calls, which get a gRPC status. If its body fails, the
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
    ///         // A key is missing, or the store fails: the default response, here of a clone.
    ///         let Some(seconds) = rejected.retry_after().whole_seconds() else {
    ///             return rejected.clone().into_response();
    ///         };
    ///         let page = format!("<h1>Slow down</h1><p>{} opens in {seconds} s.</p>", parts.uri.path());
    ///         (rejected.status(), Html(page)).into_response()
    ///     });
    /// # }
    /// # Ok::<(), tollgate::ConfigError>(())
    /// ```
    ///
    /// A request that costs more than a quota ever allows has the wait [`Never`](crate::RetryAfter::Never): where costs are sizes
    /// of bodies, `respond` may answer it 413.
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
        let respond = respond::on_rejection(respond);
        self.changed(|settings| {
            settings.on_rejection = Some(respond.clone());
            settings.rejection = None;
        })
    }

    /// Adds a fixed header field to the responses to rejected requests, over HTTP and gRPC, of whatever status; one that
    /// [`on_rejection`](Self::on_rejection) sets stays. Default: none. A service mesh retries a 503 unless it knows that it is a limit's:
    /// Envoy does by `x-envoy-ratelimited`. Not for `Content-Length` and `Transfer-Encoding`. Rejections by layers around or within this
    /// one have the fields of those.
    ///
    /// ```
    /// use http::{HeaderName, HeaderValue};
    /// use tollgate::{Policy, Quota, RateLimitLayer};
    ///
    /// let name = HeaderName::from_static("x-envoy-ratelimited");
    /// let layer = RateLimitLayer::builder()
    ///     .policy(Policy::new("burst", Quota::requests(10).per_second()))
    ///     .build()?
    ///     .rejection_header(name, HeaderValue::from_static("true"));
    /// # Ok::<(), tollgate::ConfigError>(())
    /// ```
    #[must_use]
    pub fn rejection_header(self, name: HeaderName, value: HeaderValue) -> Self {
        self.changed(|settings| {
            let headers = settings.rejection_headers.get_or_insert_default();
            headers.insert(name.clone(), value.clone());
        })
    }

    /// The settings of the layer itself.
    #[cfg(feature = "config")]
    pub(crate) fn settings(&self) -> LayerSettings {
        self.shared().settings()
    }

    /// A layer over the same limiter with these settings.
    #[cfg(feature = "config")]
    pub(crate) fn with_settings(self, settings: LayerSettings) -> Self {
        Self::with(self.limiter().clone(), settings)
    }

    /// Sets whether this layer refunds a request whose handler rejects it, by returning a [`Rejected`] as its response, or as tonic's
    /// `Status`. Default: false, since the handler may have done costly work for the request.
    #[must_use]
    pub fn refund_handler_rejections(self, refund: bool) -> Self {
        self.changed(|settings| settings.refund_handler_rejections = Some(refund))
    }

    /// Replaces the policies of the layer's limiter by those of `builder`, as [`Limiter::reconfigure`] does, and right after them the
    /// layer's own settings, for its clones and the services that it has made.
    ///
    /// `configure` is given a layer with the default settings, and sets those that are to be in force: [`headers`](Self::headers),
    /// [`rejections`](Self::rejections), [`on_rejection`](Self::on_rejection), [`rejection_header`](Self::rejection_header), [`refund_handler_rejections`](Self::refund_handler_rejections) and
    /// [`enabled`](Self::enabled). What it doesn't set has its default afterwards.
    ///
    /// ```
    /// use tollgate::{Policy, Quota, RateLimitHeaders, RateLimitLayer};
    ///
    /// let layer = RateLimitLayer::builder()
    ///     .policy(Policy::new("api", Quota::requests(10).per_minute()))
    ///     .build()?;
    /// let stricter = RateLimitLayer::builder().policy(Policy::new("api", Quota::requests(5).per_minute()));
    /// let changes = layer.reconfigure(stricter, |layer| layer.headers(RateLimitHeaders::x_ratelimit()))?;
    /// println!("{changes}");
    /// # Ok::<(), tollgate::ConfigError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`Limiter::reconfigure`]. Nothing is changed then.
    pub fn reconfigure(
        &self,
        builder: LimiterBuilder<Self>,
        configure: impl FnOnce(Self) -> Self,
    ) -> Result<Changes, ConfigError> {
        let shared = self.shared();
        let settings = configure(Self::new(shared.limiter().clone()))
            .shared()
            .settings();
        let differences = || shared.settings().differences(&settings);
        let changes = shared.limiter().replace(builder, differences)?;
        shared.replace_settings(&settings);
        Ok(changes)
    }

    /// The layer's limiter, for calls with keys that only a handler knows.
    pub fn limiter(&self) -> &Limiter {
        self.shared().limiter()
    }
}

impl<S> Layer<S> for RateLimitLayer {
    type Service = RateLimit<S>;

    fn layer(&self, inner: S) -> Self::Service {
        RateLimit::new(inner, LayerRef::All(self.handles.clone()))
    }
}

impl From<Limiter> for RateLimitLayer {
    fn from(limiter: Limiter) -> Self {
        Self::new(limiter)
    }
}
