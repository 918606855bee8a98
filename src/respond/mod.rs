//! Responses: the header fields, and the responses to rejected requests.

use std::{fmt, mem, sync::Arc};

use ::http::{
    Response,
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
    headers::exposed_headers,
    limiter::{Admission, Decision, Rejected},
    log::LogThrottle,
    setting::{Code, CodeId, Setting, SettingValue},
};

mod body;
pub(crate) mod delay;
pub(crate) mod grpc;
mod header_buf;
pub(crate) mod http;
pub(crate) mod problem;
mod write;

pub(crate) use crate::headers::RateLimitHeaders;
pub(crate) use body::RejectionBody;
pub(crate) use delay::RetryDelay;
pub(crate) use problem::Problem;
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

/// The response settings of a layer.
#[derive(Clone, Default)]
pub(crate) struct ResponseConfig {
    pub(crate) headers: RateLimitHeaders,
    on_rejection: Option<Code<OnRejection>>,
    /// Whether a layer refunds its own charge of a request that its handler rejected.
    pub(crate) refunds_handler_rejections: bool,
    /// Throttles the error about an `on_rejection` that returns a 2xx status.
    success_log: Arc<LogThrottle>,
}

/// A function that responds to rejected requests, with any body.
pub(crate) fn on_rejection<F, B>(respond: F) -> Code<OnRejection>
where
    F: Fn(&Rejected, &Parts) -> Response<B> + Send + Sync + 'static,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    let respond = Arc::new(respond);
    let id = CodeId::of(&respond);
    let respond = move |rejected: &Rejected, parts: &Parts| {
        respond(rejected, parts).map(|body| body.map_err(Into::into).boxed_unsync())
    };
    Code::new(Arc::new(respond), id)
}

impl ResponseConfig {
    /// Sets the function that responds to requests that are rejected over plain HTTP.
    pub(crate) fn on_rejection(&mut self, respond: Code<OnRejection>) {
        self.on_rejection = Some(respond);
    }

    /// The settings of responses, always the same ones in the same order.
    pub(crate) fn settings(&self) -> [Setting; 3] {
        let flag = SettingValue::Flag;
        let on_rejection = self.on_rejection.as_ref();
        [
            Setting::or_default(
                "headers",
                self.headers.value(),
                &RateLimitHeaders::default().value(),
            ),
            Setting::or_default(
                "on_rejection",
                on_rejection.map_or(SettingValue::Unset, |code| code.value().clone()),
                &SettingValue::Unset,
            ),
            Setting::or_default(
                "refund_handler_rejections",
                flag(self.refunds_handler_rejections),
                &flag(false),
            ),
        ]
    }

    /// Keeps what [`replace_handler_rejection`](Self::replace_handler_rejection) needs of an admitted request.
    pub(crate) fn keep_request(&self, parts: &Parts) -> KeptRequest {
        match self.on_rejection {
            Some(_) => KeptRequest::Head(Box::new(parts.clone())),
            None => KeptRequest::PrefersPlainText(http::prefers_plain_text(&parts.headers)),
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
            KeptRequest::PrefersPlainText(text) => http::build(decision, self.headers, *text),
        };
        let (original, _) = response.into_parts();
        let overridden = exposed_headers().into_iter().chain([
            CONTENT_TYPE,
            CONTENT_LENGTH,
            CONTENT_ENCODING,
            TRANSFER_ENCODING,
            CACHE_CONTROL,
        ]);
        let mut kept = original.headers;
        overridden.for_each(|name| while kept.remove(&name).is_some() {});
        replaced.headers_mut().extend(kept);
        *replaced.version_mut() = original.version;
        replaced.extensions_mut().extend(original.extensions);
        replaced
    }

    /// The response to a rejected request.
    pub(crate) fn rejection(&self, decision: &Decision, parts: &Parts) -> Response<RejectionBody> {
        let fields = self.headers;
        if let Some(protocol) = grpc::Protocol::of(parts) {
            return grpc::response(decision, fields, protocol).map(RejectionBody::from);
        }
        let Some(respond) = &self.on_rejection else {
            let text = http::prefers_plain_text(&parts.headers);
            return http::build(decision, fields, text);
        };
        let rejected = Rejected::new(decision.clone()).headers(fields);
        let mut response = respond(&rejected, parts);
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
            return http::build(decision, fields, http::prefers_plain_text(&parts.headers));
        }
        let original = mem::take(response.headers_mut());
        if let Some(retry_after) = original.get(RETRY_AFTER) {
            response
                .headers_mut()
                .insert(RETRY_AFTER, retry_after.clone());
        }
        let delay = RetryDelay::of(rejected.decision(), rejected.fields());
        write_headers(rejected.decision(), rejected.fields(), delay, &mut response);
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
    pub fn add_to<B>(self, response: &mut Response<B>, admission: &Admission) {
        admission.for_each_decision(|_, decision| {
            write_headers(decision, self, RetryDelay::NONE, response)
        });
    }
}

impl fmt::Debug for ResponseConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseConfig")
            .field("headers", &self.headers)
            .field("on_rejection", &self.on_rejection.is_some())
            .finish()
    }
}
