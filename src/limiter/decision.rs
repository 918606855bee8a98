//! The decision on a request, with one entry for each policy that applied.

use std::{
    fmt,
    sync::{Arc, OnceLock},
};

use http::HeaderValue;
use smallvec::SmallVec;

use super::{
    admission::Admission,
    core::{CachedBody, LimiterRef},
    entry::{PolicyEntry, PolicyRole, longest_wait},
    permits::DecisionPermit,
    policy_decision::PolicyDecision,
    rejected::Rejected,
};
use crate::{
    error::{CallError, StoreError, UnknownPolicy},
    observe::DecisionOutcome,
    store::DecisionSource,
    strategy::RetryAfter,
};

/// The result for a request: whether it was admitted, and its status under each policy that applied.
///
/// It is data: its charge stays. [`Limiter::admit`](crate::Limiter::admit) returns an [`Admission`](crate::Admission) instead, which
/// holds the permits of [in-flight limits](crate::Concurrency), and by which a charge is settled or refunded.
///
/// A decision must be used:
///
/// ```compile_fail
/// #![deny(unused_must_use)]
/// # async fn f(limiter: tollgate::Limiter) {
/// // Enforces nothing.
/// limiter.check("alice").await;
/// # }
/// ```
#[derive(Clone)]
#[must_use = "a request may be rejected, and dropping its decision releases the permits of in-flight limits"]
pub struct Decision {
    pub(crate) limiter: Arc<LimiterRef>,
    pub(crate) kind: DecisionKind,
    pub(crate) source: DecisionSource,
    /// Whether an allow list admitted the request.
    pub(crate) allow_listed: bool,
    pub(crate) admitted: u64,
    pub(crate) entries: SmallVec<[PolicyEntry; 1]>,
    /// The permits of in-flight limits, until an admission takes them over.
    pub(crate) permit: DecisionPermit,
}

/// Whether a request was admitted, and if not, why.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum DecisionKind {
    /// The request is admitted and charged.
    Admitted,
    /// A quota is exhausted, or the key is banned. Nothing was charged, unless a policy [charges rejected
    /// requests](crate::Policy::charge_rejected).
    Rejected,
    /// The request has no key for the policy, which [rejects](crate::extract::MissingKey::Reject) such requests, or an
    /// [ambiguous](crate::extract::Extracted::Ambiguous) one. Nothing was charged.
    #[non_exhaustive]
    MissingKey {
        /// The policy's name.
        policy: Arc<str>,
        /// What the request lacks, as the response says it: `the header x-api-key`.
        missing: Arc<str>,
    },
    /// The request is on a [deny list](crate::limiter::LimiterBuilder::deny). Nothing was charged.
    DenyListed,
    /// The store failed, and the limiter [rejects](crate::OnStoreError::Reject) requests then. The request may have been
    /// charged: see the error.
    StoreFailed(StoreError),
    /// A call by hand names a policy that the limiter does not have: a mistake in the application, logged as an error at most
    /// every 10 s. Nothing was charged.
    UnknownPolicy(UnknownPolicy),
    /// A call by hand names a policy twice, or has two quotas for one key of a policy: a mistake in the application, logged as an
    /// error at most every 10 s. Nothing was charged.
    #[non_exhaustive]
    DuplicatePolicy {
        /// The policy's name.
        policy: Arc<str>,
    },
    /// A call by hand has more than 128 [entries](crate::limiter::CallEntry): a mistake in the application, logged as an error at most
    /// every 10 s. Nothing was charged.
    #[non_exhaustive]
    TooManyEntries {
        /// How many it has.
        entries: usize,
    },
    /// The policy takes its quota, its cost or its conditions from requests, and a call by hand has none: a mistake in the
    /// application, logged as an error at most every 10 s. Nothing was charged. See [`Check::parts`](crate::limiter::Check::parts).
    #[non_exhaustive]
    PartsRequired {
        /// The policy's name.
        policy: Arc<str>,
        /// What the call lacks, and which calls supply it: ``its cost from a request: call `parts`, `cost` or `cost_for` ``.
        lacks: &'static str,
    },
}

/// The result of a refund under one policy: see [`Admission::refund`](crate::Admission::refund).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Refund {
    policy: Box<str>,
    units: u64,
}

