//! What is decided before any policy is evaluated: access lists, conditions of all policies, and calls that can't be carried out.

use std::net::IpAddr;

use super::{
    bound_policy::BoundPolicy,
    check::CheckSettings,
    core::LimiterRef,
    decide::EarlyDecision,
    decision::DecisionKind,
    explain::EvaluationTrace,
    keys::{CallEntry, Keys, MAX_ENTRIES},
    mode::Mode,
    resolve::RequestHead,
};
use crate::{
    access::{AddressList, HttpSubject, ListMatch, ListSubject, Lists},
    extract::Extracted,
    policy::skip::{Exemption, is_preflight},
    store::Op,
};

/// A call with its own keys, for the access lists.
struct KeyedCall<'a> {
    op: Op,
    keys: &'a Keys,
    /// The entry whose key is looked for, if the call has entries.
    entry: Option<&'a CallEntry>,
    settings: Option<&'a CheckSettings>,
}

impl ListSubject for KeyedCall<'_> {
    fn address(&self, list: &AddressList) -> Option<IpAddr> {
        let settings = self.settings?;
        let of_parts = || list.address(settings.parts.as_deref()?);
        settings.address.or_else(of_parts)
    }

    fn key(&self, policy: &str) -> Extracted {
        let key = match self.entry {
            Some(entry) => Some(entry.key).filter(|_| &*entry.policy == policy),
            None => self.keys.of(policy).copied(),
        };
        key.into()
    }

    fn needs_address(&self) -> bool {
        let has_address =
            |settings: &CheckSettings| settings.address.is_some() || settings.parts.is_some();
        self.op != Op::Peek || self.settings.is_some_and(has_address)
    }

    fn address_hint(&self) -> &'static str {
        "a check by hand has no request to find it in; pass the client's address by `.address(..)`"
    }
}

impl LimiterRef {
    /// What access lists and conditions decide for a request; `None` if the policies do.
    pub(crate) fn access_check_request(
        &self,
        head: &RequestHead<'_>,
        trace: &mut impl EvaluationTrace,
    ) -> Option<EarlyDecision> {
        let parts = head.parts;
        let bound = |name: &str| {
            let mut policies = self.policies.iter();
            policies.find(|bound| bound.policy.name() == name)
        };
        let given = trace.given_keys();
        let key = |name: &str| match given.and_then(|keys| keys.of(name)) {
            Some(key) => Extracted::Key(*key),
            None => bound(name).map_or(Extracted::Absent, |bound| bound.extract(head)),
        };
        let listed = self.find_listed(&HttpSubject { parts, key });
        if let Some((lists, found)) = listed {
            trace.on_list(|| lists.describe(found));
            let ambiguous = || match found {
                ListMatch::Ambiguous(policy) => Some(bound(policy)?.missing_key_kind(parts).into()),
                _ => None,
            };
            return list_decision(found).or_else(ambiguous);
        }
        if !self.skips_request(head) {
            return None;
        }
        trace.on_exempt(|| self.describe_exemption(head));
        Some(DecisionKind::Admitted.into())
    }

    /// Describes the condition by which all policies skip a request.
    fn describe_exemption(&self, head: &RequestHead<'_>) -> Exemption {
        let parts = head.parts;
        let matched = self.skip_rules().exempting(parts, &head.path);
        let free = !self.counts_preflights && is_preflight(parts);
        match matched.filter(|_| !free) {
            Some(matched) => self.skip_rules().describe(matched, parts),
            None => Exemption::Preflight,
        }
    }

    #[inline]
    pub(crate) fn skips_request(&self, head: &RequestHead<'_>) -> bool {
        let free = !self.counts_preflights && is_preflight(head.parts);
        free || self
            .skip_rules()
            .exempting(head.parts, &head.path)
            .is_some()
    }

    /// What access lists and conditions decide for a call with its own keys; `None` if the policies do.
    fn access_check_call(
        &self,
        (op, mode): (Op, Mode),
        keys: &Keys,
        settings: Option<&CheckSettings>,
        head: Option<&RequestHead<'_>>,
    ) -> Option<EarlyDecision> {
        let listed = mode.lists.then(|| self.list_check_call(op, keys, settings));
        listed.flatten().or_else(|| {
            let skips = mode.conditions && self.skips_request(head?);
            skips.then(|| DecisionKind::Admitted.into())
        })
    }

    /// What access lists decide for a call with its own keys.
    pub(crate) fn list_check_call(
        &self,
        op: Op,
        keys: &Keys,
        settings: Option<&CheckSettings>,
    ) -> Option<EarlyDecision> {
        self.lists.as_ref()?;
        let decide = |entry| {
            let (_, found) = self.find_listed(&KeyedCall {
                op,
                keys,
                entry,
                settings,
            })?;
            list_decision(found)
        };
        let Some(entries) = keys.entries().filter(|entries| !entries.is_empty()) else {
            return decide(None);
        };
        // A key that is denied rejects them all.
        let decisions = entries.iter().filter_map(|entry| decide(Some(entry)));
        decisions.max_by_key(|early| matches!(early.kind, DecisionKind::DenyListed))
    }

    /// What decides a call before its policies: misuse, access lists, or conditions of all policies.
    #[inline]
    pub(super) fn decide_early(
        &self,
        (op, mode): (Op, Mode),
        keys: &Keys,
        settings: Option<&CheckSettings>,
        head: Option<&RequestHead<'_>>,
    ) -> Option<EarlyDecision> {
        let one_key = keys.all().is_some() && settings.is_none();
        if one_key && !self.reads_parts && self.lists.is_none() {
            return None;
        }
        let misuse = self.find_misuse((op, mode), keys, settings);
        let early = misuse.map(EarlyDecision::from);
        early.or_else(|| self.access_check_call((op, mode), keys, settings, head))
    }

