//! Handles of limits in a store.

use std::{
    any::Any,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use super::op::Units;
use crate::{
    clock::Timestamp,
    strategy::{QuotaStatus, Rule, RuleInfo, Snapshot},
};

/// A limit that a store has [registered](super::Store::register): a rule under the name of a policy, with a context of the
/// store. Cheap to clone.
#[derive(Clone)]
pub struct LimitHandle(Arc<Registered>);

struct Registered {
    /// Unique in this process, and never reused.
    id: u64,
    policy: Box<str>,
    rule: Arc<dyn Rule>,
    info: RuleInfo,
    context: Box<dyn Any + Send + Sync>,
}

impl LimitHandle {
    /// A handle of a limit. `context` is a value of the store, which [`context`](LimitHandle::context) returns.
    pub fn new(policy: &str, rule: Arc<dyn Rule>, context: impl Any + Send + Sync) -> Self {
        static NEXT_ID: AtomicU64 = AtomicU64::new(0);
        Self(Arc::new(Registered {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            policy: policy.into(),
            info: rule.info(),
            rule,
            context: Box::new(context),
        }))
    }

    /// The policy's name.
    pub fn policy(&self) -> &str {
        &self.0.policy
    }

    /// The rule that counts the limit.
    pub fn rule(&self) -> &dyn Rule {
        &*self.0.rule
    }

    /// Computes the status of a request of `cost` units by the [rule](Rule::status), from the `snapshot` that was taken at
    /// `now`. A request that costs 0 never waits, also in debt.
    pub fn status(&self, snapshot: &Snapshot, now: Timestamp, cost: Units) -> QuotaStatus {
        QuotaStatus::of_request(self.rule(), snapshot, now, cost.get())
    }

    /// The constants of its rule, as they were when the limit was registered.
    pub fn info(&self) -> &RuleInfo {
        &self.0.info
    }

    /// The store's context. `None` if it is of another type, as for a handle from another store.
    pub fn context<T: Any>(&self) -> Option<&T> {
        self.0.context.downcast_ref()
    }

    /// A number that no other limit of this process has or had.
    #[cfg_attr(
        not(feature = "redis"),
        allow(dead_code, reason = "the store on Redis asks for it")
    )]
    pub(crate) fn id(&self) -> u64 {
        self.0.id
    }
}

#[cfg(test)]
impl LimitHandle {
    /// A limit of policy `p` that no store has registered.
    pub(crate) fn unregistered(strategy: impl crate::strategy::Strategy, quota: &str) -> Self {
        let quota = quota.parse().expect(quota);
        let rule = strategy.bind(&quota, &crate::strategy::Terms::default());
        Self::new("p", rule.expect("a rule"), ())
    }
}

impl fmt::Debug for LimitHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LimitHandle")
            .field("policy", &self.policy())
            .field("rule", &self.rule())
            .finish_non_exhaustive()
    }
}
