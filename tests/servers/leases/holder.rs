//! Processes that hold units under several strategies, and others that take what the store has.

use crate::leases::{support, support::*};

/// A strategy, and a quota.
pub(crate) type Case = (StrategyKind, &'static str);

/// Every strategy, with units that don't refill while a test runs.
pub(crate) const LASTING: [Case; 8] = [
    (Gcra, "20000/month"),
    (Bucket, "20000/month"),
    (Fixed, "20000/month"),
    (Calendar, "20000/month"),
    (List, "20000/month"),
    (Log, "20000/month"),
    (Sliding(1), "20000/month"),
    (Sliding(10), "20000/month"),
];

/// Strategies with windows, or buckets, of which half a second is left at an instant that is half a second after a whole one,
/// and longer after a multiple of ten seconds.
pub(crate) const HALF_SECOND_LEFT: [Case; 5] = [
    (Fixed, "1000/500ms"),
    (Calendar, "1000/s"),
    (List, "1000/500ms"),
    (Sliding(1), "1000/500ms"),
    (Sliding(10), "1000/5s"),
];

/// A process with a limiter for each strategy, each with connections and a key of its own.
pub(crate) struct Holder(pub(crate) Vec<LeasingLimiter>);

pub(crate) struct LeasingLimiter {
    pub(crate) strategy: StrategyKind,
    pub(crate) key: Key,
    pub(crate) limiter: Limiter,
}

impl Holder {
    pub(crate) fn new(cases: &[Case], ttl: Duration, store: impl Fn() -> RedisStore) -> Self {
        let limiters = cases.iter().map(|&(strategy, quota)| {
            let lease = Lease::max_units(64).ttl(ttl);
            let policy = strategy.policy("p", quota).lease(lease);
            LeasingLimiter {
                strategy,
                key: Key::new(format!("{strategy:?}")),
                limiter: limiter(store(), [policy]),
            }
        });
        Self(limiters.collect())
    }

    /// Holds units under each strategy; returns how many were admitted.
    pub(crate) async fn hold(&self) -> Vec<u64> {
        let mut admitted = Vec::new();
        for own in &self.0 {
            admitted.push(support::hold(&own.limiter, own.key).await);
        }
        admitted
    }

    /// The units that are held.
    pub(crate) fn held(&self) -> Vec<u64> {
        self.0.iter().map(|own| held(&own.limiter)).collect()
    }

    /// The whole quotas.
    pub(crate) fn limits(&self) -> Vec<u64> {
        let limit = |own: &LeasingLimiter| own.limiter.stats().policies[0].limit;
        self.0.iter().map(limit).collect()
    }

    /// Takes all that the store has, by requests that no lease decides; returns how much that was.
    pub(crate) async fn take_all(&self) -> Vec<u64> {
        let mut taken = Vec::new();
        for own in &self.0 {
            taken.push(own.take_all().await);
        }
        taken
    }

    /// Sends more requests than units are held; returns how many were admitted by leases, and by the store.
    pub(crate) async fn spend(&self) -> [Vec<u64>; 2] {
        let mut spent = [Vec::new(), Vec::new()];
        for own in &self.0 {
            let mut admitted = [0, 0];
            for _ in 0..held(&own.limiter) + 40 {
                let decision = own.limiter.check(own.key).await;
                let by_store = usize::from(decision.source() != DecisionSource::Lease);
                admitted[by_store] += u64::from(decision.is_admitted());
            }
            spent[0].push(admitted[0]);
            spent[1].push(admitted[1]);
        }
        spent
    }

    /// Refunds what is held.
    pub(crate) async fn shut_down(&self, scene: &Scene) {
        for own in &self.0 {
            scene.shut_down(&own.limiter).await;
            until_nothing_is_held(std::slice::from_ref(&own.limiter)).await;
        }
    }
}

impl LeasingLimiter {
    pub(crate) async fn take_all(&self) -> u64 {
        let mut taken = 0;
        loop {
            let seen = self.limiter.peek(self.key).await.expect("a response");
            let left = seen.left("p").max(1);
            let decision = self.limiter.check(self.key).cost(left).await;
            let (source, strategy) = (decision.source(), self.strategy);
            assert_eq!(source, DecisionSource::Store, "{strategy:?}");
            if !decision.is_admitted() {
                return taken;
            }
            taken += left;
        }
    }

    /// Whether a lease admits a request at once: nothing else runs meanwhile.
    pub(crate) fn is_by_lease(&self) -> bool {
        let decision = self.limiter.check(self.key).into_future().now_or_never();
        let by_lease = |it: Decision| it.source() == DecisionSource::Lease && it.is_admitted();
        decision.is_some_and(by_lease)
    }
}
