//! tower-rate-limit-redis: GCRA on one shared connection, as a layer, around a service that does nothing.

use axum::body::Body;
use http::{Request, Response, StatusCode};
use redis_032::aio::MultiplexedConnection;
use tollgate_bench::{
    contenders::layers::Bare,
    keys::{Rule, names},
    load::{Contender, Rng},
};
use tower::{Layer, ServiceExt};
use tower_rate_limit_redis::{KeyResolver, RateLimitLayer};

pub(crate) struct Peer {
    service: <RateLimitLayer<Caller> as Layer<Bare>>::Service,
    names: Vec<String>,
}

/// The caller's name, from the request's extensions.
#[derive(Clone, Debug)]
struct Caller(String);

impl KeyResolver for Caller {
    type Key = String;
    type ErrorBody = Body;

    fn key<T>(&self, request: &Request<T>) -> Result<String, Response<Body>> {
        let caller = request.extensions().get::<Self>();
        Ok(caller.expect("a caller").0.clone())
    }
}

impl Peer {
    pub(crate) async fn open(url: &str, rule: Rule, keys: usize) -> Self {
        let client = redis_032::Client::open(url).expect("an address");
        let connection: MultiplexedConnection = client
            .get_multiplexed_async_connection()
            .await
            .expect("a connection");
        let layer = RateLimitLayer::builder()
            .conn(connection)
            .key_resolver(Caller(String::new()))
            // All that 16 bits hold: too little to admit every request of a hot key.
            .capacity(u16::try_from(rule.burst).unwrap_or(u16::MAX))
            .emission_interval(rule.interval())
            .build();
        Self {
            service: layer.layer(Bare),
            names: names("tower-rate-limit-redis:", keys),
        }
    }
}

impl Contender for Peer {
    async fn decide(&self, rng: &mut Rng) -> bool {
        let name = &self.names[rng.below(self.names.len())];
        let mut request = Request::new(Body::empty());
        request.extensions_mut().insert(Caller(name.clone()));
        let Ok(response) = self.service.clone().oneshot(request).await;
        match response.status() {
            StatusCode::OK => true,
            StatusCode::TOO_MANY_REQUESTS => false,
            other => panic!("an answer of {other}"),
        }
    }
}
