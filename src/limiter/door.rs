//! What is ruled before any policy is asked.

use std::net::IpAddr;

use http::request::Parts;

use super::{Desk, Keys};
use crate::{
    decision::DecisionKind,
    key::Key,
    lists::{AddressList, Asker, Listed, Request},
    skip::is_preflight,
};

/// A check without HTTP.
struct Named<'a> {
    keys: &'a Keys,
    address: Option<IpAddr>,
}

impl Asker for Named<'_> {
    fn address(&self, _list: &AddressList) -> Option<IpAddr> {
        self.address
    }

    fn key(&self, policy: &str) -> Option<Key> {
        self.keys.of(policy).copied()
    }

    fn address_hint(&self) -> &'static str {
        "a check by hand has no request to find it in; pass the client's address by `.address(..)`"
    }
}

impl Desk {
    /// What lists and conditions say of a request; `None` if it is to be judged.
    pub(super) fn rule_request(&self, parts: &Parts) -> Option<DecisionKind> {
        let key = |name: &str| {
            let mut policies = self.policies.iter().map(|bound| &bound.policy);
            let policy = policies.find(|policy| policy.name() == name)?;
            policy.extractor().key(parts)
        };
        let listed = self.listed(&Request { parts, key });
        listed.or_else(|| {
            let free = !self.counts_preflights && is_preflight(parts);
            (free || self.skips.skip(parts)).then_some(DecisionKind::Admitted)
        })
    }

    /// What lists say of keys that were found elsewhere; `None` if they are to be judged.
    pub(super) fn rule_keys(&self, keys: &Keys, address: Option<IpAddr>) -> Option<DecisionKind> {
        self.listed(&Named { keys, address })
    }

    fn listed(&self, asker: &impl Asker) -> Option<DecisionKind> {
        Some(match self.lists.as_ref()?.find(asker)? {
            Listed::Denied => DecisionKind::DenyListed,
            Listed::Allowed => DecisionKind::Admitted,
        })
    }
}
