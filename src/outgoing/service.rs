use std::{
    future::IntoFuture,
    mem,
    task::{Context, Poll},
};

use tower_layer::Layer;
use tower_service::Service;

use super::{
    BoxError, ClientResponse, HttpResponse, OutgoingLayer, RequestKeys, ResponseFuture, StaticKeys,
};

/// A service whose requests are delayed by an [`OutgoingLayer`].
#[derive(Clone, Debug)]
pub struct Outgoing<S, K = StaticKeys, R = HttpResponse> {
    inner: S,
    layer: OutgoingLayer<K, R>,
}

impl<S, K: Clone, R: Clone> Layer<S> for OutgoingLayer<K, R> {
    type Service = Outgoing<S, K, R>;

    fn layer(&self, inner: S) -> Self::Service {
        Outgoing {
            inner,
            layer: self.clone(),
        }
    }
}

impl<S, K, R> Outgoing<S, K, R> {
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

impl<S, Req, K, R> Service<Req> for Outgoing<S, K, R>
where
    S: Service<Req, Error: Into<BoxError>> + Clone,
    K: RequestKeys<Req>,
    R: ClientResponse<S::Response> + Clone,
{
    type Response = R::Output;
    type Error = BoxError;
    type Future = ResponseFuture<S, Req, R>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, request: Req) -> Self::Future {
        let layer = &self.layer;
        let responses = layer.responses.clone();
        if !layer.enabled {
            return ResponseFuture::passthrough(self.inner.call(request), responses);
        }
        let keys = layer.keys.keys(&request);
        let obeyed_keys = responses.needs_keys().then(|| keys.clone());
        let wait = layer.limiter.wait(keys, layer.timeout).queue(layer.queue);
        let wait = match layer.keys.cost(&request) {
            Some(units) => wait.cost(units),
            None => wait,
        };
        // The service that was polled ready is the one to be called; its clone need not be.
        let clone = self.inner.clone();
        let ready = mem::replace(&mut self.inner, clone);
        ResponseFuture::new(wait.into_future(), request, ready, responses, obeyed_keys)
    }
}
