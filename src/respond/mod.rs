//! Responses: the header fields, and the responses to rejected requests.

use std::{mem, sync::Arc};

use ::http::{
    HeaderMap, Response,
    header::{
        CACHE_CONTROL, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, RETRY_AFTER,
        TRANSFER_ENCODING,
    },
    request::Parts,
};
use bytes::Bytes;
use http_body::Body;
use http_body_util::{BodyExt, combinators::UnsyncBoxBody};

use self::body::BoxError;
use crate::{
    differences::different,
    headers::{self, exposed_headers},
    limiter::{Admission, Decision, Rejected},
    log::LogThrottle,
    rejections::Rejections,
    shared_fn::SharedFn,
};

mod body;
pub(crate) mod delay;
pub(crate) mod grpc;
mod header_buf;
pub(crate) mod http;
pub(crate) mod problem;
mod provider_error;
mod rejection_text;
mod write;

pub(crate) use crate::headers::RateLimitHeaders;
pub(crate) use body::RejectionBody;
pub(crate) use delay::RetryDelay;
pub(crate) use problem::Problem;
pub use rejection_text::RejectionText;
pub(crate) use write::write_headers;

pub(crate) type OnRejection =
    dyn Fn(&Rejected, &Parts) -> Response<UnsyncBoxBody<Bytes, BoxError>> + Send + Sync;

/// What is kept of an admitted request, to build the response if its handler rejects it.
#[derive(Debug)]
pub(crate) enum KeptRequest {
    /// All of its head, for `on_rejection`.
    Head(Box<Parts>),
    /// Whether `Accept` names text and no JSON.
    PrefersPlainText(bool),
}

/// The settings of a layer. Its methods, configuration documents and `Changes` all use this type.
#[derive(Clone, Debug, Default)]
pub(crate) struct LayerSettings {
    pub(crate) enabled: Option<bool>,
    pub(crate) headers: Option<RateLimitHeaders>,
    /// The form of rejections.
    pub(crate) rejections: Option<Rejections>,
    /// The text of rejections; not used together with `on_rejection`.
    pub(crate) rejection: Option<RejectionText>,
    pub(crate) on_rejection: Option<SharedFn<OnRejection>>,
    /// Fixed header fields of rejections.
    pub(crate) rejection_headers: Option<HeaderMap>,
    /// Whether a layer refunds its own charge of a request that its handler rejected.
    pub(crate) refund_handler_rejections: Option<bool>,
    /// The settings of the document that the layer was built of, if it was.
    #[cfg(feature = "config")]
    pub(crate) of_document: Option<Arc<LayerSettings>>,
    /// The settings that code has set on the layer.
    #[cfg(feature = "config")]
    pub(crate) by_code: Option<Arc<LayerSettings>>,
    /// Throttles the error about an `on_rejection` that returns a 2xx status.
    pub(crate) success_log: Arc<LogThrottle>,
}

/// A function that responds to rejected requests, with any body.
pub(crate) fn on_rejection<F, B>(respond: F) -> SharedFn<OnRejection>
where
    F: Fn(&Rejected, &Parts) -> Response<B> + Send + Sync + 'static,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    let respond: Arc<OnRejection> = Arc::new(move |rejected: &Rejected, parts: &Parts| {
        respond(rejected, parts).map(|body| body.map_err(Into::into).boxed_unsync())
    });
    respond.into()
}

