//! What is ruled before any policy is asked.

use std::net::IpAddr;

use http::request::Parts;

use super::judge::{Own, asks};
use crate::{
    access::{AddressList, Asker, Listed, Request},
    decision::DecisionKind,
    error::CallError,
    key::Key,
    limiter::{Bound, Desk, Keys},
    policy::skip::is_preflight,
    store::Op,
};

/// A check without HTTP.
struct Named<'a> {
    op: Op,
    keys: &'a Keys,
    own: Option<&'a Own>,
}

impl Asker for Named<'_> {
    fn address(&self, list: &AddressList) -> Option<IpAddr> {
        let own = self.own?;
        let of_parts = || list.address(own.parts.as_deref()?);
        own.address.or_else(of_parts)
    }

    fn key(&self, policy: &str) -> Option<Key> {
        self.keys.of(policy).copied()
    }

    fn needs_address(&self) -> bool {
        let says = |own: &Own| own.address.is_some() || own.parts.is_some();
        self.op != Op::Peek || self.own.is_some_and(says)
    }

    fn address_hint(&self) -> &'static str {
        "a check by hand has no request to find it in; pass the client's address by `.address(..)`"
    }
}

impl Desk {
    /// What lists and conditions say of a request; `None` if it is to be judged.
    pub(crate) fn rule_request(&self, parts: &Parts) -> Option<DecisionKind> {
        let key = |name: &str| {
            let mut policies = self.policies.iter().map(|bound| &bound.policy);
            let policy = policies.find(|policy| policy.name() == name)?;
            policy.extractor().key(parts)
        };
        let listed = self.listed(&Request { parts, key });
        listed.or_else(|| self.skips_request(parts).then_some(DecisionKind::Admitted))
    }

    #[inline]
    pub(crate) fn skips_request(&self, parts: &Parts) -> bool {
        let free = !self.counts_preflights && is_preflight(parts);
        free || self.skips.skip(parts)
    }

    /// What lists and conditions say of a call by hand; `None` if it is to be judged.
    pub(crate) fn rule_keys(&self, op: Op, keys: &Keys, own: Option<&Own>) -> Option<DecisionKind> {
        if !matches!(op, Op::Acquire(_) | Op::Peek) {
            return None;
        }
        let listed = self.listed(&Named { op, keys, own });
        listed.or_else(|| {
            let parts = own.filter(|own| !own.any_request)?.parts.as_deref()?;
            self.skips_request(parts).then_some(DecisionKind::Admitted)
        })
    }

    /// Why a call by hand can't be carried out, if so: it names a policy that is not there, or lacks a request that a policy
    /// takes settings from.
    #[inline]
    pub(crate) fn find_misuse(
        &self,
        op: Op,
        keys: &Keys,
        own: Option<&Own>,
    ) -> Option<DecisionKind> {
        if keys.all().is_some() && own.is_none() && !self.reads_parts {
            return None;
        }
        let kind = self.find_unknown(keys, own);
        let kind = kind.or_else(|| self.find_lacking(op, keys, own))?;
        self.misuse.then(|suppressed| match &kind {
            DecisionKind::UnknownPolicy(error) => {
                tracing::error!(%error, suppressed, "a call names an unknown policy");
            }
            DecisionKind::PartsRequired { policy } => {
                let error = CallError::PartsRequired {
                    policy: policy.clone(),
                };
                tracing::error!(%error, suppressed, "a call lacks the request that its policy reads");
            }
            _ => {}
        });
        Some(kind)
    }

    /// A name in a call that no policy has: what is said for it would silently not be heard.
    fn find_unknown(&self, keys: &Keys, own: Option<&Own>) -> Option<DecisionKind> {
        let costs = own.into_iter().flat_map(|own| &own.costs);
        let quotas = own.into_iter().flat_map(|own| &own.quotas);
        let settings = costs.map(|(name, _)| &**name);
        let settings = settings.chain(quotas.map(|(name, _)| &**name));
        let mut names = keys.names().chain(settings);
        names.find_map(|name| self.find(name).err().map(DecisionKind::UnknownPolicy))
    }

    /// A policy that applies and takes from requests what the call doesn't say.
    fn find_lacking(&self, op: Op, keys: &Keys, own: Option<&Own>) -> Option<DecisionKind> {
        let has_parts = own.is_some_and(|own| own.parts.is_some());
        if has_parts || matches!(op, Op::Reset) {
            return None;
        }
        let asks = asks(op, own);
        let lacks = |bound: &&Bound| {
            let policy = &bound.policy;
            let name = policy.name();
            let is_named = self.is_named(bound, keys);
            if self.key_of(bound, keys).is_none() || bound.is_ban() && !asks && !is_named {
                return false;
            }
            let quota =
                policy.has_quota_of_request() && own.and_then(|own| own.quota(name)).is_none();
            let cost = asks
                && policy.has_cost_of_request()
                && !bound.is_ban()
                && self.cost_in_call(bound, own).is_none();
            let conditions = asks && policy.has_skips() && !is_named;
            quota || cost || conditions
        };
        let policy = self.policies.iter().find(lacks)?.policy.shared_name();
        Some(DecisionKind::PartsRequired { policy })
    }

    /// The key that a call gives a policy: a shadow of another goes by the other's. One key for all policies is not that of a
    /// policy whose requests all have the same key.
    #[inline]
    pub(crate) fn key_of<'a>(&self, bound: &'a Bound, keys: &'a Keys) -> Option<&'a Key> {
        if keys.all().is_some() && bound.fixed_key.is_some() {
            return bound.fixed_key.as_ref();
        }
        let own = keys.of(bound.policy.name());
        own.or_else(|| self.key_of_live(bound, keys))
    }

    fn listed(&self, asker: &impl Asker) -> Option<DecisionKind> {
        Some(match self.lists.as_ref()?.find(asker)? {
            Listed::Denied => DecisionKind::DenyListed,
            Listed::Allowed => DecisionKind::Admitted,
        })
    }
}
