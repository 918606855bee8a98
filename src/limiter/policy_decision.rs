//! The result of a request under one policy.

use std::{fmt, time::Duration};

use super::{
    check::CheckOutput,
    core::LimiterCore,
    decision::{Decision, DecisionKind},
    entry::{PolicyEntry, PolicyRole},
};
use crate::{
    clock::Timestamp,
    error::CallError,
    key::Key,
    policy::Policy,
    quota::Quota,
    store::{DecisionSource, overrides::Override},
    strategy::{QuotaStatus, RetryAfter},
};

/// The result of a request under one policy: whether it was rejected, the units left, and the waits. From
/// [`Decision::policies`](crate::Decision::policies) and [`LimitStatus::policies`](crate::limiter::LimitStatus::policies).
#[derive(Clone, Copy)]
pub struct PolicyDecision<'a> {
    pub(super) limiter: &'a LimiterCore,
    pub(super) entry: &'a PolicyEntry,
    /// Whether any policy rejected the request.
    pub(super) is_rejection: bool,
}

impl<'a> PolicyDecision<'a> {
    pub(crate) fn status(&self) -> QuotaStatus {
        self.entry.status(self.limiter)
    }

    /// When it was decided, by the wall clock.
    pub(crate) fn decided_at(&self) -> Timestamp {
        let at = self.entry.receipts.first().charged_at;
        if self.limiter.limit(self.entry).info().follows_wall_clock {
            return at;
        }
        self.limiter.store_for(self.entry).wall(at)
    }

    /// Whether used units become available one by one, not all at once.
    pub(crate) fn refills_gradually(&self) -> bool {
        self.limiter.limit(self.entry).info().refills_gradually
    }

    /// The policy's index in its limiter.
    pub(super) fn policy_index(&self) -> usize {
        self.entry.policy as usize
    }

    fn bound_policy(&self) -> &'a Policy {
        &self.limiter.bound(self.entry.policy).policy
    }

    /// The remedy, if the request shares its bucket with all others without a key by a mistake of the application.
    pub(crate) fn missing_key_hint(&self) -> Option<&'a str> {
        let hint = self.bound_policy().extractor().missing_key_hint();
        (self.entry.key == Key::missing() && !hint.is_empty()).then_some(hint)
    }

    /// Whether the policy is a block list, which has no quota that means anything.
    pub(crate) fn is_block_list(&self) -> bool {
        self.bound_policy().is_block_list()
    }

    /// Whether the policy is a ban, or a block list, which is one by hand.
    pub(crate) fn is_ban(&self) -> bool {
        self.entry.role == PolicyRole::Ban
    }

    /// The policy's name.
    pub fn policy(&self) -> &'a str {
        self.bound_policy().name()
    }

    /// The key that the request was counted by; of a credential, its hash.
    pub fn key(&self) -> Key {
        self.entry.key
    }

    /// The key's text, for operators.
    #[cfg(feature = "admin")]
    pub(crate) fn key_text(&self) -> String {
        self.bound_policy().key_text(&self.entry.key)
    }

    /// The quota that was applied.
    pub fn quota(&self) -> Quota {
        match &self.entry.other_quota {
            Some(other_quota) => other_quota.quota,
            None => self.bound_policy().quota(),
        }
    }

    /// The [override](crate::limiter::Override) of the key whose quota was applied; `None` if the quota is the policy's own or the
    /// request's, or the share of this process while the store fails.
    pub fn applied_override(&self) -> Option<&'a Override> {
        let other_quota = self.entry.other_quota.as_ref()?;
        Some(&other_quota.by_operator.as_ref()?.setting)
    }

    /// The most units that can be charged at once: the burst, or a window's whole quota.
    pub fn limit(&self) -> u64 {
        self.limiter.limit(self.entry).info().capacity
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
        // Of a rejected request the snapshot is not kept.
        let in_use = self.limiter.units_in_use(self.entry);
        in_use.unwrap_or(0).saturating_sub(self.limit())
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
        self.is_rejection && !self.is_shadow() && self.entry.rejects(self.limiter)
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
    pub(crate) fn new(decision: Decision) -> Self {
        Self(decision)
    }

    pub(crate) fn into_decision(self) -> Decision {
        self.0
    }

    /// Whether a request with the cost of the call, or else each policy's own, would be admitted now; after a
    /// [reset](crate::Limiter::reset) or [unblock](crate::Limiter::unblock), whether it would have been before.
    pub fn would_admit(&self) -> bool {
        self.0.is_admitted() && self.0.retry_after() == RetryAfter::Now
    }

    /// The wait until a request of that cost would be admitted: the longest of all policies.
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

impl CheckOutput for Result<LimitStatus, CallError> {
    fn from_decision(decision: Decision) -> Self {
        match decision.kind {
            DecisionKind::StoreFailed(error) => Err(error.into()),
            ref kind => match kind.call_error() {
                Some(error) => Err(error),
                None => Ok(LimitStatus(decision)),
            },
        }
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
