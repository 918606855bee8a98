use std::{
    mem,
    sync::Arc,
    task::{Context, Poll},
};

use http::{Request, Response};
use http_body::Body;
use tower_service::Service;

use super::{
    ResponseBody, ResponseFuture,
    snapshot::{AdmittedRequest, LayerRef},
};
use crate::limiter::{Admission, DecisionBuilder, PendingDecision};

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
        let snapshot = self.layer.current();
        if !snapshot.settings.is_enabled() {
            // Handlers may extract an admission, whether or not the layer is enabled.
            if request.extensions().get::<Admission>().is_none() {
                request.extensions_mut().insert(Admission::none());
            }
            return ResponseFuture::calling(self.inner.call(request), AdmittedRequest::default());
        }
        let (mut parts, body) = request.into_parts();
        let limiter = Arc::clone(&snapshot.limiter);
        let mut builder = DecisionBuilder::check();
        let pending = limiter.decide(&mut builder, |builder| {
            limiter.evaluate_request(builder, &parts)
        });
        let admitted = match pending {
            None if builder.is_admitted() => {
                snapshot.admit(&mut Some(builder.finish(limiter)), &mut parts)
            }
            None => {
                // A service that was polled ready may hold a resource, such as a permit, until it is called or dropped.
                self.inner = self.inner.clone();
                let decision = builder.finish(limiter);
                return ResponseFuture::rejected(snapshot.reject(&decision, &parts));
            }
            Some(stage) => {
                // The service that was polled ready is the one to be called; its clone need not be.
                let clone = self.inner.clone();
                let ready = mem::replace(&mut self.inner, clone);
                let pending = PendingDecision::new(limiter, builder, stage);
                return ResponseFuture::deciding(pending, (parts, body), ready, snapshot);
            }
        };
        let inner = self.inner.call(Request::from_parts(parts, body));
        ResponseFuture::calling(inner, admitted)
    }
}
