//! Decisions before any policy applies: invalid calls, access lists and conditions.

use std::net::IpAddr;

use super::{
    decision::DecisionKind,
    keys::{CallEntry, MAX_ENTRIES},
    policy_set::{BoundPolicy, PolicySet},
    request::{CallSettings, KeySource, LimitRequest, Purpose, RequestHead},
};
use crate::{
    access::{AddressList, ListMatch, ListSubject},
    error::CallError,
    extract::{Extracted, NO_PEER},
    policy::skip::is_preflight,
};

/// A decision that needs no store, and why.
pub(crate) struct EarlyDecision<'a> {
    pub(crate) kind: DecisionKind,
    pub(crate) cause: EarlyCause<'a>,
}

/// Why no store is needed.
#[derive(Clone, Copy)]
pub(crate) enum EarlyCause<'a> {
    /// The call is invalid.
    Invalid,
    /// The request is on an access list.
    List(ListMatch<'a>),
    /// A condition of the limiter holds, or it is a preflight.
    Condition,
    /// It has no key for a policy that requires one.
    MissingKey,
}

impl EarlyDecision<'_> {
    /// An invalid call.
    fn invalid(error: CallError) -> Self {
        Self {
            kind: DecisionKind::Invalid(error),
            cause: EarlyCause::Invalid,
        }
    }

    /// A check, which holds no permit, under an in-flight limit.
    #[cold]
    pub(crate) fn admit_required(set: &PolicySet, bound: &BoundPolicy) -> Self {
        let policy = bound.policy.shared_name();
        let error = CallError::AdmitRequired { policy };
        log_misuse(set, &error);
        Self::invalid(error)
    }

    /// A request without the policy's key.
    #[cold]
    pub(crate) fn missing_key(bound: &BoundPolicy, head: &RequestHead<'_>) -> Self {
        Self {
            kind: missing_key_kind(bound, head),
            cause: EarlyCause::MissingKey,
        }
    }

    /// The kind of the decision, and whether an allow list made it.
    #[cold]
    pub(crate) fn into_kind(self) -> (DecisionKind, bool) {
        let is_allowed = matches!(self.cause, EarlyCause::List(ListMatch::Allowed(_)));
        (self.kind, is_allowed)
    }
}

fn missing_key_kind(bound: &BoundPolicy, head: &RequestHead<'_>) -> DecisionKind {
    DecisionKind::MissingKey {
        policy: bound.policy.shared_name(),
        missing: bound.missing_key_name(head.parts),
    }
}

/// The decision that needs no policy, if there is one. Lists come before conditions.
#[inline]
pub(crate) fn decide_early<'a>(
    set: &'a PolicySet,
    request: &LimitRequest<'_>,
) -> Option<EarlyDecision<'a>> {
    if let KeySource::Call(keys) = request.keys {
        let is_plain = keys.all().is_some() && request.settings.is_none();
        if is_plain && !set.reads_parts && set.lists.is_none() {
            return None;
        }
        if let Err(error) = validate(set, request) {
            return Some(EarlyDecision::invalid(error));
        }
    }
    if set.lists.is_some()
        && let Some(listed) = decide_by_lists(set, request)
    {
        return Some(listed);
    }
    let head = request.head?;
    skips_request(set, head).then_some(EarlyDecision {
        kind: DecisionKind::Admitted,
        cause: EarlyCause::Condition,
    })
}

/// Whether no policy applies to the request.
#[inline]
fn skips_request(set: &PolicySet, head: &RequestHead<'_>) -> bool {
    is_free_preflight(set, head) || set.skip_rules().exempting(head.parts, &head.path).is_some()
}

/// Whether it is a CORS preflight, and these are not counted.
#[inline]
pub(crate) fn is_free_preflight(set: &PolicySet, head: &RequestHead<'_>) -> bool {
    !set.counts_preflights && is_preflight(head.parts)
}

/// What access lists decide. Of several entries, one that is denied rejects them all.
fn decide_by_lists<'a>(
    set: &'a PolicySet,
    request: &LimitRequest<'_>,
) -> Option<EarlyDecision<'a>> {
    let lists = set.lists.as_deref()?;
    let decide = |entry| {
        let subject = Subject {
            set,
            request,
            entry,
        };
        let found = lists.find(&subject)?;
        let kind = match found {
            ListMatch::Denied(_) => DecisionKind::DenyListed,
            ListMatch::Allowed(_) => DecisionKind::Admitted,
            ListMatch::Ambiguous(policy) => {
                missing_key_kind(set.named(policy).ok()?, request.head?)
            }
        };
        let cause = EarlyCause::List(found);
        Some(EarlyDecision { kind, cause })
    };
    let entries = match request.keys {
        KeySource::Call(keys) => keys.entries().unwrap_or_default(),
        KeySource::Head | KeySource::CallOrHead(_) => &[],
    };
    if entries.is_empty() {
        return decide(None);
    }
    let decisions = entries.iter().filter_map(|entry| decide(Some(entry)));
    decisions.max_by_key(|early| matches!(early.kind, DecisionKind::DenyListed))
}

/// A request as access lists see it.
struct Subject<'a, 'r> {
    set: &'a PolicySet,
    request: &'a LimitRequest<'r>,
    /// The one of the call's entries that is looked up.
    entry: Option<&'a CallEntry>,
}

