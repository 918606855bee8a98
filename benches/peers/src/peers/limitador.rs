//! limitador: a fixed window on one shared connection, read in one round trip and counted in another.

use std::collections::HashMap;

use limitador::{
    AsyncRateLimiter, limit::Limit, limit::Namespace, storage::redis::AsyncRedisStorage,
};
use tollgate_bench::{
    keys::{Rule, names},
    load::{Contender, Rng},
};

/// Far longer than any run.
const WINDOW_SECONDS: u64 = 10_000;

pub(crate) struct Peer {
    limiter: AsyncRateLimiter,
    namespace: Namespace,
    names: Vec<String>,
}

impl Peer {
    pub(crate) async fn open(url: &str, rule: Rule, keys: usize) -> Self {
        let storage = AsyncRedisStorage::new(url).await.expect("a connection");
        let limiter = AsyncRateLimiter::new_with_storage(Box::new(storage));
        let caller = "caller".try_into().expect("a variable");
        limiter.add_limit(Limit::new(
            "bench",
            rule.burst,
            WINDOW_SECONDS,
            vec![],
            vec![caller],
        ));
        Self {
            limiter,
            namespace: "bench".into(),
            names: names("", keys),
        }
    }
}

impl Contender for Peer {
    async fn decide(&self, rng: &mut Rng) -> bool {
        let name = self.names[rng.below(self.names.len())].clone();
        let context = HashMap::from([("caller".to_owned(), name)]).into();
        let asked = self
            .limiter
            .check_rate_limited_and_update(&self.namespace, &context, 1);
        !asked.await.expect("an answer").limited
    }
}
