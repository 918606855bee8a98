//! trypema: a sliding window on one shared connection, its "absolute" strategy.

use std::sync::Arc;

use tollgate_bench::{
    keys::{Rule, names},
    load::{Contender, Rng},
};
use trypema::{
    RateLimit, RateLimitDecision, RateLimiterBuilder, WindowSize,
    redis::{RedisKey, RedisRateLimiterProvider},
};

/// Far longer than any run.
const WINDOW_SECONDS: u64 = 10_000;

pub(crate) struct Peer {
    provider: Arc<RedisRateLimiterProvider>,
    limit: RateLimit,
    keys: Vec<RedisKey>,
}

impl Peer {
    pub(crate) async fn open(url: &str, rule: Rule, keys: usize) -> Self {
        let client = redis_1::Client::open(url).expect("an address");
        let connection = client.get_connection_manager().await.expect("a connection");
        let provider = RedisRateLimiterProvider::builder(connection)
            .window_size(WindowSize::seconds(WINDOW_SECONDS).expect("a window"))
            .build();
        let each_second = rule.burst as f64 / WINDOW_SECONDS as f64;
        // It takes no colons in keys.
        let names = names("trypema_", keys).into_iter();
        let key = |name: String| RedisKey::new(name.replace(':', "_")).expect("a key");
        Self {
            provider: provider.expect("a provider"),
            limit: RateLimit::per_second(each_second).expect("a limit"),
            keys: names.map(key).collect(),
        }
    }
}

impl Contender for Peer {
    async fn decide(&self, rng: &mut Rng) -> bool {
        let key = &self.keys[rng.below(self.keys.len())];
        let decision = self.provider.absolute().inc(key, &self.limit, 1).await;
        match decision.expect("an answer") {
            RateLimitDecision::Allowed => true,
            RateLimitDecision::Rejected { .. } => false,
            other => panic!("an answer of {other:?}"),
        }
    }
}