impl DecisionKind {
    /// The error of a call that is invalid, whatever the store says.
    pub(crate) fn call_error(&self) -> Option<CallError> {
        Some(match self {
            Self::UnknownPolicy(error) => error.clone().into(),
            Self::DuplicatePolicy { policy } => CallError::DuplicatePolicy {
                policy: policy.clone(),
            },
            Self::TooManyEntries { entries } => CallError::TooManyEntries { entries: *entries },
            Self::PartsRequired { policy, lacks } => CallError::PartsRequired {
                policy: policy.clone(),
                lacks,
            },
            _ => return None,
        })
    }

    /// The outcome for observers. `allow_listed`: whether an allow list admitted the request; `not_checked`: whether no policy
    /// applied to it.
    pub(crate) fn outcome(&self, allow_listed: bool, not_checked: bool) -> DecisionOutcome {
        match self {
            Self::Admitted if allow_listed => DecisionOutcome::AllowListed,
            Self::Admitted if not_checked => DecisionOutcome::Skipped,
            Self::Admitted => DecisionOutcome::Admitted,
            Self::Rejected => DecisionOutcome::Rejected,
            Self::MissingKey { .. } => DecisionOutcome::MissingKey,
            Self::DenyListed => DecisionOutcome::DenyListed,
            Self::StoreFailed(_) => DecisionOutcome::StoreFailed,
            Self::UnknownPolicy(_)
            | Self::DuplicatePolicy { .. }
            | Self::TooManyEntries { .. }
            | Self::PartsRequired { .. } => DecisionOutcome::Invalid,
        }
    }
}

impl Decision {
    /// Whether the request was admitted.
    pub fn is_admitted(&self) -> bool {
        matches!(self.kind, DecisionKind::Admitted)
    }

    /// The number of requests that were admitted: 0 or 1, or more of a [`check`](crate::Limiter::check) for
    /// [several](crate::limiter::Check::times).
    pub fn admitted(&self) -> u64 {
        self.admitted
    }

    /// Whether the request was admitted, and if not, why.
    pub fn kind(&self) -> &DecisionKind {
        &self.kind
    }

    /// The source of the decision: the store, a lease, the rejection cache, or the fallback.
    pub fn source(&self) -> DecisionSource {
        self.source
    }

