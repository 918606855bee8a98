//! The status of keys under a limiter's policies.

use std::fmt;

use super::{
    check::CheckOutput,
    decision::{Decision, DecisionKind},
    policy_decision::PolicyDecision,
};
use crate::{error::CallError, store::DecisionSource, strategy::RetryAfter};

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
