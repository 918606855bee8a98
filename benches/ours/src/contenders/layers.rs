//! Services behind a layer, called without a server.

use std::{
    convert::Infallible,
    future::{Ready, ready},
    net::{Ipv4Addr, SocketAddr},
    task::{Context, Poll},
};

use axum::{body::Body, extract::ConnectInfo};
use http::{Request, Response, StatusCode};
use tower::{Service, ServiceExt};

use crate::load::{Contender, Rng};

/// A service that does nothing, which is what layers are measured around.
#[derive(Clone, Copy, Debug)]
pub struct Bare;

impl Service<Request<Body>> for Bare {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Ready<Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<Body>) -> Self::Future {
        ready(Ok(Response::new(Body::empty())))
    }
}

/// Requests of so many clients to a service, which is cloned for each as a router does.
#[derive(Debug)]
pub struct Layered<S> {
    service: S,
    clients: usize,
}

impl<S> Layered<S> {
    /// With so many clients, each with an address of its own.
    pub fn new(service: S, clients: usize) -> Self {
        Self { service, clients }
    }
}

impl<S, B> Contender for Layered<S>
where
    S: Service<Request<Body>, Response = Response<B>, Error = Infallible>
        + Clone
        + Send
        + Sync
        + 'static,
    S::Future: Send,
    B: Send,
{
    async fn decide(&self, rng: &mut Rng) -> bool {
        let client = rng.below(self.clients);
        call(self.service.clone(), client).await
    }
}

impl<S, B> Layered<S>
where
    S: Service<Request<Body>, Response = Response<B>, Error = Infallible> + Clone,
{
    /// Sends one request of each client.
    pub async fn call_each(&self) {
        for client in 0..self.clients {
            call(self.service.clone(), client).await;
        }
    }
}

async fn call<S, B>(service: S, client: usize) -> bool
where
    S: Service<Request<Body>, Response = Response<B>, Error = Infallible>,
{
    let address = Ipv4Addr::from_bits(0x0A00_0000 + client as u32);
    let mut request = Request::new(Body::empty());
    let info = ConnectInfo(SocketAddr::from((address, 1234)));
    request.extensions_mut().insert(info);
    let Ok(response) = service.oneshot(request).await;
    match response.status() {
        StatusCode::OK => true,
        StatusCode::TOO_MANY_REQUESTS => false,
        other => panic!("a response of {other}"),
    }
}
