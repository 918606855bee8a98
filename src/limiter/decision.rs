//! The decision on a request: data. It says what was decided, with an entry for each policy that applied, and can do nothing.

use std::{
    fmt,
    sync::{Arc, OnceLock},
    time::Duration,
};

use http::HeaderValue;

use super::{
    entry::{Entries, Entry, longest_wait},
    policy_set::{BoundPolicy, CachedBody, PolicyRole, PolicySet},
};
use crate::{
    clock::Timestamp,
    error::{CallError, StoreError},
    key::Key,
    observe::DecisionOutcome,
    quota::Quota,
    store::{DecisionSource, overrides::Override},
    strategy::{QuotaStatus, RetryAfter},
};

/// The result for a request: whether it was admitted, and its status under each policy that applied.
///
/// A decision is data. What was charged stays charged; a request whose charge may be refunded or settled, or that holds a permit of an
/// [in-flight limit](crate::Concurrency), is made by [`Limiter::admit`](crate::Limiter::admit) or
/// [`Limiter::wait`](crate::Limiter::wait), which return an [`Admission`](crate::Admission).
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
#[must_use = "a request may be rejected"]
pub struct Decision {
    pub(crate) set: Arc<PolicySet>,
    pub(crate) kind: DecisionKind,
    pub(crate) source: DecisionSource,
    /// Whether an allow list admitted the request.
    pub(crate) allow_listed: bool,
    pub(crate) admitted: u64,
    pub(crate) entries: Entries,
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
    /// A call by hand is invalid: a mistake in the application, logged as an error at most every 10 s. Nothing was charged.
    Invalid(CallError),
}

impl DecisionKind {
    /// The outcome of a request of this kind. `allow_listed` and `not_checked` are why one was admitted without the store.
    pub(crate) fn outcome(&self, allow_listed: bool, not_checked: bool) -> DecisionOutcome {
        match self {
            Self::Admitted if allow_listed => DecisionOutcome::AllowListed,
            Self::Admitted if not_checked => DecisionOutcome::Skipped,
            Self::Admitted => DecisionOutcome::Admitted,
            Self::Rejected => DecisionOutcome::Rejected,
            Self::MissingKey { .. } => DecisionOutcome::MissingKey,
            Self::DenyListed => DecisionOutcome::DenyListed,
            Self::StoreFailed(_) => DecisionOutcome::StoreFailed,
            Self::Invalid(_) => DecisionOutcome::Invalid,
        }
    }
}

impl Decision {
    /// A decision that nothing is known of yet. It is large, and so filled in its place.
    #[inline(always)]
    pub(crate) fn begin(set: Arc<PolicySet>) -> Self {
        Self {
            set,
            kind: DecisionKind::Admitted,
            source: DecisionSource::NotChecked,
            allow_listed: false,
            admitted: 0,
            entries: Entries::new(),
        }
    }

    /// Sets the result of a request that no policy decides.
    #[cold]
    pub(crate) fn set_without_policies(&mut self, kind: DecisionKind, source: DecisionSource) {
        self.entries.clear();
        self.kind = kind;
        self.source = source;
    }

