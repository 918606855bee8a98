//! The settings of one call.

use std::{net::IpAddr, sync::Arc};

use http::request::Parts;

use crate::{decision::DecisionKind, key::Key, quota::Quota};

/// The settings of one call, which override those of the policies.
#[derive(Clone, Debug, Default)]
pub(crate) struct CheckOverrides {
    pub(crate) cost: Option<u64>,
    /// Costs by policy.
    pub(crate) costs: Vec<(String, u64)>,
    /// Quotas by policy.
    pub(crate) quotas: Vec<(String, Quota)>,
    /// The callers that policies found in the request.
    pub(crate) callers: Vec<(String, Key)>,
    /// The client's address, for access lists.
    pub(crate) address: Option<IpAddr>,
    /// The request that the call is about.
    pub(crate) parts: Option<Arc<Parts>>,
    /// Whether a rejection is followed by another attempt, so that bans and shadows don't count it yet.
    pub(crate) will_retry: bool,
    /// Whether it may wait for a store that failed.
    pub(crate) may_wait: bool,
    /// Whether it is part of a request's check whatever its operation is, so that a store failure is handled as configured.
    pub(crate) in_check: bool,
    /// What the request lacks that the call's keys were extracted from.
    pub(crate) missing: Option<DecisionKind>,
    /// Whether it applies to all policies, whatever their conditions say of the request.
    pub(crate) any_request: bool,
    /// Whether it is about a key alone: access lists, conditions and costs of requests don't apply.
    pub(crate) unconditional: bool,
}

impl CheckOverrides {
    /// The cost under a policy, by its name or by that of the live policy that it shadows.
    pub(crate) fn cost(&self, policy: &str, live: Option<&str>) -> Option<u64> {
        let named = value_of(&self.costs, policy);
        let named = named.or_else(|| value_of(&self.costs, live?));
        named.or(self.cost)
    }

    /// The quota under a policy.
    pub(crate) fn quota(&self, policy: &str) -> Option<Quota> {
        value_of(&self.quotas, policy)
    }

    /// The caller under a policy, found in the call's request.
    pub(crate) fn caller(&self, policy: &str) -> Option<Key> {
        value_of(&self.callers, policy)
    }
}

fn value_of<T: Copy>(values: &[(String, T)], policy: &str) -> Option<T> {
    let (_, value) = values.iter().find(|(name, _)| name == policy)?;
    Some(*value)
}
