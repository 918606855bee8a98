use std::{
    mem,
    task::{Context, Poll},
};

use http::{Request, Response};
use tower_service::Service;

use super::{
    ResponseBody, ResponseFuture,
    shared::{Held, Pass},
};
use crate::{admission::Admission, limiter::Evaluation};

/// A service whose requests are limited by a [`RateLimitLayer`](crate::RateLimitLayer). Its error is the inner service's own.
#[derive(Clone, Debug)]
pub struct RateLimit<S> {
    inner: S,
    /// None while switched off.
    gate: Option<Held>,
}

impl<S> RateLimit<S> {
    pub(super) fn new(inner: S, gate: Option<Held>) -> Self {
        Self { inner, gate }
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
{
    type Response = Response<ResponseBody<ResBody>>;
    type Error = S::Error;
    type Future = ResponseFuture<S, ReqBody>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<ReqBody>) -> Self::Future {
        let Some(gate) = self.gate.as_ref().map(Held::gate) else {
            // Handlers that ask for it must not miss it only because limits are switched off.
            if request.extensions().get::<Admission>().is_none() {
                request.extensions_mut().insert(Admission::none());
            }
            return ResponseFuture::passed(self.inner.call(request), Pass::default());
        };
        let (mut parts, body) = request.into_parts();
        let pass = match gate.limiter.evaluate_request(&parts) {
            Evaluation::Compact(brief) => gate.pass(brief, &mut parts),
            Evaluation::Made(decision) if decision.is_admitted() => {
                gate.admit(decision, &mut parts)
            }
            Evaluation::Made(decision) => {
                // What was polled ready may hold what others wait for, until it is called or dropped.
                self.inner = self.inner.clone();
                return ResponseFuture::refused(gate.refuse(&decision, &parts));
            }
            Evaluation::Pending(pending) => {
                // The service that was polled ready is the one to be called; its clone need not be.
                let clone = self.inner.clone();
                let ready = mem::replace(&mut self.inner, clone);
                return ResponseFuture::judging(pending, (parts, body), ready, gate.clone());
            }
        };
        let inner = self.inner.call(Request::from_parts(parts, body));
        ResponseFuture::passed(inner, pass)
    }
}