    /// Sets the result of a request that needs no store. `is_allowed` is whether an allow list admitted it.
    #[cold]
    pub(crate) fn set_early(&mut self, kind: DecisionKind, is_allowed: bool) {
        self.allow_listed = is_allowed;
        self.set_without_policies(kind, DecisionSource::NotChecked);
    }

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
        let mut decisions = self.entries.iter().map(|entry| self.policy_decision(entry));
        decisions.find(|decision| decision.policy() == policy)
    }

    /// The wait until the same request would be admitted: the longest of all policies under which it costs something.
    /// [`Unknown`](RetryAfter::Unknown) if the store failed (responses then have `Retry-After: 1`),
    /// [`Never`](RetryAfter::Never) if waiting does not help.
    pub fn retry_after(&self) -> RetryAfter {
        match &self.kind {
            DecisionKind::Admitted => longest_wait(&self.set, &self.entries),
            DecisionKind::Rejected => match longest_wait(&self.set, &self.entries) {
                RetryAfter::Now => RetryAfter::Unknown,
                wait => wait,
            },
            DecisionKind::StoreFailed(_) => RetryAfter::Unknown,
            DecisionKind::MissingKey { .. }
            | DecisionKind::DenyListed
            | DecisionKind::Invalid(_) => RetryAfter::Never,
        }
    }

    /// The cached `RateLimit-Policy` value, if each live policy applies once, with its own quota.
    pub(crate) fn cached_policy_header(&self) -> Option<&OnceLock<HeaderValue>> {
        let cache = &self.set.response_cache;
        let (enforced, _) = self.entries.split_at(self.enforced_count());
        let is_plain = |entry: &Entry| entry.role == PolicyRole::Live && entry.quota.is_none();
        let are_all = enforced.len() == cache.live
            && enforced.iter().all(is_plain)
            && enforced
                .windows(2)
                .all(|pair| pair[0].policy != pair[1].policy);
        are_all.then_some(&cache.policy_header)
    }

    /// The cached problem body, if exactly one policy rejected the request.
    pub(crate) fn cached_problem(&self) -> Option<&OnceLock<CachedBody>> {
        let mut rejected = self.policies().filter(|policy| policy.rejected());
        let only = rejected.next().filter(|_| rejected.next().is_none())?;
        let index = only.entry.policy as usize;
        self.set.response_cache.problems.get(index)
    }

    /// One decision for each enforced policy: of several keys, that of a rejecting one, else of the one with the least left.
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

    /// Whether a ban rejected the request.
    pub(crate) fn is_banned(&self) -> bool {
        self.policies()
            .any(|policy| policy.is_ban() && policy.rejected())
    }

    /// Whether its charge depends on the request's outcome.
    pub(crate) fn depends_on_outcome(&self) -> bool {
        let depends = |entry: &Entry| !self.set.bound(entry.policy).policy.charges_on_arrival();
        self.set.has_outcome_charges && self.entries.iter().any(depends)
    }

    pub(crate) fn policy_decision<'a>(&'a self, entry: &'a Entry) -> PolicyDecision<'a> {
        PolicyDecision {
            set: &self.set,
            entry,
            is_rejection: matches!(self.kind, DecisionKind::Rejected),
        }
    }

    /// The number of entries that are not of shadows, which are the last ones.
    fn enforced_count(&self) -> usize {
        self.entries.partition_point(|entry| !entry.is_shadow())
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

/// The result of a request under one policy: whether it was rejected, the units left, and the waits. From
/// [`Decision::policies`](crate::Decision::policies) and [`LimitStatus::policies`](crate::limiter::LimitStatus::policies).
#[derive(Clone, Copy)]
pub struct PolicyDecision<'a> {
    set: &'a PolicySet,
    entry: &'a Entry,
    is_rejection: bool,
}

impl<'a> PolicyDecision<'a> {
    pub(crate) fn status(&self) -> QuotaStatus {
        self.entry.status(self.set)
    }

    /// When it was decided, on the wall clock.
    pub(crate) fn decided_at(&self) -> Timestamp {
        let at = self.entry.receipt.charged_at;
        if self.entry.limit(self.set).info().follows_wall_clock {
            return at;
        }
        self.entry.store(self.set).wall(at)
    }

    /// Whether units come back one by one, rather than all at once.
    pub(crate) fn refills_gradually(&self) -> bool {
        self.entry.limit(self.set).info().refills_gradually
    }

    /// Why the request shares a bucket with others that have no key, if that is a mistake.
    pub(crate) fn missing_key_hint(&self) -> Option<&'a str> {
        let hint = self.bound().policy.extractor().missing_key_hint();
        (self.entry.key == Key::missing() && !hint.is_empty()).then_some(hint)
    }

    pub(crate) fn is_block_list(&self) -> bool {
        self.bound().policy.is_block_list()
    }

    pub(crate) fn is_ban(&self) -> bool {
        self.entry.role == PolicyRole::Ban
    }

    /// The policy's name.
    pub fn policy(&self) -> &'a str {
        self.bound().policy.name()
    }

    /// The key that the request was counted by; of a credential, its hash.
    pub fn key(&self) -> Key {
        self.entry.key
    }

    /// The key as operators write it.
    #[cfg(feature = "admin")]
    pub(crate) fn key_text(&self) -> String {
        self.bound().policy.key_text(&self.entry.key)
    }

    /// The quota that was applied.
    pub fn quota(&self) -> Quota {
        match &self.entry.quota {
            Some(limit) => limit.quota,
            None => self.bound().policy.quota(),
        }
    }

    /// The [override](crate::limiter::Override) of the key whose quota was applied; `None` if the quota is the policy's own or the
    /// request's, or the share of this process while the store fails.
    pub fn applied_override(&self) -> Option<&'a Override> {
        let known = self.entry.quota.as_ref()?.by_operator.as_ref()?;
        Some(known)
    }

    /// The most units that can be charged at once: the burst, or a window's whole quota.
    pub fn limit(&self) -> u64 {
        self.entry.limit(self.set).info().capacity
    }

    /// The cost of the request in units, also if it was rejected.
    pub fn cost(&self) -> u64 {
        self.entry.cost
    }

    /// The whole units left, after this request if it was admitted; 0 in debt.
    pub fn remaining(&self) -> u64 {
        self.status().remaining
    }

    /// The units that are in use beyond the [limit](Self::limit), by [`Limiter::charge`](crate::Limiter::charge) or
    /// [`charge_rejected`](crate::Policy::charge_rejected), rounded up: in debt, also a request that costs 0 may have to be rejected by the
    /// application. For the result of a [`peek`](crate::Limiter::peek); 0 for other calls, and under strategies that can't be
    /// [credited](crate::limiter::PolicyHandle::credit).
    ///
    /// ```
    /// use tollgate::{CalendarWindow, Limiter, Policy, Quota};
    ///
    /// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
    /// let tokens = Policy::new("tokens", Quota::units(100).per_year()).strategy(CalendarWindow::utc());
    /// let limiter = Limiter::builder().policy(tokens).build()?;
    /// for (units, debt) in [(100, 0), (30, 30)] {
    ///     limiter.charge("alice", units).await?;
    ///     let status = limiter.peek("alice").await?;
    ///     let tokens = status.policy("tokens").ok_or("no policy")?;
    ///     assert_eq!((tokens.remaining(), tokens.debt()), (0, debt));
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn debt(&self) -> u64 {
        let in_use = self.entry.units_in_use(self.set).unwrap_or(0);
        in_use.saturating_sub(self.limit())
    }

    /// The wait until another request of the same cost is admitted by this policy.
    pub fn retry_after(&self) -> RetryAfter {
        self.status().retry_after
    }

    /// The wait until the full quota is available, if no other request comes.
    pub fn reset_after(&self) -> Duration {
        self.status().reset_after
    }

    /// Whether this is a shadow policy, which is evaluated and not enforced: see [`Policy::shadow`](crate::Policy::shadow).
    pub fn is_shadow(&self) -> bool {
        self.entry.is_shadow()
    }

    /// Whether this policy rejected the request, or would have if it were enforced.
    pub fn would_reject(&self) -> bool {
        self.rejected() || self.entry.is_shadow_rejection()
    }

    /// Whether this policy rejected the request; false for a shadow policy.
    pub fn rejected(&self) -> bool {
        self.is_rejection && !self.is_shadow() && self.entry.rejects(self.set)
    }

    fn bound(&self) -> &'a BoundPolicy {
        self.set.bound(self.entry.policy)
    }
}

