//! tollgate itself, without HTTP, on either store.

use std::time::Duration;

use tollgate::{
    Decision, Key, Limiter, Policy, RedisStore, limiter::LimiterBuilder, observe::DecisionSource,
};

use crate::{
    keys::{Callers, Rule},
    load::{Contender, Rng},
};

/// `Limiter::check`, one policy or three.
#[derive(Debug)]
pub struct TollgateLimiter {
    limiter: Limiter,
    callers: Callers,
    apart: bool,
    cached: bool,
    leased: bool,
}

/// A machine that stalls for long must not end in a store fault: the p99 shows stalls.
const TIMEOUT: Duration = Duration::from_secs(300);

/// What the policies are called.
pub const POLICIES: [&str; 3] = ["first", "second", "third"];

/// Counting on the server at `url`, with the defaults of tollgate.
pub fn on_redis(url: &str) -> LimiterBuilder {
    let store = RedisStore::builder().url(url).timeout(TIMEOUT);
    Limiter::builder().store(store.build().expect("a store"))
}

/// Counting on a cluster, with the defaults of tollgate.
pub fn on_cluster(urls: &[String]) -> LimiterBuilder {
    let store = RedisStore::builder()
        .cluster(urls.iter().cloned())
        .timeout(TIMEOUT);
    Limiter::builder().store(store.build().expect("a store"))
}

/// Counting in process.
pub fn in_process() -> LimiterBuilder {
    Limiter::builder()
}

impl TollgateLimiter {
    /// Under one policy.
    pub fn one(on: LimiterBuilder, rule: Rule, callers: Callers) -> Self {
        let on = on.policy(Policy::new(POLICIES[0], rule.quota()));
        Self::of(on, callers)
    }

    /// Under any policy.
    pub fn under(on: LimiterBuilder, policy: Policy, callers: Callers) -> Self {
        Self::of(on.policy(policy), callers)
    }

    /// Under three policies that all must admit, by one key for all of them.
    pub fn three(on: LimiterBuilder, rule: Rule, callers: Callers) -> Self {
        let with = |on: LimiterBuilder, name| on.policy(Policy::new(name, rule.quota()));
        Self::of(POLICIES.into_iter().fold(on, with), callers)
    }

    /// Each policy by a key of its own.
    #[must_use]
    pub fn apart(mut self) -> Self {
        self.apart = true;
        self
    }

    /// Rejections may come from the cache.
    #[must_use]
    pub fn cached(mut self) -> Self {
        self.cached = true;
        self
    }

    /// Decisions may come from leases.
    #[must_use]
    pub fn leased(mut self) -> Self {
        self.leased = true;
        self
    }

    fn of(on: LimiterBuilder, callers: Callers) -> Self {
        Self {
            limiter: on.build().expect("a limiter"),
            callers,
            apart: false,
            cached: false,
            leased: false,
        }
    }

    /// Charges the first caller so many units.
    pub async fn charge_first(&self, units: u64) {
        let key = Key::new(crate::keys::name(0));
        let decision = self.limiter.check(key).cost(units).await;
        assert!(decision.is_admitted(), "{decision:?}");
    }

    fn passed(&self, decision: &Decision) -> bool {
        // A decision that was not counted is fast, and of no use.
        let counted = match decision.source() {
            DecisionSource::Store => true,
            DecisionSource::RejectionCache => self.cached && !decision.is_admitted(),
            DecisionSource::Lease => self.leased && decision.is_admitted(),
            _ => false,
        };
        assert!(counted, "{decision:?}");
        decision.is_admitted()
    }
}

/// `Check::now`, under one policy in process.
#[derive(Debug)]
pub struct Now(pub TollgateLimiter);

impl Contender for Now {
    async fn decide(&self, rng: &mut Rng) -> bool {
        let limiter = &self.0;
        let check = limiter.limiter.check(limiter.callers.pick(rng));
        limiter.passed(&check.now().expect("in process"))
    }
}

impl Contender for TollgateLimiter {
    async fn decide(&self, rng: &mut Rng) -> bool {
        let decision = if self.apart {
            let key = |policy| (policy, self.callers.pick(rng));
            self.limiter.check(POLICIES.map(key)).await
        } else {
            self.limiter.check(self.callers.pick(rng)).await
        };
        self.passed(&decision)
    }
}
