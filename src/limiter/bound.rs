//! A limiter's policies by number, and what each finds of a request.

use http::request::Parts;

use super::{Bound, Inner};
use crate::{
    decision::{Counted, quota_override::Tier},
    key::Key,
    quota::Quota,
    store::{CounterMode, CounterOp, LimitHandle, Store, Units},
};

impl Bound {
    /// The key of a request.
    #[inline]
    pub(super) fn find_key(&self, parts: &Parts) -> Option<Key> {
        self.missing_keys.find_key(&self.policy, parts)
    }

    /// The key that requests without one share, if they do.
    #[cold]
    pub(super) fn missing_key(&self) -> Option<Key> {
        self.missing_keys.missing_key(&self.policy)
    }

    /// The tier of a quota other than the policy's own; `None` if it can't be counted.
    pub(super) fn tier(&self, store: &dyn Store, quota: Quota) -> Option<Tier> {
        let policy = &self.policy;
        let tiers = &self.tiers;
        tiers.tier(policy, quota, || tiers.open(policy, store, quota))
    }
}

impl Inner {
    /// The store answers: charges there some of what was charged in process. Each charge is sent once, so it is charged once
    /// or not at all.
    #[inline]
    pub(super) fn write_back(&self) {
        if let Some(shares) = &self.shares {
            shares.write_back(&*self.store);
        }
    }

    /// The line of what was charged on arrival.
    #[inline]
    pub(super) fn line<'a>(&'a self, counted: &'a Counted) -> CounterOp<'a> {
        let receipt = counted.receipts.first();
        CounterOp {
            limit: self.limit(counted),
            key: counted.key,
            units: Units::new(receipt.remaining),
            receipt,
            caller: counted.by.as_deref().copied().unwrap_or(counted.key),
            mode: CounterMode::Charge,
        }
    }

    #[inline]
    pub(super) fn bound(&self, policy: u32) -> &Bound {
        &self.policies[policy as usize]
    }

    /// The limit of a policy, or of a request's own quota under it.
    #[inline]
    pub(super) fn limit<'a>(&'a self, counted: &'a Counted) -> &'a LimitHandle {
        match &counted.tier {
            Some(tier) => &tier.limit,
            None => &self.bound(counted.policy).limit,
        }
    }
}
