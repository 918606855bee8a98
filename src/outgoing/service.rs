use std::{
    future::IntoFuture,
    mem,
    task::{Context, Poll},
};

use tower_layer::Layer;
use tower_service::Service;

use super::{
    AttachAdmission, BoxError, Discard, ObeyResponses, OutgoingLayer, RequestKeys, ResponseFuture,
    StaticKeys,
};

/// A service whose requests are delayed by an [`OutgoingLayer`].
#[derive(Clone, Debug)]
pub struct Outgoing<S, K = StaticKeys, H = Discard, O = ()> {
    inner: S,
    layer: OutgoingLayer<K, H, O>,
}

impl<S, K: Clone, H: Clone, O: Clone> Layer<S> for OutgoingLayer<K, H, O> {
    type Service = Outgoing<S, K, H, O>;

    fn layer(&self, inner: S) -> Self::Service {
        Outgoing {
            inner,
            layer: self.clone(),
        }
    }
}

impl<S, K, H, O> Outgoing<S, K, H, O> {
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

impl<S, Req, K, H, O> Service<Req> for Outgoing<S, K, H, O>
where
    S: Service<Req, Error: Into<BoxError>> + Clone,
    K: RequestKeys<Req>,
    H: AttachAdmission<S::Response> + Clone,
    O: ObeyResponses<S::Response> + Clone,
{
    type Response = H::Output;
    type Error = BoxError;
    type Future = ResponseFuture<S, Req, H, O>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, request: Req) -> Self::Future {
        let layer = &self.layer;
        let attach = layer.attach.clone();
        if !layer.enabled {
            return ResponseFuture::passthrough(self.inner.call(request), attach);
        }
        let keys = layer.keys.keys(&request);
        let obeyed = layer
            .obey
            .needs_keys()
            .then(|| (layer.obey.clone(), keys.clone()));
        let wait = layer.limiter.wait(keys, layer.timeout).queue(layer.queue);
        let wait = match layer.keys.cost(&request) {
            Some(units) => wait.cost(units),
            None => wait,
        };
        // The service that was polled ready is the one to be called; its clone need not be.
        let clone = self.inner.clone();
        let ready = mem::replace(&mut self.inner, clone);
        ResponseFuture::new(wait.into_future(), request, ready, attach, obeyed)
    }
}
