//! A process that holds units under several strategies, and other processes that take what the store has.

use std::{fmt, time::Duration};

use tokio::runtime::{Builder, Runtime};
use tollgate::{DecisionSource, Key, Lease, Limiter, RedisStore};

use crate::leases::support::{StrategyKind, TEST_TIMEOUT, held, hold_more_than, limiter, used};

/// A strategy, and a quota.
pub(crate) type Case = (StrategyKind, &'static str);

/// Every strategy, with units that don't refill while a test runs.
pub(crate) const LASTING: [Case; 8] = [
    (StrategyKind::Gcra, "20000/month"),
    (StrategyKind::Bucket, "20000/month"),
    (StrategyKind::Fixed, "20000/month"),
    (StrategyKind::Calendar, "20000/month"),
    (StrategyKind::List, "20000/month"),
    (StrategyKind::Log, "20000/month"),
    (StrategyKind::Sliding(1), "20000/month"),
    (StrategyKind::Sliding(10), "20000/month"),
];

/// Strategies with windows, or buckets, of which half a second is left at an instant that is half a second after a whole one,
/// and longer after a multiple of ten seconds.
pub(crate) const HALF_SECOND_LEFT: [Case; 5] = [
    (StrategyKind::Fixed, "1000/500ms"),
    (StrategyKind::Calendar, "1000/s"),
    (StrategyKind::List, "1000/500ms"),
    (StrategyKind::Sliding(1), "1000/500ms"),
    (StrategyKind::Sliding(10), "1000/5s"),
];

/// A limiter for each strategy.
pub(crate) struct Holder(Vec<LeasingLimiter>);

/// A limiter with connections, a key and a runtime of its own: what it holds stays until the runtime is polled.
pub(crate) struct LeasingLimiter {
    pub(crate) strategy: StrategyKind,
    pub(crate) key: Key,
    pub(crate) limiter: Limiter,
    runtime: Runtime,
}

/// What was admitted under one strategy.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Admitted {
    pub(crate) units: u64,
    /// How many of them by leases.
    pub(crate) by_lease: u64,
}

impl Holder {
    pub(crate) fn new(cases: &[Case], ttl: Duration, store: impl Fn() -> RedisStore) -> Self {
        let limiters = cases.iter().map(|&(strategy, quota)| {
            let lease = Lease::max_units(64).ttl(ttl);
            let policy = strategy.policy("p", quota).lease(lease);
            let mut runtime = Builder::new_current_thread();
            LeasingLimiter {
                strategy,
                key: Key::new(format!("{strategy:?}")),
                limiter: limiter(store(), [policy]),
                runtime: runtime.enable_all().build().expect("a runtime"),
            }
        });
        Self(limiters.collect())
    }

    pub(crate) fn limiters(&self) -> impl Iterator<Item = &LeasingLimiter> {
        self.0.iter()
    }

    /// The limiter of the only strategy.
    pub(crate) fn only_limiter(&self) -> &LeasingLimiter {
        assert_eq!(self.0.len(), 1);
        &self.0[0]
    }

    /// Holds units under each strategy, while no lease is on its way; returns what was admitted.
    pub(crate) fn hold(&self) -> Vec<u64> {
        let admitted = self.limiters().map(|own| own.run(own.hold())).collect();
        let held = self.held();
        assert!(held.iter().all(|units| *units > 0), "{held:?}");
        admitted
    }

    /// The units that are held.
    pub(crate) fn held(&self) -> Vec<u64> {
        self.limiters().map(LeasingLimiter::held).collect()
    }

    /// The whole quotas.
    pub(crate) fn limits(&self) -> Vec<u64> {
        let limit = |own: &LeasingLimiter| own.limiter.stats().policies[0].limit;
        self.limiters().map(limit).collect()
    }

    /// Takes all that the store has, by requests that no lease decides; returns how much that was.
    pub(crate) fn take_all(&self) -> Vec<u64> {
        self.limiters().map(|own| own.run(own.take_all())).collect()
    }

    /// Sends more requests than units are held.
    pub(crate) fn spend(&self) -> Vec<Admitted> {
        self.limiters().map(|own| own.run(own.spend())).collect()
    }

    /// Refunds what is held.
    pub(crate) fn shutdown(&self) {
        for own in self.limiters() {
            let ended = own.run(own.limiter.shutdown(TEST_TIMEOUT));
            ended.expect("the store replies");
        }
    }
}

impl LeasingLimiter {
    pub(crate) fn run<T>(&self, future: impl IntoFuture<Output = T>) -> T {
        self.runtime.block_on(async { future.await })
    }

    pub(crate) fn held(&self) -> u64 {
        held(&self.limiter)
    }

    async fn hold(&self) -> u64 {
        let (mut admitted, mut before) = (0, 0);
        // A slow machine may refund the units meanwhile.
        while self.held() == 0 || self.held() != before {
            if self.held() == 0 {
                admitted += hold_more_than(&self.limiter, self.key, 5).await;
            }
            before = self.held();
            // A lease that was requested is charged before this sees the store's count.
            used(&self.limiter, self.key).await;
            tokio::task::yield_now().await;
        }
        admitted
    }

    async fn take_all(&self) -> u64 {
        let mut taken = 0;
        loop {
            let seen = self.limiter.peek(self.key).await.expect("a response");
            let left = seen.policy("p").expect("a policy").remaining().max(1);
            let decision = self.limiter.check(self.key).cost(left).await;
            let (source, strategy) = (decision.source(), self.strategy);
            assert_eq!(source, DecisionSource::Store, "{strategy:?}");
            if !decision.is_admitted() {
                return taken;
            }
            taken += left;
        }
    }

    async fn spend(&self) -> Admitted {
        let mut admitted = Admitted::default();
        for _ in 0..self.held() + 40 {
            let decision = self.limiter.check(self.key).await;
            admitted.units += u64::from(decision.is_admitted());
            admitted.by_lease += u64::from(decision.source() == DecisionSource::Lease);
        }
        admitted
    }
}

impl fmt::Debug for Admitted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({} by leases)", self.units, self.by_lease)
    }
}
