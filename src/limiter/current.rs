//! A limiter's policies in force, and what outlives them.

use std::sync::{Arc, Mutex};

use super::{
    health::HealthChecks,
    policy_set::{PolicySet, PolicySets},
    report::CallQueues,
};
use crate::{observe::LimiterStats, sync::Replaceable};

/// A set of policies over a store. Cheap to clone; clones share everything.
///
/// A [`RateLimitLayer`](crate::RateLimitLayer) calls it for each request. It can also be called without HTTP, with keys that
/// only a handler or a job knows. It can be shared between threads and runtimes; dropping it loses no counts of the store.
///
/// ```
/// use tollgate::{Limiter, Policy, Quota};
///
/// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
/// let limiter = Limiter::builder()
///     .policy(Policy::new("api", Quota::requests(5).per_minute()))
///     .build()?;
/// for left in (0..5).rev() {
///     let decision = limiter.check("alice").await;
///     assert!(decision.is_admitted());
///     assert_eq!(decision.policy("api").unwrap().remaining(), left);
/// }
/// let rejected = limiter.admit("alice").await.unwrap_err();
/// assert_eq!(rejected.retry_after().duration().unwrap().as_secs(), 11);
/// # Ok::<(), tollgate::ConfigError>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Limiter {
    pub(super) shared: Arc<Shared>,
}

/// What the clones of a limiter share.
pub(super) struct Shared {
    /// The policies in force.
    pub(super) sets: Replaceable<PolicySet>,
    /// Held while the policies are replaced.
    pub(super) replacing: Mutex<()>,
    /// The calls that wait.
    pub(super) queues: Arc<CallQueues>,
    pub(super) health: HealthChecks,
}

impl Limiter {
    pub(super) fn with(sets: PolicySets, queues: Arc<CallQueues>) -> Self {
        Self {
            shared: Arc::new(Shared {
                sets: Replaceable::new(sets),
                replacing: Mutex::default(),
                queues,
                health: HealthChecks::default(),
            }),
        }
    }

    /// This thread's reference to the policies in force.
    // Inlined, it would keep its callers from being inlined, and a `Check` would be copied: 8 % of a check in process.
    #[inline(never)]
    pub(crate) fn policy_set(&self) -> Arc<PolicySet> {
        self.shared.sets.local()
    }
}

impl Shared {
    /// The state of the limiter and its store in this process.
    pub(super) fn stats(&self) -> LimiterStats {
        self.stats_of(&self.sets.local())
    }

    /// The same with these policies.
    pub(super) fn stats_of(&self, set: &PolicySet) -> LimiterStats {
        let waiting = self.queues.waiting();
        let policies = set.policies.iter().map(|bound| {
            let waiters = waiting.get(bound.policy.name()).copied().unwrap_or(0);
            bound.stats(waiters as u64)
        });
        LimiterStats {
            generation: set.generation,
            policies: policies.collect(),
            store: set.store.stats(),
        }
    }
}
