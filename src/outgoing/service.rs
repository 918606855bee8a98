use std::{
    future::IntoFuture,
    mem,
    task::{Context, Poll},
};

use tower_layer::Layer;
use tower_service::Service;

use super::{
    AttachAdmission, BoxError, Discard, OutgoingLayer, RequestKeys, ResponseFuture, StaticKeys,
};

/// A service whose requests are delayed by an [`OutgoingLayer`].
#[derive(Clone, Debug)]
pub struct Outgoing<S, K = StaticKeys, H = Discard> {
    inner: S,
    layer: OutgoingLayer<K, H>,
}

impl<S, K: Clone, H: Clone> Layer<S> for OutgoingLayer<K, H> {
    type Service = Outgoing<S, K, H>;

    fn layer(&self, inner: S) -> Self::Service {
        Outgoing {
            inner,
            layer: self.clone(),
        }
    }
}

impl<S, K, H> Outgoing<S, K, H> {
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

impl<S, Req, K, H> Service<Req> for Outgoing<S, K, H>
where
    S: Service<Req, Error: Into<BoxError>> + Clone,
    K: RequestKeys<Req>,
    H: AttachAdmission<S::Response> + Clone,
{
    type Response = H::Output;
    type Error = BoxError;
    type Future = ResponseFuture<S, Req, H>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, request: Req) -> Self::Future {
        let layer = &self.layer;
        if !layer.enabled {
            let inner = self.inner.call(request);
            return ResponseFuture::passthrough(inner, layer.attach.clone());
        }
        let keys = layer.keys.keys(&request);
        let wait = layer.limiter.wait(keys, layer.timeout).queue(layer.queue);
        let wait = match layer.keys.cost(&request) {
            Some(units) => wait.cost(units),
            None => wait,
        };
        // The service that was polled ready is the one to be called; its clone need not be.
        let clone = self.inner.clone();
        let ready = mem::replace(&mut self.inner, clone);
        ResponseFuture::new(wait.into_future(), request, ready, layer.attach.clone())
    }
}