impl LayerSettings {
    /// The names of the settings in which `after` differs.
    pub(crate) fn differences(&self, after: &Self) -> Vec<&'static str> {
        different([
            ("enabled", self.is_enabled() != after.is_enabled()),
            ("headers", self.headers() != after.headers()),
            ("rejections", self.rejections() != after.rejections()),
            ("rejection", self.rejection != after.rejection),
            ("on_rejection", self.on_rejection != after.on_rejection),
            (
                "rejection_headers",
                self.rejection_headers != after.rejection_headers,
            ),
            (
                "refund_handler_rejections",
                self.refunds_handler_rejections() != after.refunds_handler_rejections(),
            ),
        ])
    }

    /// Sets settings by code.
    pub(crate) fn set(&mut self, set: impl Fn(&mut Self)) {
        set(self);
        #[cfg(feature = "config")]
        set(Arc::make_mut(self.by_code.get_or_insert_default()));
    }

    /// What code has set on the layer.
    #[cfg(feature = "config")]
    pub(crate) fn set_by_code(&self) -> Self {
        self.by_code.as_deref().cloned().unwrap_or_default()
    }

    /// The names of the settings that both set, to different values. The response to a rejected request is one setting with two
    /// names.
    #[cfg(feature = "config")]
    pub(crate) fn conflicts(&self, code: &Self) -> impl Iterator<Item = &'static str> {
        fn differ<T: PartialEq>(own: &Option<T>, other: &Option<T>) -> bool {
            own.is_some() && other.is_some() && own != other
        }
        let response =
            |settings: &Self| (settings.rejection.clone(), settings.on_rejection.clone());
        let responds = |settings: &Self| response(settings) != (None, None);
        let name = if self.rejection.is_some() {
            "rejection"
        } else {
            "on_rejection"
        };
        [
            ("enabled", differ(&self.enabled, &code.enabled)),
            ("headers", differ(&self.headers, &code.headers)),
            ("rejections", differ(&self.rejections, &code.rejections)),
            (
                "rejection_headers",
                differ(&self.rejection_headers, &code.rejection_headers),
            ),
            (
                name,
                responds(self) && responds(code) && response(self) != response(code),
            ),
            (
                "refund_handler_rejections",
                differ(
                    &self.refund_handler_rejections,
                    &code.refund_handler_rejections,
                ),
            ),
        ]
        .into_iter()
        .filter_map(|(name, is_conflict)| is_conflict.then_some(name))
    }

    /// These settings of a document, completed by those that code has set. Different values of both are a
    /// [conflict](Self::conflicts).
    #[cfg(feature = "config")]
    pub(crate) fn with_code(self, code: Self) -> Self {
        let of_document = Some(Arc::new(self.clone()));
        let by_code = Some(Arc::new(code.clone()));
        Self {
            enabled: self.enabled.or(code.enabled),
            headers: self.headers.or(code.headers),
            rejections: self.rejections.or(code.rejections),
            rejection: self.rejection.or(code.rejection),
            on_rejection: self.on_rejection.or(code.on_rejection),
            rejection_headers: self.rejection_headers.or(code.rejection_headers),
            refund_handler_rejections: self
                .refund_handler_rejections
                .or(code.refund_handler_rejections),
            success_log: code.success_log,
            of_document,
            by_code,
        }
    }

    /// Whether requests are limited.
    pub(crate) fn is_enabled(&self) -> bool {
        self.enabled != Some(false)
    }

    pub(crate) fn headers(&self) -> &RateLimitHeaders {
        self.headers.as_ref().unwrap_or(&headers::DEFAULT)
    }

    pub(crate) fn rejections(&self) -> Rejections {
        self.rejections.unwrap_or_default()
    }

    pub(crate) fn refunds_handler_rejections(&self) -> bool {
        self.refund_handler_rejections == Some(true)
    }

    /// Keeps what [`replace_handler_rejection`](Self::replace_handler_rejection) needs of an admitted request.
    pub(crate) fn keep_request(&self, parts: &Parts) -> KeptRequest {
        if self.on_rejection.is_some() || self.rejection.is_some() {
            KeptRequest::Head(Box::new(parts.clone()))
        } else {
            KeptRequest::PrefersPlainText(http::prefers_plain_text(&parts.headers))
        }
    }

    /// The response to a request that its handler rejected, in place of the handler's `response`, whose other header fields
    /// stay.
    pub(crate) fn replace_handler_rejection<B>(
        &self,
        rejected: &Rejected,
        request: &KeptRequest,
        response: Response<B>,
    ) -> Response<RejectionBody> {
        let decision = rejected.decision();
        let mut replaced = match request {
            KeptRequest::Head(parts) => self.rejection(decision, parts),
            KeptRequest::PrefersPlainText(text) => self.with_fixed_headers(http::build(
                decision,
                self.headers(),
                self.rejections(),
                *text,
            )),
        };
        let (original, _) = response.into_parts();
        let overridden = exposed_headers().into_iter().chain([
            CONTENT_TYPE,
            CONTENT_LENGTH,
            CONTENT_ENCODING,
            TRANSFER_ENCODING,
            CACHE_CONTROL,
        ]);
        let overridden = overridden.chain(headers::CDN_CACHE_CONTROL);
        let mut kept = original.headers;
        overridden.for_each(|name| while kept.remove(&name).is_some() {});
        replaced.headers_mut().extend(kept);
        *replaced.version_mut() = original.version;
        replaced.extensions_mut().extend(original.extensions);
        replaced
    }

    /// The response to a rejected request.
    pub(crate) fn rejection(&self, decision: &Decision, parts: &Parts) -> Response<RejectionBody> {
        self.with_fixed_headers(self.own_rejection(decision, parts))
    }

    /// Adds the fixed header fields, but for those that the response has.
    pub(crate) fn with_fixed_headers<B>(&self, mut response: Response<B>) -> Response<B> {
        for (name, value) in self.rejection_headers.iter().flatten() {
            if !response.headers().contains_key(name) {
                response.headers_mut().insert(name, value.clone());
            }
        }
        response
    }

    fn own_rejection(&self, decision: &Decision, parts: &Parts) -> Response<RejectionBody> {
        let (fields, form) = (self.headers(), self.rejections());
        if let Some(protocol) = grpc::Protocol::of(parts) {
            return grpc::response(decision, fields, protocol).map(RejectionBody::from);
        }
        let rejected = || {
            let rejected = Rejected::new(decision.clone());
            rejected.headers(fields.clone()).rejections(form)
        };
        let (rejected, mut response) = if let Some(respond) = &self.on_rejection {
            let rejected = rejected();
            let response = respond(&rejected, parts);
            (rejected, response)
        } else if let Some(text) = &self.rejection {
            let rejected = rejected();
            let response = text.response(&rejected);
            (rejected, response)
        } else {
            let text = http::prefers_plain_text(&parts.headers);
            return http::build(decision, fields, form, text);
        };
        if response.status().is_success() {
            self.success_log.log_with(|suppressed| {
                let (status, action) = (response.status().as_u16(), "default response");
                tracing::error!(
                    status,
                    action,
                    suppressed,
                    "on_rejection returned a 2xx status; use Rejected::status"
                );
            });
            let text = http::prefers_plain_text(&parts.headers);
            return http::build(decision, fields, form, text);
        }
        let original = mem::take(response.headers_mut());
        if let Some(retry_after) = original.get(RETRY_AFTER) {
            response
                .headers_mut()
                .insert(RETRY_AFTER, retry_after.clone());
        }
        let delay = RetryDelay::of(rejected.decision(), rejected.fields());
        let headers = response.headers_mut();
        provider_error::write_retry(rejected.form(), rejected.decision(), delay, headers);
        write_headers(rejected.decision(), rejected.fields(), delay, &mut response);
        // A cache would serve one caller's rejection to others.
        response.headers_mut().insert(CACHE_CONTROL, http::NO_STORE);
        // What the application has set stays.
        response.headers_mut().extend(original);
        response.map(RejectionBody::from)
    }
}

impl RateLimitHeaders {
    /// Adds the fields of an admission to a response: for a handler whose admission is from
    /// [`Limiter::admit`](crate::Limiter::admit), which no layer knows. Layers add those of their own decisions; use the same
    /// dialect as they do.
    ///
    /// ```
    /// # #[cfg(feature = "axum")] {
    /// use axum::response::{IntoResponse, Response};
    /// use tollgate::{Limiter, RateLimitHeaders, Rejected};
    ///
    /// async fn complete(limiter: &Limiter, user: &str, estimate: u64) -> Result<Response, Rejected> {
    ///     // The estimate is in the request's body, which no layer reads.
    ///     let admission = limiter.admit(user).cost(estimate).await?;
    ///     let mut response = "the model's answer".into_response();
    ///     RateLimitHeaders::draft().add_to(&mut response, &admission);
    ///     Ok(response)
    /// }
    /// # }
    /// ```
    pub fn add_to<B>(&self, response: &mut Response<B>, admission: &Admission) {
        // Copies, since a closure that writes fields is not called under the admission's lock.
        for decision in admission.decisions() {
            write_headers(&decision, self, RetryDelay::NONE, response);
        }
    }
}