impl fmt::Debug for PolicyDecision<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PolicyDecision")
            .field("policy", &self.policy())
            .field("key", &self.key())
            .field("limit", &self.limit())
            .field("cost", &self.cost())
            .field("remaining", &self.remaining())
            .field("retry_after", &self.retry_after())
            .field("reset_after", &self.reset_after())
            .field("rejected", &self.rejected())
            .field("would_reject", &self.would_reject())
            .finish()
    }
}

/// The status of keys under each policy: the result of [`Limiter::peek`](crate::Limiter::peek),
/// [`charge`](crate::Limiter::charge), [`reset`](crate::Limiter::reset) and [`unblock`](crate::Limiter::unblock), and part of a
/// [`Credited`](crate::limiter::Credited).
///
/// It admits no request: it holds no charge, and can't become an [`Admission`](crate::Admission).
#[derive(Clone)]
pub struct LimitStatus(Decision);

impl LimitStatus {
    /// The status of a decision that charged nothing. An invalid call and a failure of the store are errors.
    pub(crate) fn of(decision: Decision) -> Result<Self, CallError> {
        match decision.kind {
            DecisionKind::StoreFailed(error) => Err(error.into()),
            DecisionKind::Invalid(error) => Err(error),
            _ => Ok(Self(decision)),
        }
    }

    /// Whether a request with the cost of the call, or else each policy's own, would be admitted now; after a
    /// [reset](crate::Limiter::reset) or [unblock](crate::Limiter::unblock), whether it would have been before.
    pub fn would_admit(&self) -> bool {
        self.0.is_admitted() && self.0.retry_after() == RetryAfter::Now
    }

    /// The wait until another request of the same cost is admitted by this policy.
    pub fn retry_after(&self) -> RetryAfter {
        self.0.retry_after()
    }

    /// The decision that a request would get: [`Rejected`](DecisionKind::Rejected) if its policies [would not
    /// admit](LimitStatus::would_admit) it. A request on an access list has no policies.
    pub fn kind(&self) -> &DecisionKind {
        self.0.kind()
    }

    /// The source of the status.
    pub fn source(&self) -> DecisionSource {
        self.0.source()
    }

    /// The status under each enforced policy of the call, in the order of the [builder's](crate::limiter::LimiterBuilder::policy) calls.
    pub fn policies(&self) -> impl ExactSizeIterator<Item = PolicyDecision<'_>> {
        self.0.policies()
    }

    /// The status under each [shadow policy](crate::Policy::shadow) of the call.
    pub fn shadows(&self) -> impl ExactSizeIterator<Item = PolicyDecision<'_>> {
        self.0.shadows()
    }

    /// The status under the policy of that name, enforced or not; `None` if the call did not apply to it.
    pub fn policy(&self, policy: &str) -> Option<PolicyDecision<'_>> {
        self.0.policy(policy)
    }
}

impl fmt::Debug for LimitStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LimitStatus")
            .field("kind", self.kind())
            .field("source", &self.source())
            .field("policies", &self.policies().collect::<Vec<_>>())
            .field("shadows", &self.shadows().collect::<Vec<_>>())
            .finish()
    }
}