    /// The result under each enforced policy that applied, in the order of the [builder's](crate::limiter::LimiterBuilder::policy)
    /// calls. Empty if the store failed. A [ban](crate::Ban) has one while it blocks the key, and in a
    /// [`peek`](crate::Limiter::peek).
    pub fn policies(&self) -> impl ExactSizeIterator<Item = PolicyDecision<'_>> {
        let (enforced, _) = self.entries.split_at(self.enforced_count());
        enforced.iter().map(|entry| self.policy_decision(entry))
    }

    /// The result under each [shadow policy](crate::Policy::shadow) that applied.
    pub fn shadows(&self) -> impl ExactSizeIterator<Item = PolicyDecision<'_>> {
        let (_, shadows) = self.entries.split_at(self.enforced_count());
        shadows.iter().map(|entry| self.policy_decision(entry))
    }

    /// The result under the policy of that name, enforced or not; `None` if it did not apply.
    pub fn policy(&self, policy: &str) -> Option<PolicyDecision<'_>> {
        let decisions = self.entries.iter().map(|entry| self.policy_decision(entry));
        let mut named = decisions.filter(|decision| decision.policy() == policy);
        named.next()
    }

    /// The same decision with other entries, such as parts of these.
    pub(crate) fn with_entries(&self, entries: impl IntoIterator<Item = PolicyEntry>) -> Self {
        Self {
            limiter: self.limiter.clone(),
            kind: self.kind.clone(),
            source: self.source,
            allow_listed: self.allow_listed,
            admitted: self.admitted,
            entries: entries.into_iter().collect(),
            permit: self.permit.clone(),
        }
    }

    /// The cache slot of the `RateLimit-Policy` header, if all live policies applied with their own quotas.
    pub(crate) fn cached_policy_header(&self) -> Option<&OnceLock<HeaderValue>> {
        let cache = &self.limiter.response_cache;
        let (enforced, _) = self.entries.split_at(self.enforced_count());
        let unchanged =
            |entry: &PolicyEntry| entry.role == PolicyRole::Live && entry.other_quota.is_none();
        let all = enforced.len() == cache.live
            && enforced.iter().all(unchanged)
            && enforced
                .windows(2)
                .all(|pair| pair[0].policy != pair[1].policy);
        all.then_some(&cache.policy_header)
    }

    /// The enforced policies, each with one key, which is all that clients see: of several the one that rejects, or is closest to it.
    pub(crate) fn one_per_policy(&self) -> impl Iterator<Item = PolicyDecision<'_>> {
        let (enforced, _) = self.entries.split_at(self.enforced_count());
        let of_policies = enforced.chunk_by(|one, next| one.policy == next.policy);
        of_policies.filter_map(|of_policy| match of_policy {
            [one] => Some(self.policy_decision(one)),
            several => {
                let decisions = several.iter().map(|entry| self.policy_decision(entry));
                decisions.min_by_key(|one| (!one.rejected(), one.remaining()))
            }
        })
    }

    /// The cache slot of the problem body, if exactly one policy rejected this request.
    pub(crate) fn cached_problem(&self) -> Option<&OnceLock<CachedBody>> {
        let mut rejected = self.policies().filter(|policy| policy.rejected());
        match (rejected.next(), rejected.next()) {
            (Some(one), None) => {
                let problems = &self.limiter.response_cache.problems;
                problems.get(one.policy_index())
            }
            _ => None,
        }
    }

    fn policy_decision<'a>(&'a self, entry: &'a PolicyEntry) -> PolicyDecision<'a> {
        PolicyDecision {
            limiter: &self.limiter,
            entry,
            is_rejection: matches!(self.kind, DecisionKind::Rejected),
        }
    }

    /// The number of enforced policies, which come first.
    fn enforced_count(&self) -> usize {
        self.entries.partition_point(|entry| !entry.is_shadow())
    }

    /// Whether a [ban](crate::Ban) rejected it.
    pub(crate) fn is_banned(&self) -> bool {
        let mut policies = self.policies();
        policies.any(|policy| policy.is_ban() && policy.rejected())
    }

    /// The wait until the same request would be admitted: the longest of all policies under which it costs something.
    /// [`Unknown`](RetryAfter::Unknown) if the store failed (responses then have `Retry-After: 1`),
    /// [`Never`](RetryAfter::Never) if waiting does not help.
    pub fn retry_after(&self) -> RetryAfter {
        match &self.kind {
            DecisionKind::Admitted => longest_wait(&self.limiter, &self.entries),
            DecisionKind::Rejected => match longest_wait(&self.limiter, &self.entries) {
                RetryAfter::Now => RetryAfter::Unknown,
                wait => wait,
            },
            DecisionKind::MissingKey { .. }
            | DecisionKind::DenyListed
            | DecisionKind::UnknownPolicy(_)
            | DecisionKind::DuplicatePolicy { .. }
            | DecisionKind::TooManyEntries { .. }
            | DecisionKind::PartsRequired { .. } => RetryAfter::Never,
            DecisionKind::StoreFailed(_) => RetryAfter::Unknown,
        }
    }

    /// Whether its charge depends on the outcome of the request.
    pub(crate) fn depends_on_outcome(&self) -> bool {
        let mut entries = self.entries.iter();
        self.limiter.has_outcome_charges
            && entries.any(|entry| self.limiter.depends_on_outcome(entry))
    }

    /// Refunds what was charged, without waiting for it. The response charges and refunds nothing more.
    pub(super) fn rollback(&mut self) {
        self.limiter.refund_and_report(&mut self.entries);
        for entry in &self.entries {
            entry.receipts.mark_settled();
        }
    }

    /// Converts the decision into an [`Admission`] that holds its permits, or into the error of a request that was not
    /// admitted.
    pub(crate) fn into_result(self) -> Result<Admission, Rejected> {
        if self.is_admitted() {
            Ok(Admission::of(self))
        } else {
            Err(Rejected::new(self))
        }
    }
}

impl fmt::Debug for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Decision")
            .field("kind", &self.kind)
            .field("source", &self.source)
            .field("policies", &self.policies().collect::<Vec<_>>())
            .field("shadows", &self.shadows().collect::<Vec<_>>())
            .finish_non_exhaustive()
    }
}

impl Refund {
    pub(crate) fn new(policy: &str, units: u64) -> Self {
        let policy = policy.into();
        Self { policy, units }
    }

    /// The policy's name.
    pub fn policy(&self) -> &str {
        &self.policy
    }

    /// The number of units that were refunded. The rest of a unit that has partly refilled counts as one.
    pub fn units(&self) -> u64 {
        self.units
    }
}
