//! Which policies apply to a request, and with which key, cost and quota: its entries.
//!
//! The quota of an entry is, in this order: what an operator has set for the key, what the call sets, what the policy finds in the
//! request, the policy's own.

use std::sync::Arc;

use super::{
    early::{EarlyDecision, decide_early, validate_names},
    entry::{Entries, Entry},
    keys::{CallEntry, Keys},
    policy_set::{AppliedOverride, BoundPolicy, PolicyRole, PolicySet},
    quota_limits::QuotaLimit,
    request::{CallSettings, KeySource, LimitRequest, Purpose, RequestHead},
};
use crate::{
    error::CallError,
    extract::{Extracted, MissingKey},
    key::Key,
    policy::skip::ConditionMatch,
    quota::Quota,
    store::overrides::Override,
};

/// Why a policy does not apply to a request.
pub(crate) enum Reason {
    /// The policy is charged by hand alone.
    ByHand,
    /// A skip condition of the policy holds, or none of its `only` conditions.
    Exempt(ConditionMatch),
    /// An operator has exempted the key.
    Override(Arc<Override>),
    /// The request has no key for the policy. `rejects` is whether it is rejected for that.
    NoKey { rejects: bool },
}

/// Finds the entries of a request. Returns the decision if it needs none. `on_not_applied` is called with each policy that does not apply, and
/// the reason; not with those that a call does not name.
#[inline(always)]
pub(crate) fn resolve<'a>(
    set: &'a PolicySet,
    request: &LimitRequest<'_>,
    entries: &mut Entries,
    on_not_applied: &mut impl FnMut(usize, Reason),
) -> Option<EarlyDecision<'a>> {
    if let Some(early) = decide_early(set, request) {
        return Some(early);
    }
    if let KeySource::Call(keys) = request.keys
        && let Some(call) = keys.entries()
    {
        for (index, entry) in set.sorted_entries(call) {
            let given = Some((entry.key, Some(entry)));
            if let Some(early) = add(set, request, index, given, entries, on_not_applied) {
                return Some(early);
            }
        }
    } else {
        for (index, bound) in set.policies.iter().enumerate() {
            let key = request.keys.given().and_then(|keys| bound.key_of(keys));
            if key.is_none() && matches!(request.keys, KeySource::Call(_)) {
                continue;
            }
            let given = key.map(|key| (*key, None));
            if let Some(early) = add(set, request, index, given, entries, on_not_applied) {
                return Some(early);
            }
        }
    }
    if set.has_permits && matches!(request.purpose, Purpose::Check(_)) {
        let mut policies = entries.iter().map(|entry| set.bound(entry.policy));
        let in_flight_limit = policies.find(|bound| bound.is_permit());
        return in_flight_limit.map(|bound| EarlyDecision::admit_required(set, bound));
    }
    None
}

