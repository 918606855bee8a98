//! trypema: a sliding window on one shared connection, its "absolute" strategy; and the same in process, synchronized with Redis.

use std::sync::Arc;

use tollgate_bench::{
    contenders::redis::address,
    keys::{Rule, names},
    load::{Contender, Rng},
};
use trypema::{
    RateLimit, RateLimitDecision, RateLimiterBuilder, WindowSize,
    hybrid::{HybridRateLimiterProvider, SyncInterval},
    redis::{RedisKey, RedisRateLimiterProvider},
};

/// How often the hybrid provider synchronizes, in milliseconds.
const SYNC_INTERVAL: u64 = 50;

pub(crate) struct Peer {
    provider: Arc<RedisRateLimiterProvider>,
    limit: RateLimit,
    keys: Vec<RedisKey>,
}

impl Peer {
    pub(crate) async fn open(url: &str, rule: Rule, keys: usize) -> Self {
        let client = redis_1::Client::open(address(url)).expect("an address");
        let connection = client.get_connection_manager().await.expect("a connection");
        let (limit, window) = limit(rule);
        let provider = RedisRateLimiterProvider::builder(connection)
            .window_size(window)
            .build();
        // It takes no colons in keys.
        let names = names("trypema_", keys).into_iter();
        let key = |name: String| RedisKey::new(name.replace(':', "_")).expect("a key");
        Self {
            provider: provider.expect("a provider"),
            limit,
            keys: names.map(key).collect(),
        }
    }
}

impl Contender for Peer {
    async fn decide(&self, rng: &mut Rng) -> bool {
        let key = &self.keys[rng.below(self.keys.len())];
        let decision = self.provider.absolute().inc(key, &self.limit, 1).await;
        passed(&decision.expect("an answer"))
    }
}

/// Its hybrid provider, with one key.
pub(crate) struct Hybrid {
    provider: Arc<HybridRateLimiterProvider>,
    limit: RateLimit,
    key: RedisKey,
}

impl Hybrid {
    pub(crate) async fn open(url: &str, rule: Rule) -> Self {
        let client = redis_1::Client::open(address(url)).expect("an address");
        let connection = client.get_connection_manager().await.expect("a connection");
        let (limit, window) = limit(rule);
        let interval = SyncInterval::milliseconds(SYNC_INTERVAL).expect("an interval");
        let provider = HybridRateLimiterProvider::builder(connection)
            .window_size(window)
            .sync_interval(interval)
            .build();
        Self {
            provider: provider.expect("a provider"),
            limit,
            key: RedisKey::new("trypema".to_owned()).expect("a key"),
        }
    }
}

impl Contender for Hybrid {
    async fn decide(&self, _: &mut Rng) -> bool {
        let absolute = self.provider.absolute();
        let decision = absolute.inc(&self.key, &self.limit, 1).await;
        passed(&decision.expect("an answer"))
    }
}

/// A rule as a window of whole seconds.
fn limit(rule: Rule) -> (RateLimit, WindowSize) {
    let (units, period) = rule.window();
    let seconds = period.as_secs();
    let limit = RateLimit::per_second(units as f64 / seconds as f64).expect("a limit");
    (limit, WindowSize::seconds(seconds).expect("a window"))
}

fn passed(decision: &RateLimitDecision) -> bool {
    match decision {
        RateLimitDecision::Allowed => true,
        RateLimitDecision::Rejected { .. } => false,
        other => panic!("an answer of {other:?}"),
    }
}