impl ListSubject for Subject<'_, '_> {
    fn address(&self, list: &AddressList) -> Option<IpAddr> {
        let given = self.request.settings.and_then(|settings| settings.address);
        given.or_else(|| list.address(self.request.head?.parts))
    }

    fn key(&self, policy: &str) -> Extracted {
        if let Some(entry) = self.entry {
            let is_named = &*entry.policy == policy;
            return is_named.then_some(entry.key).into();
        }
        let given = self.request.keys.given();
        if let Some(key) = given.and_then(|keys| keys.of(policy)) {
            return Extracted::Key(*key);
        }
        match (self.request.keys, self.request.head) {
            (KeySource::Head | KeySource::CallOrHead(_), Some(head)) => self
                .set
                .named(policy)
                .map_or(Extracted::Absent, |bound| bound.extract(head)),
            _ => Extracted::Absent,
        }
    }

    fn needs_address(&self) -> bool {
        let has_address = self
            .request
            .settings
            .is_some_and(|settings| settings.address.is_some());
        self.request.purpose != Purpose::Peek || has_address || self.request.head.is_some()
    }

    fn address_hint(&self) -> &'static str {
        match self.request.keys {
            KeySource::Head | KeySource::CallOrHead(_) => NO_PEER,
            KeySource::Call(_) => {
                "a check by hand has no request to find it in; pass the client's address by `.address(..)`"
            }
        }
    }
}

/// Checks a call by hand: mistakes of the application, which are logged.
fn validate(set: &PolicySet, request: &LimitRequest<'_>) -> Result<(), CallError> {
    let checked = validate_names(set, request).and_then(|()| require_settings(set, request));
    checked.inspect_err(|error| log_misuse(set, error))
}

/// Logs an invalid call.
#[cold]
fn log_misuse(set: &PolicySet, error: &CallError) {
    set.misuse_log
        .log_with(|suppressed| tracing::error!(%error, suppressed, "a call is invalid"));
}

/// Whether the policies that a call names exist, each once, with one quota for each key.
pub(crate) fn validate_names(set: &PolicySet, request: &LimitRequest<'_>) -> Result<(), CallError> {
    let Some(keys) = request.keys.given() else {
        return Ok(());
    };
    let settings = request.settings.into_iter();
    let names = settings.flat_map(CallSettings::policies);
    for name in keys.names().chain(names) {
        set.find(name)?;
    }
    if let Some(policy) = keys.duplicate() {
        let policy = policy.into();
        return Err(CallError::DuplicatePolicy { policy });
    }
    let Some(entries) = keys.entries() else {
        return Ok(());
    };
    for entry in entries {
        set.index_of(entry)?;
    }
    if entries.len() > MAX_ENTRIES {
        let entries = entries.len();
        return Err(CallError::TooManyEntries { entries });
    }
    if entries.iter().all(|entry| entry.quota.is_none()) {
        return Ok(());
    }
    let sorted = set.sorted_entries(entries);
    let is_ambiguous = |pair: &&[(usize, &CallEntry)]| {
        let [(index, entry), (next_index, next)] = [pair[0], pair[1]];
        (index, entry.key) == (next_index, next.key) && entry.quota != next.quota
    };
    match sorted.windows(2).find(is_ambiguous) {
        None => Ok(()),
        Some(pair) => Err(CallError::DuplicatePolicy {
            policy: pair[1].1.policy.clone(),
        }),
    }
}

/// Whether a call without a request has all that its policies take from requests.
fn require_settings(set: &PolicySet, request: &LimitRequest<'_>) -> Result<(), CallError> {
    let (Some(keys), None, true) = (request.keys.given(), request.head, set.reads_parts) else {
        return Ok(());
    };
    if let Some(entries) = keys.entries() {
        return set
            .sorted_entries(entries)
            .into_iter()
            .try_for_each(|(index, entry)| {
                let bound = &set.policies[index];
                require_settings_of(bound, Some(entry), request.settings, true)
            });
    }
    let mut applying = set
        .policies
        .iter()
        .filter(|bound| bound.key_of(keys).is_some());
    applying.try_for_each(|bound| {
        let is_named = keys.names_policy(bound.policy.name());
        require_settings_of(bound, None, request.settings, is_named)
    })
}

fn require_settings_of(
    bound: &BoundPolicy,
    entry: Option<&CallEntry>,
    settings: Option<&CallSettings>,
    is_named: bool,
) -> Result<(), CallError> {
    let policy = &bound.policy;
    let name = policy.name();
    let lacks_quota = policy.has_quota_of_request()
        && entry.and_then(|entry| entry.quota).is_none()
        && settings.and_then(|settings| settings.quota(name)).is_none();
    let lacks_cost = policy.has_cost_of_request()
        && !bound.is_ban()
        && entry.and_then(|entry| entry.cost).is_none()
        && settings.and_then(|settings| settings.cost(name)).is_none();
    let lacks_conditions = policy.has_skips() && !is_named;
    let lacks = if lacks_quota {
        "its quota from a request: call `parts` or `quota_for`"
    } else if lacks_cost {
        "its cost from a request: call `parts`, `cost` or `cost_for`"
    } else if lacks_conditions {
        "its conditions from a request: call `parts`, or name the policy with its key"
    } else {
        return Ok(());
    };
    Err(CallError::PartsRequired {
        policy: policy.shared_name(),
        lacks,
    })
}
