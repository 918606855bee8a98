//! throttle-kit: GCRA on one shared connection, by the application's clock.

use throttle_kit::{Quota, RateLimitBackend, RedisBackend};
use tollgate_bench::{
    keys::{Rule, names},
    load::{Contender, Rng},
};

pub(crate) struct Peer {
    backend: RedisBackend,
    quota: Quota,
    names: Vec<String>,
}

impl Peer {
    pub(crate) async fn open(url: &str, rule: Rule, keys: usize) -> Self {
        let burst = u32::try_from(rule.burst).expect("a burst");
        Self {
            backend: RedisBackend::connect(url).await.expect("a connection"),
            quota: Quota::from_parts(rule.interval(), burst),
            names: names("throttle-kit:", keys),
        }
    }
}

impl Contender for Peer {
    async fn decide(&self, rng: &mut Rng) -> bool {
        let name = &self.names[rng.below(self.names.len())];
        self.backend.check(name, &self.quota).await.allowed
    }
}