/// Adds the entry of a policy, if it applies. `given` is the key that the call has, with the call's entry if it lists entries.
#[inline(always)]
fn add<'a>(
    set: &'a PolicySet,
    request: &LimitRequest<'_>,
    index: usize,
    given: Option<(Key, Option<&CallEntry>)>,
    entries: &mut Entries,
    on_not_applied: &mut impl FnMut(usize, Reason),
) -> Option<EarlyDecision<'a>> {
    let bound = &set.policies[index];
    let policy = &bound.policy;
    if policy.is_by_hand() && given.is_none() {
        on_not_applied(index, Reason::ByHand);
        return None;
    }
    if let Some(head) = request.head
        && let Some(matched) = policy.exempting(head.parts, &head.path)
    {
        on_not_applied(index, Reason::Exempt(matched));
        return None;
    }
    let key = match (given, request.head) {
        (Some((key, _)), _) => key,
        (None, None) => return None,
        (None, Some(head)) => match find_key(bound, head, request.purpose) {
            Extracted::Key(key) => key,
            found => {
                let rejects = bound.rejects_without_key(found);
                on_not_applied(index, Reason::NoKey { rejects });
                return rejects.then(|| EarlyDecision::missing_key(bound, head));
            }
        },
    };
    let entry = given.and_then(|(_, entry)| entry);
    // A ban counts a request as one, whatever the call asks, and of several entries only once.
    let (cost, further_cost) = if bound.is_ban() {
        (1, 0)
    } else {
        let cost = cost_in_call(bound, entry, request.settings);
        let cost = cost.unwrap_or_else(|| bound.cost_of(request.head));
        (cost, cost)
    };
    if entry.is_some() && add_to_last(entries, index, &key, further_cost) {
        return None;
    }
    let quota = match bound.override_of(&*set.store, &key) {
        Some(AppliedOverride::Exempt(known)) => {
            on_not_applied(index, Reason::Override(known));
            return None;
        }
        Some(AppliedOverride::Quota(limit)) => RequestQuota::Other(limit),
        None => {
            let quota = quota_in_call(bound, entry, request.settings)
                .or_else(|| policy.quota_in_request(request.head?.parts));
            quota.map_or(RequestQuota::Own, |quota| request_quota(set, bound, quota))
        }
    };
    let (quota, cost) = match quota {
        RequestQuota::Own => (None, cost),
        RequestQuota::Other(limit) => (Some(limit), cost),
        // The cost is more than the policy's own quota ever admits.
        RequestQuota::AdmitsNothing => (None, u64::MAX),
    };
    push(entries, request, bound, index, key, cost, quota);
    None
}

#[inline(always)]
fn push(
    entries: &mut Entries,
    request: &LimitRequest<'_>,
    bound: &BoundPolicy,
    index: usize,
    key: Key,
    cost: u64,
    quota: Option<QuotaLimit>,
) {
    let caller = bound.caller_key(|| {
        let given = request.keys.given().and_then(Keys::given_caller);
        given.or_else(|| bound.extract_caller(request.head?))
    });
    let policy = (index as u32, bound.role);
    entries.push(Entry::new(policy, key, cost, caller, quota));
}

/// What an adjustment does to the counts of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Adjusting {
    /// Charges so many units, unless the call has a cost for the policy.
    Charge(u64),
    /// Removes the counts.
    Reset,
    /// Reads the counts: nothing is adjusted.
    Nothing,
}

/// Finds the entries of an adjustment: of known policies and keys, all of them or an error. Access lists, conditions and exemptions
/// by operators don't apply.
pub(crate) fn resolve_known(
    set: &PolicySet,
    keys: &Keys,
    settings: Option<&CallSettings>,
    adjusting: Adjusting,
) -> Result<Entries, CallError> {
    let parts = settings.and_then(|settings| settings.parts.as_deref());
    let head = parts.map(RequestHead::new);
    let request = LimitRequest {
        purpose: Purpose::Peek,
        keys: KeySource::Call(keys),
        head: head.as_ref(),
        settings,
    };
    validate_names(set, &request)?;
    let mut entries = Entries::new();
    if let Some(call) = keys.entries() {
        for (index, entry) in set.sorted_entries(call) {
            add_known(
                set,
                &request,
                adjusting,
                index,
                (entry.key, Some(entry)),
                &mut entries,
            )?;
        }
        return Ok(entries);
    }
    // A reset by one key leaves out policies that count all requests together, unless all policies do.
    let resets_caller = adjusting == Adjusting::Reset
        && keys.all().is_some()
        && set.policies.iter().any(|bound| bound.fixed_key.is_none());
    for (index, bound) in set.policies.iter().enumerate() {
        let Some(key) = bound.key_of(keys) else {
            continue;
        };
        // A charge by one key counts as a rejection only under a ban that it names.
        let leaves_out_ban = bound.is_ban()
            && matches!(adjusting, Adjusting::Charge(_))
            && !keys.names_policy(bound.policy.name());
        let leaves_out_fixed =
            resets_caller && bound.fixed_key.is_some() && keys.all() != Some(key);
        if !leaves_out_ban && !leaves_out_fixed {
            add_known(set, &request, adjusting, index, (*key, None), &mut entries)?;
        }
    }
    Ok(entries)
}

