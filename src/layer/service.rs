use std::{
    mem,
    task::{Context, Poll},
};

use http::{Request, Response};
use http_body::Body;
use tower_service::Service;

use super::{
    ResponseBody, ResponseFuture,
    shared::{AdmittedRequest, LayerRef},
};
use crate::limiter::{
    Admission, Decision, KeySource, LimitRequest, PendingDecision, Purpose, RequestHead, evaluate,
};

/// A service whose requests are limited by a [`RateLimitLayer`](crate::RateLimitLayer). Its error is the inner service's own.
#[derive(Clone, Debug)]
pub struct RateLimit<S> {
    inner: S,
    layer: LayerRef,
}

impl<S> RateLimit<S> {
    pub(super) fn new(inner: S, layer: LayerRef) -> Self {
        Self { inner, layer }
    }

    /// The inner service.
    pub fn get_ref(&self) -> &S {
        &self.inner
    }

    /// The inner service, mutable.
    pub fn get_mut(&mut self) -> &mut S {
        &mut self.inner
    }

    /// Returns the inner service.
    pub fn into_inner(self) -> S {
        self.inner
    }
}

impl<S, ReqBody, ResBody> Service<Request<ReqBody>> for RateLimit<S>
where
    S: Service<Request<ReqBody>, Response = Response<ResBody>> + Clone,
    ResBody: Body,
{
    type Response = Response<ResponseBody<ResBody>>;
    type Error = S::Error;
    type Future = ResponseFuture<S, ReqBody>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<ReqBody>) -> Self::Future {
        let settings = self.layer.settings();
        if !settings.is_enabled() {
            // Handlers may extract an admission, whether or not the layer is enabled.
            if request.extensions().get::<Admission>().is_none() {
                request.extensions_mut().insert(Admission::none());
            }
            return ResponseFuture::calling(self.inner.call(request), AdmittedRequest::default());
        }
        let (mut parts, body) = request.into_parts();
        let mut decision = Decision::begin(self.layer.policy_set());
        let pending = evaluate(
            &mut decision,
            &LimitRequest {
                purpose: Purpose::Admit,
                keys: KeySource::Head,
                head: Some(&RequestHead::new(&parts)),
                settings: None,
            },
        );
        let admitted = match pending {
            None if decision.is_admitted() => settings.admit(&mut Some(decision), &mut parts),
            None => {
                // A service that was polled ready may hold a resource, such as a permit, until it is called or dropped.
                self.inner = self.inner.clone();
                return ResponseFuture::rejected(settings.reject(&decision, &parts));
            }
            Some(response) => {
                // The service that was polled ready is the one to be called; its clone need not be.
                let clone = self.inner.clone();
                let ready = mem::replace(&mut self.inner, clone);
                let pending = PendingDecision::new(decision, Purpose::Admit, response);
                return ResponseFuture::deciding(pending, (parts, body), ready, settings);
            }
        };
        let inner = self.inner.call(Request::from_parts(parts, body));
        ResponseFuture::calling(inner, admitted)
    }
}