    /// Why a call can't be carried out, if so: it names an unknown policy, or one twice, or lacks the request that a policy takes
    /// settings from.
    #[inline]
    fn find_misuse(
        &self,
        (op, mode): (Op, Mode),
        keys: &Keys,
        settings: Option<&CheckSettings>,
    ) -> Option<DecisionKind> {
        if keys.all().is_some() && settings.is_none() && !self.reads_parts {
            return None;
        }
        let kind = self.find_unknown(keys, settings);
        let too_many = keys.entries().map(<[CallEntry]>::len);
        let too_many = too_many.filter(|entries| *entries > MAX_ENTRIES);
        let kind = kind.or_else(|| Some(DecisionKind::TooManyEntries { entries: too_many? }));
        let kind = kind.or_else(|| {
            let policy = match keys.entries() {
                Some(entries) => self.ambiguous_quota(entries)?.policy.clone(),
                None => keys.duplicate()?.into(),
            };
            Some(DecisionKind::DuplicatePolicy { policy })
        });
        let kind = kind.or_else(|| self.find_lacking((op, mode), keys, settings))?;
        self.misuse_log.log_with(|suppressed| {
            if let Some(error) = kind.call_error() {
                tracing::error!(%error, suppressed, "a call is invalid");
            }
        });
        Some(kind)
    }

    /// A name in a call that no policy has. Its key or setting would silently have no effect.
    fn find_unknown(&self, keys: &Keys, settings: Option<&CheckSettings>) -> Option<DecisionKind> {
        let costs = settings.into_iter().flat_map(|settings| &settings.costs);
        let quotas = settings.into_iter().flat_map(|settings| &settings.quotas);
        let settings = costs.map(|(name, _)| &**name);
        let settings = settings.chain(quotas.map(|(name, _)| &**name));
        let mut names = keys.names().chain(settings);
        let unknown = names.find_map(|name| self.find(name).err());
        let unknown = unknown.or_else(|| {
            let mut entries = keys.entries()?.iter();
            entries.find_map(|entry| self.index_of(entry).err())
        });
        unknown.map(DecisionKind::UnknownPolicy)
    }

    /// A policy that applies and takes settings from requests, which the call does not set.
    fn find_lacking(
        &self,
        (op, mode): (Op, Mode),
        keys: &Keys,
        settings: Option<&CheckSettings>,
    ) -> Option<DecisionKind> {
        let has_parts = settings.is_some_and(|settings| settings.parts.is_some());
        if !self.reads_parts || has_parts || matches!(op, Op::Reset) {
            return None;
        }
        let lacks = |bound: &BoundPolicy, is_named: bool, entry: Option<&CallEntry>| {
            let policy = &bound.policy;
            let quota = policy.has_quota_of_request()
                && self.quota_in_call(bound, entry, settings).is_none();
            let cost = mode.conditions
                && policy.has_cost_of_request()
                && !bound.is_ban()
                && self.cost_in_call(bound, entry, settings).is_none();
            let conditions = mode.conditions && policy.has_skips() && !is_named;
            let lacks = lacking_settings(quota, cost, conditions)?;
            let policy = policy.shared_name();
            Some(DecisionKind::PartsRequired { policy, lacks })
        };
        if let Some(entries) = keys.entries() {
            let mut entries = self.entries_of_policies(entries).into_iter();
            return entries
                .find_map(|(index, entry)| lacks(&self.policies[index], true, Some(entry)));
        }
        self.policies.iter().find_map(|bound| {
            let is_named = keys.names_policy(bound.policy.name());
            if self.key_of(bound, keys).is_none() || bound.is_ban() && !mode.conditions && !is_named
            {
                return None;
            }
            lacks(bound, is_named, None)
        })
    }

    /// The list that a request is on, and all lists.
    fn find_listed(&self, subject: &impl ListSubject) -> Option<(&Lists, ListMatch<'_>)> {
        let lists = self.lists.as_deref()?;
        Some((lists, lists.find(subject)?))
    }
}

/// What a call lacks of the settings that a policy takes from requests, and what supplies it.
fn lacking_settings(quota: bool, cost: bool, conditions: bool) -> Option<&'static str> {
    Some(match (quota, cost, conditions) {
        (false, false, false) => return None,
        (true, false, false) => "its quota from a request: call `parts` or `quota_for`",
        (false, true, false) => "its cost from a request: call `parts`, `cost` or `cost_for`",
        (false, false, true) => {
            "its conditions from a request: call `parts`, or name the policy with its key"
        }
        (true, true, false) => {
            "its quota and cost from a request: call `parts`, or both `quota_for` and `cost_for`"
        }
        (true, false, true) => {
            "its quota and conditions from a request: call `parts`, or name the policy with its key and call `quota_for`"
        }
        (false, true, true) => {
            "its cost and conditions from a request: call `parts`, or name the policy with its key and call `cost_for`"
        }
        (true, true, true) => {
            "its quota, cost and conditions from a request: call `parts`, or name the policy with its key and call \
             `quota_for` and `cost_for`"
        }
    })
}

/// What a list decides; `None` if it can't tell whether the request is on it.
fn list_decision(found: ListMatch<'_>) -> Option<EarlyDecision> {
    match found {
        ListMatch::Denied(_) => Some(DecisionKind::DenyListed.into()),
        ListMatch::Allowed(_) => Some(EarlyDecision {
            kind: DecisionKind::Admitted,
            allow_listed: true,
        }),
        ListMatch::Ambiguous(_) => None,
    }
}
