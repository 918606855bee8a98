//! What an answer looks like: the fields that tell a client how it stands, and the refusal.

use std::{fmt, mem, sync::Arc};

use bytes::Bytes;
use http::{
    Response,
    header::{
        CACHE_CONTROL, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, RETRY_AFTER,
        TRANSFER_ENCODING,
    },
    request::Parts,
};
use http_body::Body;
use http_body_util::{BodyExt, combinators::UnsyncBoxBody};

use self::body::BoxError;
use crate::{
    admission::{Admission, Rejected},
    decision::Decision,
    headers::exposed_headers,
    log::LogThrottle,
};

mod body;
pub(crate) mod delay;
mod fields;
pub(crate) mod grpc;
mod line;
mod problem;
pub(crate) mod refusal;
#[cfg(any(feature = "axum", feature = "tonic"))]
mod unavailable;

pub(crate) use crate::headers::RateLimitHeaders;
pub(crate) use body::RefusalBody;
pub(crate) use delay::Delay;
pub(crate) use fields::tell;
pub(crate) use problem::Problem;
#[cfg(any(feature = "axum", feature = "tonic"))]
pub(crate) use unavailable::Unavailable;

type OnRefusal =
    dyn Fn(&Rejected, &Parts) -> Response<UnsyncBoxBody<Bytes, BoxError>> + Send + Sync;

/// What is kept of a request while it is served, to answer it if its handler rejects it.
#[derive(Debug)]
pub(crate) enum KeptRequest {
    /// All of its head, for `on_rejection`.
    Head(Box<Parts>),
    /// Whether the client takes text and no JSON.
    WantsText(bool),
}

/// How a layer answers.
#[derive(Clone, Default)]
pub(crate) struct Answers {
    pub(crate) headers: RateLimitHeaders,
    on_rejection: Option<Arc<OnRefusal>>,
    /// Whether a layer refunds its own charge of a request that its handler rejected.
    pub(crate) refunds_handler_rejections: bool,
    /// Successes that it answered with.
    successes: Arc<LogThrottle>,
}

impl Answers {
    /// Has `respond` answer those who are refused over plain HTTP.
    pub(crate) fn on_rejection<F, B>(&mut self, respond: F)
    where
        F: Fn(&Rejected, &Parts) -> Response<B> + Send + Sync + 'static,
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        self.on_rejection = Some(Arc::new(move |refused, parts| {
            respond(refused, parts).map(|body| body.map_err(Into::into).boxed_unsync())
        }));
    }

    /// Keeps what answering needs of a request that its handler may reject.
    pub(crate) fn keep(&self, parts: &Parts) -> KeptRequest {
        match self.on_rejection {
            Some(_) => KeptRequest::Head(Box::new(parts.clone())),
            None => KeptRequest::WantsText(refusal::wants_text(&parts.headers)),
        }
    }

    /// Answers a rejection by a handler in place of the handler's `response`, whose other header fields stay.
    pub(crate) fn answer_for_handler<B>(
        &self,
        rejected: &Rejected,
        request: &KeptRequest,
        response: Response<B>,
    ) -> Response<RefusalBody> {
        let decision = rejected.decision();
        let mut answer = match request {
            KeptRequest::Head(parts) => self.refuse(decision, parts),
            KeptRequest::WantsText(text) => refusal::with(decision, self.headers, *text),
        };
        let (theirs, _) = response.into_parts();
        let replaced = exposed_headers().into_iter().chain([
            CONTENT_TYPE,
            CONTENT_LENGTH,
            CONTENT_ENCODING,
            TRANSFER_ENCODING,
            CACHE_CONTROL,
        ]);
        let mut kept = theirs.headers;
        replaced.for_each(|name| while kept.remove(&name).is_some() {});
        answer.headers_mut().extend(kept);
        *answer.version_mut() = theirs.version;
        answer.extensions_mut().extend(theirs.extensions);
        answer
    }

    /// The answer to a request that was refused.
    pub(crate) fn refuse(&self, decision: &Decision, parts: &Parts) -> Response<RefusalBody> {
        let fields = self.headers;
        if let Some(protocol) = grpc::Protocol::of(parts) {
            return grpc::response(decision, fields, protocol).map(RefusalBody::from);
        }
        let Some(respond) = &self.on_rejection else {
            let text = refusal::wants_text(&parts.headers);
            return refusal::with(decision, fields, text);
        };
        let refused = Rejected::new(decision.clone()).headers(fields);
        let mut response = respond(&refused, parts);
        if response.status().is_success() {
            self.successes.log_with(|suppressed| {
                let (status, action) = (response.status().as_u16(), "default response");
                tracing::error!(
                    status,
                    action,
                    suppressed,
                    "on_rejection returned a 2xx status; use Rejected::status"
                );
            });
            return refusal::with(decision, fields, refusal::wants_text(&parts.headers));
        }
        let theirs = mem::take(response.headers_mut());
        if let Some(said) = theirs.get(RETRY_AFTER) {
            response.headers_mut().insert(RETRY_AFTER, said.clone());
        }
        let delay = Delay::of(refused.decision(), refused.fields());
        tell(refused.decision(), refused.fields(), delay, &mut response);
        // What the application has set stays.
        response.headers_mut().extend(theirs);
        response.map(RefusalBody::from)
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
        admission.for_each_decision(|_, decision| tell(decision, self, Delay::NONE, response));
    }
}

impl fmt::Debug for Answers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Answers")
            .field("headers", &self.headers)
            .field("on_rejection", &self.on_rejection.is_some())
            .finish()
    }
}