fn add_known(
    set: &PolicySet,
    request: &LimitRequest<'_>,
    adjusting: Adjusting,
    index: usize,
    (key, entry): (Key, Option<&CallEntry>),
    entries: &mut Entries,
) -> Result<(), CallError> {
    let bound = &set.policies[index];
    let cost = cost_in_call(bound, entry, request.settings);
    let cost = match adjusting {
        Adjusting::Charge(units) => cost.unwrap_or(units),
        Adjusting::Reset | Adjusting::Nothing if bound.is_ban() => 1,
        Adjusting::Reset | Adjusting::Nothing => cost.unwrap_or(bound.policy.default_cost()),
    };
    if entry.is_some() && add_to_last(entries, index, &key, cost) {
        return Ok(());
    }
    let quota = match bound.override_of(&*set.store, &key) {
        Some(AppliedOverride::Quota(limit)) => Some(limit),
        // An exempt key is counted by the policy's own quota.
        Some(AppliedOverride::Exempt(_)) | None => {
            let quota = quota_in_call(bound, entry, request.settings)
                .or_else(|| bound.policy.quota_in_request(request.head?.parts));
            if quota.is_none()
                && request.head.is_none()
                && bound.policy.has_quota_of_request()
                && adjusting != Adjusting::Reset
            {
                return Err(CallError::PartsRequired {
                    policy: bound.policy.shared_name(),
                    lacks: "its quota from a request: call `parts` or `quota_for`",
                });
            }
            match quota.map(|quota| request_quota(set, bound, quota)) {
                Some(RequestQuota::Other(limit)) => Some(limit),
                Some(RequestQuota::Own | RequestQuota::AdmitsNothing) | None => None,
            }
        }
    };
    push(entries, request, bound, index, key, cost, quota);
    Ok(())
}

/// The key in a request. A peek is not counted among the requests without a key.
#[inline(always)]
fn find_key(bound: &BoundPolicy, head: &RequestHead<'_>, purpose: Purpose) -> Extracted {
    let found = bound.extract(head);
    if purpose == Purpose::Peek {
        let is_shared = || bound.policy.on_missing_key() == MissingKey::Shared;
        return found.or_else(|| is_shared().then(Key::missing).into());
    }
    let missing_keys = &bound.state.missing_keys;
    missing_keys.record(found);
    found.or_else(|| missing_keys.missing_key(&bound.policy).into())
}

/// Adds the cost to the last entry, if it is of the same policy and key; returns whether it is.
fn add_to_last(entries: &mut Entries, index: usize, key: &Key, cost: u64) -> bool {
    match entries.last_mut() {
        Some(last) if (last.policy, &last.key) == (index as u32, key) => {
            last.cost = last.cost.saturating_add(cost);
            true
        }
        _ => false,
    }
}

#[inline]
fn cost_in_call(
    bound: &BoundPolicy,
    entry: Option<&CallEntry>,
    settings: Option<&CallSettings>,
) -> Option<u64> {
    let of_entry = entry.and_then(|entry| entry.cost);
    of_entry.or_else(|| settings?.cost(bound.policy.name()))
}

#[inline]
fn quota_in_call(
    bound: &BoundPolicy,
    entry: Option<&CallEntry>,
    settings: Option<&CallSettings>,
) -> Option<Quota> {
    let of_entry = entry.and_then(|entry| entry.quota);
    of_entry.or_else(|| settings?.quota(bound.policy.name()))
}

/// The quota of a request under a policy.
enum RequestQuota {
    /// The policy's own.
    Own,
    Other(QuotaLimit),
    /// A quota of 0, or one that the strategy can't count.
    AdmitsNothing,
}

#[cold]
fn request_quota(set: &PolicySet, bound: &BoundPolicy, quota: Quota) -> RequestQuota {
    if quota == bound.policy.quota() {
        return RequestQuota::Own;
    }
    match bound.other_quota(&*set.store, quota, "nothing is admitted") {
        Some(limit) => RequestQuota::Other(limit),
        // A ban has no other quotas: it counts rejections.
        None if bound.role == PolicyRole::Ban => RequestQuota::Own,
        None => RequestQuota::AdmitsNothing,
    }
}
